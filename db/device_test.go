//go:build linux

package db_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

// TestReadError makes every read of the file fail with EIO, which SQLite reports as damage. The
// error does not advise to restore a backup, and the database works again when the device does. The
// test needs the right to mount.
func TestReadError(t *testing.T) {
	dir := t.TempDir()
	opts := db.Options{Dir: dir, Logger: quietLogger, Readers: 1}
	d, err := db.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("x", 10000)
	var revs []int64
	for i := range 100 {
		revs = append(revs, put(t, d, fmt.Sprintf("/a/%03d", i), 0, value))
	}
	if err := d.Close(); err != nil { // now everything is in the file
		t.Fatal(err)
	}
	if d, err = db.Open(opts); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	put(t, d, "/b/0", 0, "v") // from now on SQLite takes the file's size from the log
	path := filepath.Join(dir, datafile.FileName)

	// Reading /proc/self/mem at an address without memory gives EIO. Open descriptors of the file, and
	// those that are opened from now on, read it instead of the file.
	const memory = "/proc/self/mem"
	bad, err := os.Open(memory)
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	if _, err := bad.ReadAt(make([]byte, 1), 4096); !errors.Is(err, syscall.EIO) {
		t.Skipf("SKIPPED: reading %s: %v, want EIO", memory, err)
	}
	if err := syscall.Mount(memory, path, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("SKIPPED: mounting over a file: %v (run as root to include this test)", err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		mounted = false
	}
	defer unmount()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			fds = append(fds, fd)
		}
	}
	var restore []func()
	for _, fd := range fds {
		saved, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Dup3(int(bad.Fd()), fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		restore = append(restore, func() {
			if err := syscall.Dup3(saved, fd, syscall.O_CLOEXEC); err != nil {
				t.Error(err)
			}
			// saved stays open: closing it would drop SQLite's locks.
		})
	}
	if len(restore) == 0 {
		t.Fatal("the database has not opened the file")
	}
	checkDevice := func(what string, err error) {
		t.Helper()
		var unavailable *datafile.UnavailableError
		if !errors.As(err, &unavailable) || strings.Contains(err.Error(), "backup") || !strings.Contains(err.Error(), "device") {
			t.Errorf("%s of a file that cannot be read: %v, want an *UnavailableError that names the device, and no backup", what, err)
		}
	}
	for i := range 3 {
		_, _, _, err := d.Get(t.Context(), fmt.Sprintf("/a/%03d", 90+i))
		checkDevice("get", err)
	}
	_, err = d.Range(t.Context(), db.RangeOptions{Prefix: "/a/"})
	checkDevice("list", err)
	_, err = d.Delete(t.Context(), "/a/050", revs[50])
	checkDevice("deletion", err)

	for _, undo := range restore {
		undo()
	}
	unmount()
	kv, ok, _, err := d.Get(t.Context(), "/a/091")
	if err != nil || !ok || string(kv.Value) != value {
		t.Errorf("get when the device works again: found %v, %v", ok, err)
	}
	put(t, d, "/b/2", 0, "v")
	if page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/b/", KeysOnly: true}); err != nil || len(page.KVs) != 2 {
		t.Errorf("list when the device works again: %d keys, %v; want 2", len(page.KVs), err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := datafile.Check(t.Context(), dir); err != nil {
		t.Error(err)
	}
}
