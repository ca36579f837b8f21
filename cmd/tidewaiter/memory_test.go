package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The collector of garbage keeps the process within 90 % of its container's limit, unless the
// environment has a limit of its own. It changes nothing where the limit cannot be read.
func TestMemoryLimitOfTheContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	unreadable := func() (uint64, error) { return 0, errors.New("cgroups cannot be read") }
	for _, c := range []struct {
		what, environment string
		limit             memlimit.Provider
		want              int64
	}{
		{"2 GiB", "", memlimit.Limit(2 << 30), 2 << 30 * 9 / 10},
		{"2 GiB, and GOMEMLIMIT", "700MiB", memlimit.Limit(2 << 30), before},
		{"one that cannot be read", "", unreadable, before},
	} {
		debug.SetMemoryLimit(before)
		t.Setenv("GOMEMLIMIT", c.environment) // the test ends with what there was
		if c.environment == "" {
			os.Unsetenv("GOMEMLIMIT")
		}
		limitMemory(c.limit)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.what, got, c.want)
		}
	}
}

// The process sets the limit by itself, and says where it cannot.
func TestProcessSetsItsMemoryLimit(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for share, want := range map[string]bool{"much": true, "0.5": false} {
		cmd := exec.CommandContext(t.Context(), self, "version")
		cmd.Env = append(os.Environ(), serveEnv+"=1", "AUTOMEMLIMIT="+share)
		out, err := cmd.CombinedOutput()
		if said := strings.Contains(string(out), "The memory limit of the container is not known"); err != nil || said != want {
			t.Errorf("AUTOMEMLIMIT=%s: %v, %s", share, err, out)
		}
	}
}
