package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// expectNewEpoch expects that watches and lists from these revisions fail with ErrCompacted.
func expectNewEpoch(t *testing.T, d *db.DB, seen ...int64) {
	t.Helper()
	for _, rev := range seen {
		w, err := d.Watch("/", false, rev)
		if err != nil {
			t.Fatal(err)
		}
		if events, err := w.Poll(t.Context()); !errors.Is(err, db.ErrCompacted) {
			t.Errorf("a watch from revision %d of an earlier epoch, now at %d: %v, %v; want ErrCompacted", rev, d.Revision(), events, err)
		}
		w.Stop()
		if _, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/", Rev: rev}); !errors.Is(err, db.ErrCompacted) {
			t.Errorf("a list at revision %d of an earlier epoch, now at %d: %v, want ErrCompacted", rev, d.Revision(), err)
		}
	}
}

// TestRestoreTwice restores one backup several times: in place of a database that was moved away,
// into other directories as on other machines, and after many writes. A watcher of an earlier epoch
// never continues in a later one.
func TestRestoreTwice(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	saved := filepath.Join(t.TempDir(), "backup.db")
	if err := backup.Make(t.Context(), filepath.Dir(d.Path()), saved); err != nil {
		t.Fatal(err)
	}
	same := t.TempDir()
	var seen []int64
	for epoch := range 4 {
		dir := same
		if epoch%2 == 1 {
			dir = t.TempDir()
		}
		if err := backup.Restore(t.Context(), saved, dir); err != nil {
			t.Fatal(err)
		}
		r, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
		if err != nil {
			t.Fatal(err)
		}
		expectNewEpoch(t, r, seen...)
		for i := range 20 {
			seen = append(seen, put(t, r, fmt.Sprintf("/life/%d", i), 0, fmt.Sprint(epoch)))
		}
		if last := seen[len(seen)-1]; last >= 1<<53 {
			t.Errorf("revision %d: a client that reads numbers as floats would confuse it with others", last)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.Path(), filepath.Join(t.TempDir(), "moved.db")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestoreWithClockBack: the clock has gone back a year since the first restore. In the same
// directory, the revision file still has the last revision.
func TestRestoreWithClockBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), datafile.FileName)
	if err := db.Migrate(path, datafile.Migrations); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	first, err := db.BeginEpoch(path, 0, now)
	if err != nil {
		t.Fatal(err)
	}
	if behind, err := db.BeginEpoch(path, first+1000, now.Add(-365*24*time.Hour)); err != nil || behind <= first+1000 {
		t.Errorf("an epoch after revision %d begins at %d, %v", first+1000, behind, err)
	}
	if rev, err := db.BeginEpoch(path, math.MaxInt64>>1, now); err == nil {
		t.Errorf("an epoch beyond all revisions begins at %d", rev)
	}
}

// TestLostLog: the log of a killed server is moved away or cut, or an old copy replaces the
// database. The next start logs how much is lost, and clients must list again.
func TestLostLog(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, path string, old []byte){
		"moved away": func(t *testing.T, path string, _ []byte) {
			if err := os.Remove(path + "-wal"); err != nil {
				t.Fatal(err)
			}
		},
		"cut to half": func(t *testing.T, path string, _ []byte) {
			fi, err := os.Stat(path + "-wal")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path+"-wal", fi.Size()/2); err != nil {
				t.Fatal(err)
			}
		},
		"emptied": func(t *testing.T, path string, _ []byte) {
			if err := os.Truncate(path+"-wal", 0); err != nil {
				t.Fatal(err)
			}
		},
		"an older file": func(t *testing.T, path string, old []byte) {
			os.Remove(path + "-wal")
			if err := os.WriteFile(path, old, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"no file": func(t *testing.T, path string, _ []byte) {
			os.Remove(path + "-wal")
			os.Remove(path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.Open(t, quiet)
			put(t, d, "/a/0", 0, "v")
			saved := filepath.Join(t.TempDir(), "backup.db")
			if err := backup.Make(t.Context(), filepath.Dir(d.Path()), saved); err != nil {
				t.Fatal(err)
			}
			old, err := os.ReadFile(saved)
			if err != nil {
				t.Fatal(err)
			}
			var seen []int64
			for i := range 50 {
				seen = append(seen, put(t, d, fmt.Sprintf("/a/b%d", i), 0, "v"))
			}
			// The files that a killed server leaves.
			dir := t.TempDir()
			for _, name := range []string{datafile.FileName, datafile.FileName + "-wal", "revision"} {
				b, err := os.ReadFile(filepath.Join(filepath.Dir(d.Path()), name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			lose(t, filepath.Join(dir, datafile.FileName), old)
			var log bytes.Buffer
			r, err := db.Open(db.Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), "lost commits") || !strings.Contains(log.String(), fmt.Sprintf("to=%d", seen[len(seen)-1])) {
				t.Errorf("the log says %q, want that commits are lost and up to which", &log)
			}
			expectNewEpoch(t, r, seen...)
			put(t, r, "/a/new", 0, "v")
			last := r.Revision()
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			log.Reset()
			again := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if again.Revision() != last || log.Len() > 0 {
				t.Errorf("the start after that: revision %d of %d, log %q", again.Revision(), last, &log)
			}
		})
	}
}

// TestRevisionFileOfStrangers: with any content of the revision file, the database opens and its
// revisions increase.
func TestRevisionFileOfStrangers(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "text", "-5", "99999999999999999999999", "9223372036854775807", strings.Repeat("7", 1<<20), "12 13", "3\n4"} {
		dir := t.TempDir()
		d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
		rev := put(t, d, "/a/1", 0, "v")
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "revision"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		d = dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
		if next := put(t, d, "/a/2", 0, "v"); next <= rev || next > 1<<62 {
			t.Errorf("mark %.30q: revision %d after %d", content, next, rev)
		}
	}
}
