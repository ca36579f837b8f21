package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// indexPages calls fn with each page of the file that belongs to an index, in which
// keys are text.
func indexPages(file []byte, fn func(page []byte)) {
	const leaf, interior = 0x0a, 0x02
	for at := 4096; at < len(file); at += 4096 {
		if page := file[at : at+4096]; page[0] == leaf || page[0] == interior {
			fn(page)
		}
	}
}

// TestDamagedIndex damages the entries of keys in the index of live keys, in ways that
// SQLite does not notice. An object that is there is not reported as gone, and
// nothing is created beside it.
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
	whole, err := os.ReadFile(filepath.Join(dir, db.FileName))
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
			if err := os.WriteFile(filepath.Join(dir, db.FileName), file, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			for i := range damaged {
				var corrupt *db.CorruptError
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

// TestMissingKeyIsMissing: in a database that is whole, a key that is not there is not
// there, and can be created: at the ends, between others, and after a deletion.
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
