package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// A server that is started while an import holds its data directory waits for the import, and not
// for another server.
func TestServeWaitsForItsDirectory(t *testing.T) {
	dir := t.TempDir()
	owner, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now())
	ended := make(chan error, 1)
	go func() { ended <- awaitDirectory(t.Context(), dir, clock) }()
	for range 3 {
		step(t, clock)
		select {
		case err := <-ended:
			t.Fatalf("it has not waited: %v", err)
		default:
		}
	}

	if err := owner.SetInfo("https://127.0.0.1:6443"); err != nil {
		// the owner proves to be a server
		t.Fatal(err)
	}
	var locked *datafile.LockedError
	if err := stepUntil(t, clock, ended); !errors.As(err, &locked) {
		t.Fatalf("beside a server: %v", err)
	}
	if err := awaitDirectory(t.Context(), dir, clock); !errors.As(err, &locked) {
		t.Errorf("beside a server from the beginning: %v", err)
	}

	if err := owner.SetInfo(""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- awaitDirectory(ctx, dir, clock) }()
	step(t, clock)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stopped while it waits: %v", err)
	}

	go func() { ended <- awaitDirectory(t.Context(), dir, clock) }()
	step(t, clock)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stepUntil(t, clock, ended); err != nil {
		t.Errorf("when the directory is free: %v", err)
	}
}

// The first start with nothing configured says what to do next; a later one, and one with a
// configuration, does not.
func TestServeSaysWhatIsNext(t *testing.T) {
	serve := func(args ...string) string {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var out servertest.LogBuffer
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, append([]string{"serve", "--secure-port", "0"}, args...), strings.NewReader(""), &out, io.Discard)
		}()
		servertest.Eventually(t, "a server that is ready", func() bool { return strings.Contains(out.String(), "\n") })
		stop()
		if code := <-ended; code != 0 {
			t.Errorf("%q ends with %d", args, code)
		}
		return out.String()
	}
	dir := filepath.Join(t.TempDir(), "data")
	if out := serve("--data-dir", dir); !strings.HasSuffix(out, "\n"+lookAround(t.Context()).nextSteps()) {
		t.Errorf("the first start says %q", out)
	}
	// Where clients reach the server is what they are told, whatever it listens on.
	for bind, other := range map[string]string{"": "https://tidewaiter.example.com:6443", "0.0.0.0": "https://tidewaiter.example.com", "::": "https://[2001:db8::1]:6443", "::1": "https://192.0.2.1"} {
		for _, advertised := range []string{"", other} {
			args, want := []string{"--data-dir", dir}, "https://127.0.0.1:"
			if bind != "" {
				args = append(args, "--bind-address", bind)
			}
			if strings.Contains(bind, ":") {
				if l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "[::1]:0"); err != nil {
					t.Logf("--bind-address %s is not asked about: %v", bind, err)
					continue
				} else if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if bind == "::1" {
				want = "https://[::1]:"
			}
			if advertised != "" {
				args, want = append(args, "--advertise-url", advertised), advertised+", kubeconfig "
			}
			out := serve(args...)
			if !strings.HasPrefix(out, "tidewaiter is ready at "+want) {
				t.Errorf("%q says %q, want %s", args, out, want)
			}
			kubeconfig, err := os.ReadFile(server.KubeconfigPath(dir))
			if server, _, _ := strings.Cut(want, ", "); err != nil || !strings.Contains(string(kubeconfig), "server: "+server) {
				t.Errorf("with %q the kubeconfig is %v, %s", args, err, kubeconfig)
			}
		}
	}
	for _, args := range [][]string{{"--data-dir", dir}, {"--data-dir", filepath.Join(t.TempDir(), "data"), "--config", servertest.WriteConfig(t, ownPodsOnly)}} {
		if out := serve(args...); strings.Count(out, "\n") != 1 {
			t.Errorf("%q says %q", args, out)
		}
	}
}

// step lets the time pass after which the directory is looked at again, once somebody waits for it.
func step(t *testing.T, clock *clocktesting.FakeClock) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !clock.HasWaiters(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody waits")
		}
	}
	clock.Step(ownerInterval)
}

// stepUntil lets time pass until a wait has ended.
func stepUntil(t *testing.T, clock *clocktesting.FakeClock, ended <-chan error) error {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		select {
		case err := <-ended:
			return err
		default:
			clock.Step(ownerInterval)
		}
	}
	t.Fatal("it still waits")
	return nil
}

// A server that begins with an empty directory, as where the disk is not mounted, says so. The next
// one does not.
func TestServeTellsOfANewDatabase(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "missing", "data")
	for _, isNew := range []bool{true, false} {
		p := runProcess(t, dir)
		p.kill()
		stderr, err := os.ReadFile(p.cmd.Stderr.(*os.File).Name())
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(string(stderr), "level=WARN msg=\"created a new, empty database; ") && strings.Contains(string(stderr), "dir="+dir); told != isNew {
			t.Errorf("new %t:\n%s", isNew, stderr)
		}
	}
}

// A server whose standard output cannot be written serves all the same.
func TestServeWithoutStandardOutput(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	full := writerFunc(func([]byte) (int, error) { stop(); return 0, syscall.ENOSPC })
	if code := run(ctx, []string{"serve", "--secure-port", "0", "--data-dir", t.TempDir()}, strings.NewReader(""), full, io.Discard); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }
