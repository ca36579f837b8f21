package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// TestGoInstall asks `go install …/cmd/tidewaiter@latest` what it would do, with a module proxy
// that has this tree: a module with a replace directive, with files that a module cannot have, or
// without some that it needs, could not be installed. It is not compiled, because the others
// compile the same files.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	// Another run may be under way, and shares the module cache.
	version := module.Version{Path: "github.com/tidewaiter/tidewaiter", Version: fmt.Sprintf("v0.0.1-of-this-tree.%d", time.Now().UnixNano())}
	root := filepath.Dir(harness.ModuleDir(t))
	proxy := t.TempDir()
	dir := filepath.Join(proxy, version.Path, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"list": version.Version + "\n", version.Version + ".mod": string(gomod),
		version.Version + ".info": `{"Version":"` + version.Version + `","Time":"2026-01-01T00:00:00Z"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, version.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if err := zip.CreateFromDir(f, version, root); err != nil {
		t.Fatalf("the tree is no module: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	gopath := goEnv(t, "GOMODCACHE")
	t.Cleanup(func() { // what the go command kept of a version that is nobody's
		kept, err := filepath.Glob(filepath.Join(gopath, "cache", "download", version.Path, "@v", version.Version+".*"))
		if err != nil {
			t.Error(err)
		}
		for _, path := range append(kept, filepath.Join(gopath, version.String())) {
			filepath.WalkDir(path, func(path string, _ os.DirEntry, _ error) error { return os.Chmod(path, 0o755) })
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	})
	install := exec.CommandContext(t.Context(), "go", "install", "-n", version.Path+"/cmd/tidewaiter@latest")
	install.Dir = t.TempDir()
	install.Env = append(os.Environ(), "GOBIN="+t.TempDir(), "GOFLAGS=", "GOWORK=off", "GONOSUMDB="+version.Path, "GOPROXY=file://"+proxy+","+goEnv(t, "GOPROXY"))
	out, err := install.CombinedOutput()
	if err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	// It tells the program its version.
	if of := `mod\t` + version.Path + `\t` + version.Version; !strings.Contains(string(out), of) {
		t.Errorf("the program would not be told %s", of)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
