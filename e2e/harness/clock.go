package harness

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	_ "embed"
)

// clockSource is a C library that a program loads before anything else. A program in Go asks the
// kernel for the time without libc, so libfaketime does not deceive it.
//
//go:embed clock/clock.c
var clockSource []byte

// Clock is a wrong clock of programs in Go for Linux that are linked with libc. It may be set while
// they run. Their timers go on as before, as on a machine whose clock is set.
type Clock struct {
	library, offset string // files
}

// NewClock compiles a clock, which is right at first.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	c := &Clock{library: filepath.Join(dir, "clock.so"), offset: filepath.Join(dir, "offset")}
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", c.library, source).CombinedOutput(); err != nil {
		t.Fatalf("compiling the clock: %v\n%s", err, out)
	}
	c.Set(t, 0)
	return c
}

// Set makes the clock differ from this machine's by whole seconds.
func (c *Clock) Set(t testing.TB, by time.Duration) {
	t.Helper()
	f, err := os.OpenFile(c.offset, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		seconds := int64(by / time.Second)
		_, err = f.WriteAt((*[8]byte)(unsafe.Pointer(&seconds))[:], 0) // as C has it
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Env is the environment in which a program has this clock.
func (c *Clock) Env(t testing.TB, program string) []string {
	t.Helper()
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == "runtime.vdsoClockgettimeSym" {
			return []string{"LD_PRELOAD=" + c.library, "TEST_CLOCK_OFFSET=" + c.offset, fmt.Sprintf("TEST_CLOCK_SYMBOL=%d", s.Value)}
		}
	}
	t.Fatalf("%s does not ask the kernel for the time", program)
	return nil
}
