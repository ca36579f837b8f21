package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// indexPages calls fn with each page of the file that belongs to an index of text keys.
func indexPages(file []byte, fn func(page []byte)) {
	const leaf, interior = 0x0a, 0x02
	for at := 4096; at < len(file); at += 4096 {
		if page := file[at : at+4096]; page[0] == leaf || page[0] == interior {
			fn(page)
		}
	}
}

// TestDamagedIndex damages the entries of keys in the index of live keys, in ways that SQLite does
// not notice. A get never reports an existing object as missing, and a create never makes a second
// one.
func TestDamagedIndex(t *testing.T) {
	t.Parallel()
	const objects = 3000 // the index has a level above its leaves
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
	if err != nil {
		t.Fatal(err)
	}
	key := func(i int) string { return fmt.Sprintf("/g/images/sha256:%048d", i) }
	err = d.Write(t.Context(), func(tx *db.Tx) error {
		for i := range objects {
			if _, err := tx.PutTx(key(i), 0, []byte("v")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, datafile.FileName))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(page []byte, key string, place int, bit byte) bool {
		at := bytes.Index(page, []byte(key))
		if at < 0 {
			return false
		}
		page[at+place] ^= bit
		return true
	}
	for name, damage := range map[string]func(page []byte, key string) bool{
		"last byte":         func(p []byte, k string) bool { return flip(p, k, len(k)-1, 4) },
		"a high bit":        func(p []byte, k string) bool { return flip(p, k, len(k)-2, 0x40) },
		"the digits' first": func(p []byte, k string) bool { return flip(p, k, 20, 1) },
		"first byte":        func(p []byte, k string) bool { return flip(p, k, 1, 0x10) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := bytes.Clone(whole)
			damaged := map[int]bool{}
			indexPages(file, func(page []byte) {
				for i := 5; i < objects; i += 11 {
					if damage(page, key(i)) {
						damaged[i] = true
					}
				}
			})
			if len(damaged) < 200 {
				t.Fatalf("%d keys are damaged, want more", len(damaged))
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, datafile.FileName), file, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			d.ForgetLiveKeys(t) // they would show the damage
			for i := range damaged {
				var corrupt *datafile.CorruptError
				_, ok, _, err := d.Get(t.Context(), key(i))
				if !ok && !errors.As(err, &corrupt) {
					t.Errorf("get of key %d: found %v, %v; want it or *CorruptError", i, ok, err)
				}
				if rev, err := d.Put(t.Context(), key(i), 0, []byte("second"), db.PutOptions{}); err == nil {
					t.Errorf("key %d was created beside itself, at revision %d", i, rev)
				} else if !ok && !errors.As(err, &corrupt) {
					t.Errorf("create of key %d: %v, want *CorruptError", i, err)
				}
				if n, err := d.QueryInt("SELECT count(*) FROM revisions NOT INDEXED WHERE rev = ? AND until IS NULL", int64(i)+2); err != nil || n != 1 {
					t.Fatalf("key %d has %d rows, %v", i, n, err)
				}
			}
		})
	}
}

// TestLostWriteOfIndex replaces a page of the index of live keys with its older version, like a
// disk that loses a write. A get never reports an object that was created in between as missing,
// and a create never makes a second one.
func TestLostWriteOfIndex(t *testing.T) {
	t.Parallel()
	const objects, apart = 300, 10 // every tenth key is written later, into pages that exist
	dir := t.TempDir()
	path := filepath.Join(dir, datafile.FileName)
	key := func(i int) string { return fmt.Sprintf("/g/images/sha256:%048d", i) }
	// write puts the chosen keys and returns the file.
	write := func(chosen func(i int) bool) []byte {
		t.Helper()
		d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Write(t.Context(), func(tx *db.Tx) error {
			for i := range objects {
				if chosen(i) {
					if _, err := tx.PutTx(key(i), 0, []byte("v")); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil { // leaves no log
			t.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	// A page of an index that has just been split lacks half of the keys.
	before := write(func(i int) bool { return i%apart != 0 })
	after := write(func(i int) bool { return i%apart == 0 })
	lost := 0
	for at := 0; at+4096 <= min(len(before), len(after)); at += 4096 {
		was, is := before[at:at+4096], after[at:at+4096]
		const leaf = 0x0a
		if was[0] == leaf && is[0] == leaf && !bytes.Equal(was, is) && bytes.Contains(was, []byte("/g/images/sha256:")) {
			copy(is, was)
			lost++
		}
	}
	if lost == 0 {
		t.Fatal("no page of the index was written twice")
	}
	if err := os.WriteFile(path, after, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.AwaitLiveKeys(t)
	hidden := 0
	for i := range objects {
		var corrupt *datafile.CorruptError
		_, ok, _, err := d.Get(t.Context(), key(i))
		if !ok {
			hidden++
		}
		if !ok && !errors.As(err, &corrupt) {
			t.Errorf("get of key %d: found %v, %v; want it or *CorruptError", i, ok, err)
		}
		if rev, err := d.Put(t.Context(), key(i), 0, []byte("second"), db.PutOptions{}); err == nil {
			t.Errorf("key %d was created beside itself, at revision %d", i, rev)
		} else if !ok && !errors.As(err, &corrupt) {
			t.Errorf("create of key %d: %v, want *CorruptError", i, err)
		}
	}
	if hidden == 0 {
		t.Error("the index has every key: the test shows nothing")
	}
}

// TestLostContents: if the row of a value is lost, the object is reported as damaged, not as
// missing.
func TestLostContents(t *testing.T) {
	t.Parallel()
	d, err := db.Open(db.Options{Dir: t.TempDir(), Logger: quietLogger})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rev := put(t, d, "/g/a", 0, "v")
	if err := d.Write(t.Context(), func(tx *db.Tx) error { return tx.ExecSQL(fmt.Sprintf("DELETE FROM contents WHERE rev = %d", rev)) }); err != nil {
		t.Fatal(err)
	}
	kv, ok, _, err := d.Get(t.Context(), "/g/a")
	var damaged *db.DamagedError
	if err != nil || !ok || !errors.As(kv.Err, &damaged) {
		t.Errorf("found %v, %v, %v; want *DamagedError", ok, kv.Err, err)
	}
}

// TestLiveKeys: liveKeys has the same keys and revisions as the table, after any writes and after a
// start during writes.
func TestLiveKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger, MaintenanceInterval: time.Hour})
	d.AwaitLiveKeys(t)
	key := func(i int) string { return fmt.Sprintf("/g/%05d", i) }
	revs := map[string]int64{}
	err := d.Write(t.Context(), func(tx *db.Tx) (err error) {
		for i := range 2500 { // more than one read returns
			if revs[key(i)], err = tx.PutTx(key(i), 0, []byte("v")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 2500; i += 50 {
		k := key(i)
		rev, err := d.Delete(t.Context(), k, revs[k])
		if err != nil {
			t.Fatal(err)
		}
		delete(revs, k)
		if i%100 == 0 {
			if revs[k] = put(t, d, k, 0, "anew"); revs[k] <= rev {
				t.Fatal("an earlier revision")
			}
		}
		k = key(i + 1)
		revs[k] = put(t, d, k, revs[k], "again")
	}
	check := func(when string) {
		t.Helper()
		for i := range 2600 {
			if rev, complete := d.LiveKey(key(i)); rev != revs[key(i)] || !complete {
				t.Fatalf("%s: %s is known at revision %d, complete %v; it is at %d", when, key(i), rev, complete, revs[key(i)])
			}
		}
	}
	check("by commits")
	d.ForgetLiveKeys(t)
	d.LearnLiveKeys(t)
	check("from the table")
}

// TestMissingKeyIsMissing: in an intact database, a get reports a missing key as missing, and a
// create succeeds: before and after all keys, between them, and after a deletion.
func TestMissingKeyIsMissing(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, quiet)
	for _, key := range []string{"/m", "/a", "/z", "/m/", "/l", "/\U0001F6A2", "/n"} {
		if _, ok, _, err := d.Get(t.Context(), key); ok || err != nil {
			t.Errorf("get %q: found %v, %v", key, ok, err)
		}
		rev := put(t, d, key, 0, "v")
		rev, err := d.Delete(t.Context(), key, rev)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, _, err := d.Get(t.Context(), key); ok || err != nil {
			t.Errorf("get %q after its deletion: found %v, %v", key, ok, err)
		}
		if put(t, d, key, 0, "again") <= rev {
			t.Error("an earlier revision")
		}
	}
}
