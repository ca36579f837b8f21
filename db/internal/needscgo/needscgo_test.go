package needscgo_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestBuildWithoutCgo: a build without cgo gives one error with the remedy.
func TestBuildWithoutCgo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles the engine's dependencies once more")
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, "../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err == nil {
		t.Fatal("the engine was built without cgo")
	}
	var errs []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") {
			errs = append(errs, line)
		}
	}
	if len(errs) != 1 || !strings.Contains(errs[0], "INSTALL_A_C_COMPILER") {
		t.Errorf("%d errors, want one that says what to do:\n%s", len(errs), out)
	}
}
