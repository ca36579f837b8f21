package dbtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inNamespace is set in the environment of a test that runs in its own namespace.
const inNamespace = "TIDEWAITER_TEST_NAMESPACE"

// OnSmallDisk runs fn with a directory that is a file system of that size. It needs the right to
// mount one. Without that right, the test runs again in a process that has it, in a user namespace
// of its own. If that is forbidden, too, the test is skipped with a message.
func OnSmallDisk(t *testing.T, size int64, fn func(dir string)) {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if err == nil {
		t.Cleanup(func() {
			err := syscall.Unmount(dir, 0)
			for deadline := time.Now().Add(time.Minute); errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond) // a connection is being closed
				err = syscall.Unmount(dir, 0)
			}
			if err != nil {
				t.Errorf("unmount: %v", err)
			}
		})
		fn(dir)
		return
	}
	if os.Getenv(inNamespace) != "" {
		t.Fatalf("mounting a tmpfs in a namespace: %v", err)
	}
	var run []string
	for _, part := range strings.Split(t.Name(), "/") {
		run = append(run, "^"+part+"$")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+strings.Join(run, "/"), "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, rerr := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case rerr == nil && strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Logf("passed in a user namespace")
	case rerr == nil || errors.As(rerr, &exit):
		t.Fatalf("in a user namespace: %v\n%s", rerr, out)
	default:
		t.Skipf("SKIPPED: no small disk can be mounted (%v), and no user namespace can be made (%v): run as root to include this test", err, rerr)
	}
}

// FillDisk writes a file into dir until no byte fits any more, and returns its path.
func FillDisk(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "ballast-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return f.Name()
}
