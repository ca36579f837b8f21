package db_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if err := datafile.Owner(filepath.Join(dir, "missing")); err != nil {
		t.Errorf("owner of a missing directory: %v", err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	if err := d.SetInfo("https://127.0.0.1:6443"); err != nil {
		t.Fatal(err)
	}
	_, openErr := db.Open(db.Options{Dir: dir})
	for what, err := range map[string]error{"Open": openErr, "Owner": datafile.Owner(dir)} {
		var locked *datafile.LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("%s: %v, want *LockedError", what, err)
		}
		if locked.PID != os.Getpid() || locked.Info != "https://127.0.0.1:6443" || locked.Dir != dir {
			t.Errorf("%s: %+v, want this process", what, locked)
		}
		if !strings.Contains(err.Error(), "https://127.0.0.1:6443") {
			t.Errorf("%s: message %q does not say who", what, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := datafile.Owner(dir); err != nil {
		t.Errorf("owner after close: %v", err)
	}
	dbtest.OpenOptions(t, db.Options{Dir: dir})
}

func TestLockFileOfStrangers(t *testing.T) {
	for _, content := range []string{"", "not json", `{"pid":"x"}`, strings.Repeat("x", 1<<20)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		dbtest.OpenOptions(t, db.Options{Dir: dir})
	}
}

// TestLockFileRemoved: a running server owns its directory even after its lock file was removed.
func TestLockFileRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
	saved := filepath.Join(t.TempDir(), "backup.db")
	if err := backup.Make(t.Context(), dir, saved); err != nil {
		t.Fatal(err)
	}
	for _, then := range []func(path string) error{os.Remove, func(path string) error { return os.WriteFile(path, nil, 0o600) }} {
		if err := then(filepath.Join(dir, "lock")); err != nil {
			t.Fatal(err)
		}
		_, openErr := db.Open(db.Options{Dir: dir})
		for what, err := range map[string]error{"Open": openErr, "Owner": datafile.Owner(dir), "Restore": backup.Restore(t.Context(), saved, dir)} {
			var locked *datafile.LockedError
			if !errors.As(err, &locked) {
				t.Errorf("%s: %v, want *LockedError", what, err)
			}
		}
	}
	put(t, d, "/a/1", 0, "v")
}

// TestLockOfOlderRelease: a process that has locked only the lock file owns the directory, too.
func TestLockOfOlderRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, openErr := db.Open(db.Options{Dir: dir})
	for what, err := range map[string]error{"Open": openErr, "Owner": datafile.Owner(dir)} {
		var locked *datafile.LockedError
		if !errors.As(err, &locked) {
			t.Errorf("%s: %v, want *LockedError", what, err)
		}
	}
}

// TestOwnerIsServer: the owner of a directory counts as a server once it has recorded its address.
func TestOwnerIsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
	for _, address := range []string{"", "https://127.0.0.1:6443", ""} {
		if err := d.SetInfo(address); err != nil {
			t.Fatal(err)
		}
		var locked *datafile.LockedError
		if err := datafile.Owner(dir); !errors.As(err, &locked) || locked.IsServer() != (address != "") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestLockIsGivenUpAtOnce: a copy of the lock's descriptors, as a forked child has until it
// executes its program, does not keep the directory locked.
func TestLockIsGivenUpAtOnce(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]bool{}
	for _, e := range open {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || name != dir && name != filepath.Join(dir, "lock") {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if fd, err = syscall.Dup(fd); err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		copies[name] = true
	}
	if len(copies) != 2 {
		t.Fatalf("copied are %v", copies)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = db.Open(db.Options{Dir: dir, Logger: quietLogger}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLockWhileAsked: calls of Owner do not prevent a server from locking the directory.
func TestLockWhileAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = datafile.Owner(dir)
				}
			}
		})
	}
	for range 20 {
		d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
		if err != nil {
			t.Error(err)
			break
		}
		d.Close()
	}
	close(stop)
	wg.Wait()
}
