//go:build linux

package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// reserved are options as a server has them, with a short history.
func reserved(dir string, log *lockedBuffer) db.Options {
	return db.Options{
		Dir: dir, Reserve: 32 << 20, HistoryWindow: time.Millisecond, MaintenanceInterval: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
}

// fillDatabase puts values of 50 kB until one is refused, and returns how many were stored.
func fillDatabase(t *testing.T, d *db.DB, reason string) (n int) {
	t.Helper()
	return fillFurther(t, d, 0, reason)
}

// fillFurther does the same in a database that has n values.
func fillFurther(t *testing.T, d *db.DB, n int, reason string) int {
	t.Helper()
	value := bytes.Repeat([]byte("x"), 50_000)
	for ; ; n++ {
		_, err := d.Put(t.Context(), fmt.Sprintf("/a/%04d", n), 0, value, db.PutOptions{})
		var full *datafile.UnavailableError
		if errors.As(err, &full) {
			if !strings.Contains(full.Error(), reason) {
				t.Errorf("%q does not say %q", full, reason)
			}
			return n
		}
		if err != nil || n > 5000 {
			t.Fatalf("put %d: %v", n, err)
		}
	}
}

func mustDelete(t *testing.T, d *db.DB, key string) {
	t.Helper()
	kv, ok, _, err := d.Get(t.Context(), key)
	if err != nil || !ok {
		t.Fatalf("get %s: found %v, %v", key, ok, err)
	}
	if _, err := d.Delete(t.Context(), key, kv.Rev); err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
}

// TestFullDiskIsEmptiedByDeletions: on a full disk every object can be deleted and small objects
// can be updated; after that, everything can be written again.
func TestFullDiskIsEmptiedByDeletions(t *testing.T) {
	dbtest.OnSmallDisk(t, 64<<20, func(dir string) {
		var log lockedBuffer
		d := dbtest.OpenOptions(t, reserved(filepath.Join(dir, "data"), &log))
		lease := put(t, d, "/b/lease", 0, "renewed by 1")
		large := put(t, d, "/b/large", 0, strings.Repeat("x", 20_000))
		if err := d.WriteFault(); err != nil || gauge(t, d, "writable") != 1 {
			t.Fatalf("at first: %v", err)
		}
		n := fillDatabase(t, d, "disk is full")
		if n < 100 {
			t.Fatalf("only %d values fit", n)
		}
		if d.WriteFault() == nil || gauge(t, d, "writable") != 0 {
			t.Errorf("a full disk is not reported: %v, writable %v", d.WriteFault(), gauge(t, d, "writable"))
		}
		const line = `level=ERROR msg="the disk is full`
		eventually(t, "the log has "+line, func() bool { return strings.Contains(log.String(), line) })
		var full *datafile.UnavailableError
		if _, err := d.Put(t.Context(), "/b/tiny", 0, []byte("x"), db.PutOptions{}); !errors.As(err, &full) {
			t.Errorf("something was created on a full disk: %v", err)
		}
		if _, err := d.Put(t.Context(), "/b/large", large, bytes.Repeat([]byte("y"), 20_000), db.PutOptions{}); !errors.As(err, &full) {
			t.Errorf("a large update on a full disk: %v", err)
		}
		for _, expect := range []int64{0, lease + 1} {
			if _, err := d.Put(t.Context(), "/b/lease", expect, []byte("x"), db.PutOptions{}); !errors.Is(err, db.ErrConflict) {
				t.Errorf("a key at revision %d that is expected at %d: %v, want ErrConflict", lease, expect, err)
			}
		}
		put(t, d, "/b/lease", lease, "renewed by 2")
		for i := range n {
			mustDelete(t, d, fmt.Sprintf("/a/%04d", i))
		}
		eventually(t, "being writable again", func() bool {
			_, err := d.Put(t.Context(), "/a/again", 0, []byte("x"), db.PutOptions{})
			return err == nil
		})
		if err := d.WriteFault(); err != nil || gauge(t, d, "writable") != 1 {
			t.Errorf("after the deletions: %v", err)
		}
		if fi, err := os.Stat(filepath.Join(dir, "data", "reserve")); err != nil || fi.Size() != 16<<20 {
			t.Errorf("the reserve is not whole again: %v, %v", fi, err)
		}
		// Writes succeed as soon as there is some room. They may fill the disk once more before the
		// history is compacted.
		again := 0
		eventually(t, fmt.Sprintf("that a quarter of the %d values fits again", n), func() bool {
			again = fillFurther(t, d, again, "disk is full")
			return again >= n/4
		})
	})
}

// TestNearlyFullDiskIsWarnedAbout: the log has a warning at the default level while writes still
// succeed.
func TestNearlyFullDiskIsWarnedAbout(t *testing.T) {
	dbtest.OnSmallDisk(t, 64<<20, func(dir string) {
		var log lockedBuffer
		o := reserved(filepath.Join(dir, "data"), &log)
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d := dbtest.OpenOptions(t, o)
		if log.String() != "" {
			t.Errorf("with room:\n%s", &log)
		}
		ballast := dbtest.FillDisk(t, dir)
		fi, err := os.Stat(ballast)
		if err == nil {
			err = os.Truncate(ballast, fi.Size()-2<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the warning", func() bool {
			return strings.Contains(log.String(), `level=WARN msg="there is little room left for the database"`)
		})
		put(t, d, "/a", 0, "x")
	})
}

// TestStartOnFullDisk: on a disk that is full to the last byte, a database can be opened, read, and
// its objects deleted, after its process has ended or was killed.
func TestStartOnFullDisk(t *testing.T) {
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			dbtest.OnSmallDisk(t, 64<<20, func(dir string) {
				var log lockedBuffer
				first, data := filepath.Join(t.TempDir(), "first"), filepath.Join(dir, "data")
				opts := reserved(first, &log)
				d, err := db.Open(opts)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 100 {
					put(t, d, fmt.Sprintf("/a/%04d", i), 0, strings.Repeat("x", 10_000))
				}
				if how == "killed" { // what a killed process leaves: the files of an open database
					copyDir(t, first, data)
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				if how == "closed" {
					copyDir(t, first, data)
				}
				// The reserve of this disk is a quarter of it.
				if err := os.Truncate(filepath.Join(data, "reserve"), 0); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(data, "reserve"), make([]byte, 16<<20), 0o600); err != nil {
					t.Fatal(err)
				}
				dbtest.FillDisk(t, dir)

				opts.Dir = data
				d = dbtest.OpenOptions(t, opts)
				if d.WriteFault() == nil {
					t.Error("a start on a full disk does not report that")
				}
				for i := range 100 {
					mustDelete(t, d, fmt.Sprintf("/a/%04d", i))
				}
				var full *datafile.UnavailableError
				if _, err := d.Put(t.Context(), "/a/new", 0, []byte("x"), db.PutOptions{}); !errors.As(err, &full) {
					t.Errorf("something was created on a full disk: %v", err)
				}
			})
		})
	}
}

// TestStartWithNothingToSpare: there is no reserve, and the disk is full to the last byte. The
// files of a killed process can still be read.
func TestStartWithNothingToSpare(t *testing.T) {
	dbtest.OnSmallDisk(t, 64<<20, func(dir string) {
		var log lockedBuffer
		first, data := filepath.Join(t.TempDir(), "first"), filepath.Join(dir, "data")
		d := dbtest.OpenOptions(t, reserved(first, &log))
		put(t, d, "/a/1", 0, "v")
		copyDir(t, first, data)
		if err := os.Truncate(filepath.Join(data, "reserve"), 0); err != nil {
			t.Fatal(err)
		}
		dbtest.FillDisk(t, dir)
		second, err := db.Open(reserved(data, &log))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, _, err := second.Get(t.Context(), "/a/1"); err != nil || !ok {
			t.Errorf("get: found %v, %v", ok, err)
		}
		if second.WriteFault() == nil {
			t.Error("a start on a full disk does not report that")
		}
		_ = second.Close() // the log cannot be copied
	})
}

// copyDir copies the files of a directory.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestDeletionsLeaveRoomForCompaction: when the reserve is almost used up, deletions are refused,
// because only compaction can make room then.
func TestDeletionsLeaveRoomForCompaction(t *testing.T) {
	dbtest.OnSmallDisk(t, 64<<20, func(dir string) {
		var log lockedBuffer
		// the ballast takes half of the reserve's space, so that nothing else can
		ballast := filepath.Join(dir, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		d := dbtest.OpenOptions(t, reserved(filepath.Join(dir, "data"), &log))
		fillDatabase(t, d, "disk is full")
		// A checkpoint would need the ballast's space.
		defer d.HoldCheckpoints()()
		if err := os.Truncate(filepath.Join(dir, "data", "reserve"), 0); err != nil {
			// as if other programs had used it up
			t.Fatal(err)
		}
		dbtest.FillDisk(t, dir)
		// A deletion may share a commit that began before the disk was full.
		var full *datafile.UnavailableError
		var key string
		var rev int64
		for i := 0; full == nil; i++ {
			key = fmt.Sprintf("/a/%04d", i)
			kv, _, _, err := d.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			rev = kv.Rev
			if _, err := d.Delete(t.Context(), key, rev); !errors.As(err, &full) && (err != nil || i == 3) {
				t.Fatalf("deletion %d took the space that compaction needs: %v", i, err)
			}
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a deletion", func() bool {
			_, err := d.Delete(t.Context(), key, rev)
			return err == nil
		})
	})
}

// TestQuota: at the quota, growing writes are refused with an error that names the quota, and
// deletions succeed. Once the deleted objects have left the file, all writes succeed.
func TestQuota(t *testing.T) {
	var log lockedBuffer
	o := reserved(t.TempDir(), &log)
	o.Quota = 4 << 20
	d := dbtest.OpenOptions(t, o)
	lease := put(t, d, "/b/lease", 0, "renewed by 1")
	n := fillDatabase(t, d, "--quota-backend-bytes")
	if n < 60 || n > 100 {
		t.Errorf("%d values of 50 kB fit into 4 MiB", n)
	}
	if fault := d.WriteFault(); fault == nil || gauge(t, d, "writable") != 0 || gauge(t, d, "quota_bytes") != 4<<20 {
		t.Errorf("the full quota is not reported: %v", fault)
	}
	put(t, d, "/b/lease", lease, "renewed by 2")
	for i := range n {
		mustDelete(t, d, fmt.Sprintf("/a/%04d", i))
	}
	eventually(t, "being writable again", func() bool {
		_, err := d.Put(t.Context(), "/a/again", 0, make([]byte, 50_000), db.PutOptions{})
		return err == nil
	})
	if err := d.WriteFault(); err != nil {
		t.Errorf("after the deletions: %v", err)
	}
	if s := log.String(); !strings.Contains(s, `level=WARN msg="there is little room left for the database"`) || !strings.Contains(s, "reached its quota") || !strings.Contains(s, "below its quota again") {
		t.Errorf("the log does not say it:\n%s", s)
	}
}

func TestNoReserveByDefault(t *testing.T) {
	d := dbtest.Open(t)
	put(t, d, "/a/1", 0, "v")
	if _, err := os.Stat(filepath.Join(filepath.Dir(d.Path()), "reserve")); !os.IsNotExist(err) {
		t.Errorf("a reserve without the option: %v", err)
	}
}
