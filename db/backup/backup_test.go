package backup_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

func TestRestoreRefuses(t *testing.T) {
	ctx := t.Context()
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, strings.Repeat("x", 20000))
	good := filepath.Join(t.TempDir(), "good.db")
	if err := backup.Make(ctx, filepath.Dir(d.Path()), good); err != nil {
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
	if err := migrate(newer, append(append([]string{}, datafile.Migrations...), "CREATE TABLE future (x);")); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), datafile.FileName)
	if err := migrate(foreign, []string{"CREATE TABLE other (x);"}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, file, dir, want string
	}{
		{"missing", "no-such-file", t.TempDir(), "no-such-file"},
		{"directory", t.TempDir(), t.TempDir(), "not a regular file"},
		{"text", file([]byte("this is no database at all, only text")), t.TempDir(), "not a database"},
		{"empty", file(nil), t.TempDir(), "empty"},
		{"cut short", file(content[:len(content)/2]), t.TempDir(), ""},
		{"flipped bit", file(flipped), t.TempDir(), "checksum"},
		{"newer", newer, t.TempDir(), "newer release"},
		{"foreign", foreign, t.TempDir(), "not a backup of this program"},
		{"directory in use", good, filepath.Dir(d.Path()), "in use"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := backup.Restore(ctx, tt.file, tt.dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
			if strings.Contains(fmt.Sprint(err), "stop the server") {
				t.Errorf("%v: the advice is the one for a server's database", err)
			}
			if tt.name == "directory in use" {
				return
			}
			if left, _ := filepath.Glob(filepath.Join(tt.dir, "*")); len(left) > 2 {
				// the lock and the revision file
				t.Errorf("left behind: %v", left)
			}
		})
	}
	to := t.TempDir()
	if err := backup.Restore(ctx, good, to); err != nil {
		t.Fatal(err)
	}
	if err := backup.Restore(ctx, good, to); err == nil || !strings.Contains(err.Error(), "has a database") {
		t.Errorf("restore over a database: %v, want a refusal", err)
	}
	if err := backup.Make(ctx, t.TempDir(), filepath.Join(t.TempDir(), "x.db")); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("backup of an empty directory: %v", err)
	}
}

// TestRestoreOfAFileOfOthers: a backup contains role bindings, so only the user or root may own or
// write it.
func TestRestoreOfAFileOfOthers(t *testing.T) {
	d := dbtest.Open(t, quiet)
	file := filepath.Join(t.TempDir(), "backup.db")
	if err := backup.Make(t.Context(), filepath.Dir(d.Path()), file); err != nil {
		t.Fatal(err)
	}
	refuses := func(change error, problem string) {
		t.Helper()
		if change != nil {
			t.Fatal(change)
		}
		to := filepath.Join(t.TempDir(), "new")
		var refused *trusted.Error
		if err := backup.Restore(t.Context(), file, to); !errors.As(err, &refused) || !strings.Contains(refused.Problem, problem) {
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

// TestPartialOfAnotherUser: a folder that another user made beside a backup does not prevent the
// backup.
func TestPartialOfAnotherUser(t *testing.T) {
	d := dbtest.Open(t, quiet)
	folder := t.TempDir()
	planted := filepath.Join(folder, ".tidewaiter-partial-planted")
	if err := errors.Join(os.Mkdir(planted, 0o700), os.Chmod(planted, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := backup.Make(t.Context(), filepath.Dir(d.Path()), filepath.Join(folder, "backup.db")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(planted); err != nil {
		t.Errorf("a folder that others can write was removed: %v", err)
	}
}

// TestRestoreBesideALog: SQLite applies the log that it finds beside a file, even if another
// database left it. So Restore refuses.
func TestRestoreBesideALog(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	saved := filepath.Join(t.TempDir(), "backup.db")
	if err := backup.Make(t.Context(), filepath.Dir(d.Path()), saved); err != nil {
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
	if err := backup.Restore(t.Context(), saved, to); err == nil || !strings.Contains(err.Error(), "has a database") {
		t.Errorf("restore beside the log of a database that was moved away: %v, want a refusal", err)
	}
	if err := backup.Restore(t.Context(), d.Path(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a backup") {
		t.Errorf("restore of a database without its log: %v, want a refusal", err)
	}
}

// TestBackupToLeavesNothing: if the reader of a stream goes away, the process ends, and no copy may
// be left.
func TestBackupToLeavesNothing(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	dir := filepath.Dir(d.Path())
	err := backup.Stream(t.Context(), dir, writerFunc(func(b []byte) (int, error) {
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

// TestStatsOfDamage: ReadStats of a file that is not a database fails with an error that names the
// file.
func TestStatsOfDamage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, datafile.FileName), bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := datafile.ReadStats(t.Context(), dir)
	for _, err := range []error{err, datafile.Check(t.Context(), dir), backup.Make(t.Context(), dir, filepath.Join(t.TempDir(), "x.db"))} {
		var corrupt *datafile.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Path != filepath.Join(dir, datafile.FileName) {
			t.Errorf("%v, want a *CorruptError", err)
		}
	}
}

// TestCheckOfNothing: Check does not create a database.
func TestCheckOfNothing(t *testing.T) {
	dir := t.TempDir()
	if err := datafile.Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("check of an empty directory: %v", err)
	}
	if made, _ := os.ReadDir(dir); len(made) > 0 {
		t.Errorf("the check made %v", made)
	}
}
