package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

var quietLogger = slog.New(slog.DiscardHandler)

func quiet(o *db.Options) { o.Logger = quietLogger }

// TestFull fills the database up to its page limit, and then makes space.
func TestFull(t *testing.T) {
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.MaxPageCount = 500; o.MaintenanceInterval = 5 * time.Millisecond })
	value := strings.Repeat("x", 10000)
	var stored []int64
	var full *datafile.UnavailableError
	for i := 0; ; i++ {
		rev, err := d.Put(t.Context(), fmt.Sprintf("/a/%04d", i), 0, []byte(value), db.PutOptions{})
		if errors.As(err, &full) {
			break
		}
		if err != nil || i > 1000 {
			t.Fatalf("put %d: %v", i, err)
		}
		stored = append(stored, rev)
	}
	if !strings.Contains(full.Error(), "full") {
		t.Errorf("message %q does not say that the disk is full", full)
	}
	rev := d.Revision()
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", KeysOnly: true})
	if err != nil || len(page.KVs) != len(stored) {
		t.Errorf("list on a full disk: %d keys of %d, %v", len(page.KVs), len(stored), err)
	}
	if d.Revision() != rev || rev != stored[len(stored)-1] {
		t.Errorf("failed writes moved the revision: %d, last stored %d", d.Revision(), stored[len(stored)-1])
	}
	// There is space again: the next write succeeds without any other action.
	if err := d.Write(t.Context(), func(t *db.Tx) error { return t.ExecSQL("PRAGMA max_page_count = 100000") }); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/a/after", 0, value)
}

// failingEnv is set in the process that TestFailingWrites starts for itself.
const failingEnv = "TIDEWAITER_TEST_FAILING_WRITES"

// TestFailingWrites makes the kernel refuse to let files grow (EFBIG), which SQLite reports as a
// failing device, while writers and readers run; then it lifts the limit. The limit holds for all
// files of a process, also for those of `go test`, so the test starts its own process.
func TestFailingWrites(t *testing.T) {
	if os.Getenv(failingEnv) == "" {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFailingWrites$", "-test.v")
		cmd.Env = append(os.Environ(), failingEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestFailingWrites") {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // or the first refusal ends the process
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.MaintenanceInterval = time.Millisecond })
	big := strings.Repeat("x", 50000)
	for i := range 20 {
		put(t, d, fmt.Sprintf("/a/%d", i), 0, big)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		limit := before
		limit.Cur = 100000 // below what the log already has
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		rev := d.Revision()
		for i := range 5 {
			_, err := d.Put(t.Context(), fmt.Sprintf("/failed/%d-%d", round, i), 0, []byte(big), db.PutOptions{})
			var unavailable *datafile.UnavailableError
			if !errors.As(err, &unavailable) {
				t.Errorf("write on a failing device: %v, want *UnavailableError", err)
			}
		}
		kv, ok, _, err := d.Get(t.Context(), "/a/7")
		if err != nil || !ok || string(kv.Value) != big {
			t.Errorf("get while writes fail: found %v, %v", ok, err)
		}
		if d.Revision() != rev {
			t.Errorf("failed writes moved the revision from %d to %d", rev, d.Revision())
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
		put(t, d, fmt.Sprintf("/a/after-%d", round), 0, big)
	}
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/failed/"})
	if err != nil || len(page.KVs) != 0 {
		t.Errorf("failed writes are there: %d keys, %v", len(page.KVs), err)
	}
}

// TestDamagedValue: a flipped bit in one value affects only that value.
func TestDamagedValue(t *testing.T) {
	d, err := db.Open(db.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	start := d.Revision()
	for _, k := range []string{"/a/1", "/a/2", "/a/3"} {
		put(t, d, k, 0, "value of "+k)
	}
	dbtest.Damage(t, d, "/a/2")
	var damaged *db.DamagedError
	kv, ok, _, err := d.Get(t.Context(), "/a/2")
	if err != nil || !ok || !errors.As(kv.Err, &damaged) || damaged.Key != "/a/2" || kv.Value != nil {
		t.Errorf("get: %+v, found %v, %v; want a *DamagedError", kv, ok, err)
	}
	for _, keysFirst := range []bool{false, true} {
		page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", KeysOnly: keysFirst})
		if err != nil || len(page.KVs) != 3 {
			t.Fatalf("list: %d keys, %v", len(page.KVs), err)
		}
		for read := 0; keysFirst && read < len(page.KVs); {
			n, err := d.Values(t.Context(), page.Rev, page.KVs[read:], len("value of /a/1"))
			if want := 1 + read; n != want || err != nil { // as many as fill the bytes
				t.Fatalf("values from the %d. key: %d, %v, want %d", read+1, n, err, want)
			}
			read += n
		}
		for _, kv := range page.KVs {
			if bad := kv.Err != nil; bad != (kv.Key == "/a/2") || !bad && string(kv.Value) != "value of "+kv.Key {
				t.Errorf("%s: %q, %v", kv.Key, kv.Value, kv.Err)
			}
		}
	}
	dir := filepath.Dir(d.Path())
	d.Close()
	if err := datafile.Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "/a/2") {
		t.Errorf("check: %v, want it to name the key", err)
	}
	d, err = db.Open(db.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w, err := d.Watch("/a/", false, start) // no longer in memory
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	events, err := w.Poll(t.Context())
	if err != nil || len(events) != 3 {
		t.Fatalf("watch from before: %d events, %v; want those of all keys", len(events), err)
	}
	for _, e := range events {
		if is := e.Key == "/a/2"; is != errors.As(e.Err, &damaged) || is != (e.Value == nil) {
			t.Errorf("watch from before: %s is %q, %v", e.Key, e.Value, e.Err)
		}
	}
}

// TestDamagedFile overwrites parts of the file. Open or a read fails with an error that names the
// file, and no read returns wrong data without an error.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		put(t, d, fmt.Sprintf("/a/%04d", i), 0, strings.Repeat(fmt.Sprintf("%04d ", i), 400))
	}
	d.Close()
	whole, err := os.ReadFile(filepath.Join(dir, datafile.FileName))
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	found := 0
	for n := 0; n < len(whole)/page; n += 1 + n/4 { // the first pages all, then fewer
		t.Run(fmt.Sprintf("page=%d", n+1), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, datafile.FileName)
			bad := bytes.Clone(whole)
			for i := n * page; i < n*page+200; i++ {
				bad[i] ^= 0xff
			}
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := readAll(t, dir); err != nil {
				found++
				if !strings.Contains(err.Error(), path) {
					t.Errorf("error %q does not name the file", err)
				}
				var corrupt *datafile.CorruptError
				var damaged *db.DamagedError
				if !errors.As(err, &corrupt) && !errors.As(err, &damaged) {
					t.Errorf("error %T: %v", err, err)
				}
			} else if err := datafile.Check(t.Context(), dir); err == nil {
				t.Error("neither reading nor Check met the damage")
			}
		})
	}
	if found < 5 {
		t.Errorf("reading met damage in %d pages only", found)
	}
}

// TestMissingKeys removes a key from the index of live keys, as a flipped bit in its page can.
// SQLite does not detect that; a list must.
func TestMissingKeys(t *testing.T) {
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		put(t, d, fmt.Sprintf("/a/%d", i), 0, "v")
	}
	root, err := d.QueryInt("SELECT rootpage FROM sqlite_schema WHERE name = 'live'")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	file, err := os.OpenFile(d.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const lowCells = 4 // the low byte of the number of cells in a page
	if _, err := file.WriteAt([]byte{4}, (root-1)*4096+lowCells); err != nil {
		t.Fatal(err)
	}
	if d, err = db.Open(db.Options{Dir: dir, Logger: quietLogger}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, limit := range []int{0, 2, 4} {
		o := db.RangeOptions{Prefix: "/a/", Limit: limit}
		for {
			page, err := d.Range(t.Context(), o)
			var corrupt *datafile.CorruptError
			if errors.As(err, &corrupt) {
				break
			}
			if err != nil || !page.More {
				t.Fatalf("limit %d: a list that lacks a key ends with %v, want *CorruptError", limit, err)
			}
			o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
		}
	}
}

// TestKeysAreCompacted: keys that compaction removed between the read of a page and its count are
// not reported as missing.
func TestKeysAreCompacted(t *testing.T) {
	d := dbtest.Open(t)
	var revs []int64
	for i := range 5 {
		revs = append(revs, put(t, d, fmt.Sprintf("/a/%d", i), 0, "v"))
	}
	first, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Delete(t.Context(), "/a/4", revs[4]); err != nil {
		t.Fatal(err)
	}
	next := db.RangeOptions{Prefix: "/a/", From: "/a/1\x00", Rev: first.Rev}
	lacking := db.Page{Rev: first.Rev, KVs: []db.KV{{Key: "/a/2"}, {Key: "/a/3"}}}
	var corrupt *datafile.CorruptError
	if _, err := d.Remaining(next, lacking); !errors.As(err, &corrupt) {
		t.Errorf("a page that lacks a key: %v, want *CorruptError", err)
	}
	if err := d.Compact(t.Context(), d.Revision()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Remaining(next, lacking); !errors.Is(err, db.ErrCompacted) {
		t.Errorf("a page that lacks a key which was compacted: %v, want ErrCompacted", err)
	}
}

// readAll opens a database and reads all of it. Values that it reads without an error must be those
// that TestDamagedFile wrote.
func readAll(t *testing.T, dir string) error {
	d, err := db.Open(db.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer d.Close()
	for i := range 300 {
		key := fmt.Sprintf("/a/%04d", i)
		kv, ok, _, err := d.Get(t.Context(), key)
		if err != nil {
			return err
		}
		if kv.Err != nil {
			return kv.Err
		}
		if ok && string(kv.Value) != strings.Repeat(fmt.Sprintf("%04d ", i), 400) {
			t.Errorf("%s has another value, and no error", key)
		}
	}
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/"})
	for _, kv := range page.KVs {
		if kv.Err != nil {
			return kv.Err
		}
	}
	return err
}
