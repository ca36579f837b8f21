package db_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// TestBackupAndRestore backs up while writers go on, and restores.
func TestBackupAndRestore(t *testing.T) {
	d := dbtest.Open(t, quiet)
	ctx := t.Context()
	dir := filepath.Dir(d.Path())
	// Each writer counts up two keys in one write: a backup must never show them apart.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := d.Write(context.Background(), func(t *db.Tx) error {
					for _, side := range []string{"left", "right"} {
						if _, err := t.PutTx(fmt.Sprintf("/w%d/%s-%06d", w, side, i), 0, []byte(strings.Repeat("x", 2000))); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for d.Revision() < 500 {
	}
	before := d.Revision()
	file := filepath.Join(t.TempDir(), "backup.db")
	if err := db.Backup(ctx, dir, file); err != nil {
		t.Fatal(err)
	}
	after := d.Revision()
	if err := db.Backup(ctx, dir, file); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second backup to the same file: %v, want a refusal", err)
	}
	var stream bytes.Buffer
	if err := db.BackupTo(ctx, dir, &stream); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	if after == before {
		t.Error("nobody wrote during the backup: the test shows nothing")
	}
	streamed := filepath.Join(t.TempDir(), "stream.db")
	if err := os.WriteFile(streamed, stream.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{file, streamed} {
		to := filepath.Join(t.TempDir(), "new")
		if err := db.Restore(ctx, file, to); err != nil {
			t.Fatal(err)
		}
		r := dbtest.OpenOptions(t, db.Options{Dir: to})
		sides := map[string]int{}
		o := db.RangeOptions{Prefix: "/", KeysOnly: true}
		for {
			page, err := r.Range(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range page.KVs {
				sides[strings.NewReplacer("left", "", "right", "").Replace(kv.Key)]++
			}
			if !page.More {
				break
			}
			o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
		}
		if len(sides) == 0 {
			t.Error("the restored database is empty")
		}
		for key, n := range sides {
			if n != 2 {
				t.Errorf("%s: half a write was backed up", key)
			}
		}
		// Whoever knew the lost future starts again.
		for _, rev := range []int64{before, d.Revision(), d.Revision() + 1000000} {
			w, err := r.Watch("/", false, rev)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Poll(ctx); !errors.Is(err, db.ErrCompacted) {
				t.Errorf("watch of the restored database from %d: %v, want ErrCompacted", rev, err)
			}
			w.Stop()
			if _, err := r.Range(ctx, db.RangeOptions{Prefix: "/", Rev: rev}); !errors.Is(err, db.ErrCompacted) {
				t.Errorf("list of the restored database at %d: %v, want ErrCompacted", rev, err)
			}
		}
		put(t, r, "/new", 0, "v")
	}
}

func TestRestoreRefuses(t *testing.T) {
	ctx := t.Context()
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, strings.Repeat("x", 20000))
	good := filepath.Join(t.TempDir(), "good.db")
	if err := db.Backup(ctx, filepath.Dir(d.Path()), good); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	file := func(b []byte) string {
		f := filepath.Join(t.TempDir(), "bad.db")
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	flipped := bytes.Replace(content, []byte("xxxxxxxx"), []byte("xxxyxxxx"), 1)
	newer := filepath.Join(t.TempDir(), datafile.FileName)
	if err := db.Migrate(newer, append(append([]string{}, datafile.Migrations...), "CREATE TABLE future (x);")); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), datafile.FileName)
	if err := db.Migrate(foreign, []string{"CREATE TABLE other (x);"}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, file, dir, want string
	}{
		{"missing", "no-such-file", t.TempDir(), "no-such-file"},
		{"directory", t.TempDir(), t.TempDir(), "no regular file"},
		{"text", file([]byte("this is no database at all, only text")), t.TempDir(), "not a database"},
		{"empty", file(nil), t.TempDir(), "empty"},
		{"cut short", file(content[:len(content)/2]), t.TempDir(), ""},
		{"flipped bit", file(flipped), t.TempDir(), "checksum"},
		{"newer", newer, t.TempDir(), "newer release"},
		{"foreign", foreign, t.TempDir(), "no backup of this program"},
		{"directory in use", good, filepath.Dir(d.Path()), "in use"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := db.Restore(ctx, tt.file, tt.dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
			if strings.Contains(fmt.Sprint(err), "stop the server") {
				t.Errorf("%v: what to do is that of a server's database", err)
			}
			if tt.name == "directory in use" {
				return
			}
			if left, _ := filepath.Glob(filepath.Join(tt.dir, "*")); len(left) > 2 { // the lock and the mark
				t.Errorf("left behind: %v", left)
			}
		})
	}
	to := t.TempDir()
	if err := db.Restore(ctx, good, to); err != nil {
		t.Fatal(err)
	}
	if err := db.Restore(ctx, good, to); err == nil || !strings.Contains(err.Error(), "has a database") {
		t.Errorf("restore over a database: %v, want a refusal", err)
	}
	if err := db.Backup(ctx, t.TempDir(), filepath.Join(t.TempDir(), "x.db")); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("backup of an empty directory: %v", err)
	}
}

// TestRestoreOfAFileOfOthers: a backup brings its role bindings, so it must be from nobody but the user or root.
func TestRestoreOfAFileOfOthers(t *testing.T) {
	d := dbtest.Open(t, quiet)
	file := filepath.Join(t.TempDir(), "backup.db")
	if err := db.Backup(t.Context(), filepath.Dir(d.Path()), file); err != nil {
		t.Fatal(err)
	}
	refuses := func(change error, problem string) {
		t.Helper()
		if change != nil {
			t.Fatal(change)
		}
		to := filepath.Join(t.TempDir(), "new")
		var refused *trusted.Error
		if err := db.Restore(t.Context(), file, to); !errors.As(err, &refused) || !strings.Contains(refused.Problem, problem) {
			t.Errorf("%v, want a refusal with %q", err, problem)
		}
		if _, err := os.Stat(to); err == nil {
			t.Error("a data directory was made")
		}
	}
	refuses(os.Chmod(file, 0o602), "every user can write it")
	if os.Geteuid() == 0 {
		refuses(errors.Join(os.Chmod(file, 0o600), os.Chown(file, 4242, 4242)), "another user")
	}
}

// A folder that another user made beside a backup does not hinder it.
func TestPartialOfAnotherUser(t *testing.T) {
	d := dbtest.Open(t, quiet)
	folder := t.TempDir()
	planted := filepath.Join(folder, ".tidewaiter-partial-planted")
	if err := errors.Join(os.Mkdir(planted, 0o700), os.Chmod(planted, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := db.Backup(t.Context(), filepath.Dir(d.Path()), filepath.Join(folder, "backup.db")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(planted); err != nil {
		t.Errorf("what others can write was touched: %v", err)
	}
}

// TestRestoreBesideALog: SQLite applies the log it finds beside a file, also one
// that was left by another database.
func TestRestoreBesideALog(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	backup := filepath.Join(t.TempDir(), "backup.db")
	if err := db.Backup(t.Context(), filepath.Dir(d.Path()), backup); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/a/2", 0, "v")
	log, err := os.ReadFile(d.Path() + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := os.WriteFile(filepath.Join(to, datafile.FileName+"-wal"), log, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := db.Restore(t.Context(), backup, to); err == nil || !strings.Contains(err.Error(), "has a database") {
		t.Errorf("restore beside the log of a database that was moved away: %v, want a refusal", err)
	}
	if err := db.Restore(t.Context(), d.Path(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no backup") {
		t.Errorf("restore of a database without its log: %v, want a refusal", err)
	}
}

// A stream whose reader goes away ends the process: no copy may be left.
func TestBackupToLeavesNothing(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	dir := filepath.Dir(d.Path())
	err := db.BackupTo(t.Context(), dir, writerFunc(func(b []byte) (int, error) {
		if left, _ := filepath.Glob(filepath.Join(dir, "backup-*")); len(left) > 0 {
			t.Errorf("there are %v while the reader is waited for", left)
		}
		return len(b), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A look at what is not a database says so, and names the file.
func TestStatsOfDamage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, datafile.FileName), bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := db.ReadStats(t.Context(), dir)
	for _, err := range []error{err, db.Check(t.Context(), dir), db.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "x.db"))} {
		var corrupt *datafile.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Path != filepath.Join(dir, datafile.FileName) {
			t.Errorf("%v, want a *CorruptError", err)
		}
	}
}

// A look at a directory without a database makes none.
func TestCheckOfNothing(t *testing.T) {
	dir := t.TempDir()
	if err := db.Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("check of an empty directory: %v", err)
	}
	if made, _ := os.ReadDir(dir); len(made) > 0 {
		t.Errorf("the check made %v", made)
	}
}
