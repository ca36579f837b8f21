package db_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestDamagedLog flips bits in the log that a killed process leaves. The next start has every
// acknowledged change, or fails. Only damage to the last commit looks like a commit that was cut
// off.
func TestDamagedLog(t *testing.T) {
	from := t.TempDir()
	d := dbtest.OpenOptions(t, db.Options{Dir: from, Logger: quietLogger})
	const keys = 40
	for i := range keys {
		put(t, d, fmt.Sprintf("/a/%04d", i), 0, strings.Repeat("x", 1000))
	}
	last := d.Revision()
	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	main, log := read(d.Path()), read(d.Path()+"-wal")
	open := func(log []byte) (rev int64, err error) {
		t.Helper()
		dir := t.TempDir()
		for name, b := range map[string][]byte{datafile.FileName: main, datafile.FileName + "-wal": log} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, statsErr := datafile.ReadStats(t.Context(), dir)
		opened, err := db.Open(db.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		var corrupt *datafile.CorruptError
		if errors.As(statsErr, &corrupt) != errors.As(err, &corrupt) {
			t.Errorf("ReadStats returns %v, a start %v", statsErr, err)
		}
		if err != nil {
			return 0, err
		}
		defer opened.Close()
		return opened.Revision(), nil
	}
	if rev, err := open(log); err != nil || rev != last {
		t.Fatalf("whole: revision %d of %d, %v", rev, last, err)
	}
	const frame = 24 + 4096
	frames := (len(log) - 32) / frame
	for _, at := range []int{0, 9, 17, 25} { // magic, page size, salt, checksum
		flipped := bytes.Clone(log)
		flipped[at] ^= 4
		checkRefused(t, fmt.Sprintf("header, byte %d", at), "header", func() error { _, err := open(flipped); return err })
	}
	for n := 1; n <= frames; n += 1 + frames/25 {
		for _, at := range []int{2, 5, 9, 17, 100} { // page, commit, salt, checksum, content
			flipped := bytes.Clone(log)
			flipped[32+(n-1)*frame+at] ^= 4
			rev, err := open(flipped)
			if err == nil && rev >= last-1 {
				continue
			}
			checkRefused(t, fmt.Sprintf("frame %d of %d, byte %d, revision %d of %d", n, frames, at, rev, last), fmt.Sprintf("frame %d,", n), func() error { return err })
		}
	}
	// The machine crashed before the end was written.
	for cut := len(log) - 1; cut > 0; cut -= len(log)/50 + 1 {
		torn := log[:cut]
		if _, err := open(torn); err != nil {
			t.Errorf("cut after %d of %d bytes: %v", cut, len(log), err)
		}
	}
	// SQLite has restarted the log at its front, so its end is from an earlier log.
	shell, err := sql.Open("sqlite3", "file:"+d.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	if _, err := shell.Exec("PRAGMA wal_checkpoint(RESTART)"); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/a/new", 0, "v")
	main, log = read(d.Path()), read(d.Path()+"-wal")
	if rev, err := open(log); err != nil || rev != d.Revision() || (len(log)-32)/frame != frames {
		t.Errorf("a log begun again, of %d frames: revision %d of %d, %v", (len(log)-32)/frame, rev, d.Revision(), err)
	}
}

func checkRefused(t *testing.T, what, want string, open func() error) {
	t.Helper()
	err := open()
	var corrupt *datafile.CorruptError
	if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want a *CorruptError with %q", what, err, want)
	}
}
