package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// An import that has nothing to import says so, and is told from one that failed.
func TestImportOfNothing(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	registry.Push("team/app:v1", servertest.SampleImage(t, "nothing"))
	empty := registrytest.New(t)
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte("\n# nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-f", list}, "no reference is in " + list},
		{[]string{"--catalog", empty.Host + "/"}, "no repository or tag is listed"},
		{[]string{"--all-tags", registry.Host + "/team/app", "--include", ":zzz*"}, "1 listed, and the selection leaves none"},
		{[]string{"--all-tags", registry.Host + "/team/app", "--exclude", ":*"}, "1 listed, and the selection leaves none"},
		{[]string{"--catalog", registry.Host + "/", "--include", "nope"}, "the selection leaves none"},
	} {
		args := append([]string{"import", "--dry-run", "--data-dir", t.TempDir(), "--create-data-dir"}, c.args...)
		code, stdout, stderr := tidewaiter(t, args...)
		if code != cli.ExitNothing || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("%q: exit code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
	// Pods are read from a server.
	kubeconfig := newLooking(t).kubeconfig
	code, _, stderr := tidewaiter(t, "import", "--kubeconfig", kubeconfig, "--from-pods", "-n", "empty")
	if code != cli.ExitNothing || !strings.Contains(stderr, "nothing to import: no pod in that namespace runs an image") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
