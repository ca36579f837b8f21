//go:build imagetest

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// The client needs no C compiler, is small, asks a server as the whole program does, and says what it cannot do.
func TestClient(t *testing.T) {
	out := t.TempDir()
	build := func(system, to string) string {
		program := filepath.Join(out, to)
		harness.MustRun(t, harness.Command{
			Path: "go", Args: []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "./cmd/tidewaiter"},
			Dir: filepath.Dir(harness.ModuleDir(t)), Env: []string{"CGO_ENABLED=0", "GOOS=" + system},
		})
		const most = 60 << 20
		if info, err := os.Stat(program); err != nil || info.Size() > most {
			t.Errorf("the client for %s: %d bytes, %v; want %d at most", system, info.Size(), err, most)
		}
		return program
	}
	build("windows", "tidewaiter.exe")
	client := build("linux", "tidewaiter")

	s := harness.StartServer(t)
	ask := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: client, Args: append(args, "--kubeconfig", s.Kubeconfig)})
	}
	for _, args := range [][]string{{"get", "sha256:abcdef"}, {"pods"}, {"prune", "--older-than", "1h"}} {
		whole := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append(args, "--kubeconfig", s.Kubeconfig)})
		if got := ask(args...); got.Code != whole.Code || got.Stdout != whole.Stdout || got.Stderr != whole.Stderr {
			t.Errorf("tidewaiter %s: the client says\n%d %s%s, the whole program\n%d %s%s", strings.Join(args, " "), got.Code, got.Stdout, got.Stderr, whole.Code, whole.Stdout, whole.Stderr)
		}
	}
	// As for kubectl, the kubeconfig of the environment names the server.
	env := []string{"KUBECONFIG=" + s.Kubeconfig}
	if got := harness.Run(t, harness.Command{Path: client, Args: []string{"verify", "--all"}, Env: env}); got.Code != 0 {
		t.Errorf("with KUBECONFIG: %d, %s", got.Code, got.Stderr)
	}
	for _, verb := range []string{"serve", "demo", "backup"} {
		got := harness.Run(t, harness.Command{Path: client, Args: []string{verb, "--data-dir", out}})
		wantContains(t, verb, got.Stderr, "it has no SQLite", "install a C compiler", "--server")
		if got.Code == 0 {
			t.Errorf("%s ended with 0", verb)
		}
	}
}
