package harness

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// ModuleDir is the folder of the module github.com/tidewaiter/tidewaiter/e2e.
func ModuleDir(t testing.TB) string {
	t.Helper()
	dir, err := moduleDir()
	if err != nil {
		t.Fatalf("finding e2e/go.mod: %v", err)
	}
	return dir
}

var moduleDir = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", os.ErrNotExist
		}
		dir = filepath.Dir(dir)
	}
	return "", err
})

// Tool is the path of a program built by `go run ./tools`. A missing one fails
// the test: a suite that skips what it cannot run proves nothing.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(ModuleDir(t), ".tools", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not built; build it with:  go run -C e2e ./tools %s", name, name)
	}
	return path
}

var given = flag.String("tidewaiter", "", "program to test, for instance a release; default: built from the parent module")

// Binary is the path of the tidewaiter program under test: the one given by
// -tidewaiter, else built once from the parent module. It stays in .tools, so
// that an unchanged one is not linked again.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("building tidewaiter: %v", err)
	}
	return path
}

var binary = sync.OnceValues(func() (string, error) {
	if *given != "" {
		return filepath.Abs(*given)
	}
	dir, err := moduleDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, ".tools", "bin", "tidewaiter")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/tidewaiter")
	cmd.Dir = filepath.Dir(dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return path, cmd.Run()
})
