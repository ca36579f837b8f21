package db_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// Entries that index_entries lacks are found in memory, including those of a write after a failed
// transaction at the same revision, and those of an index that was built since.
func TestLatestEntriesAreFoundInMemory(t *testing.T) {
	t.Cleanup(db.SetEntries(1<<20, 1<<30)) // all rows are in the tail
	d := dbtest.Open(t)
	putIndexed(t, d, "/a/0", 0, "green", nil)
	ix := declare(t, d, "color")
	want := func(what string, ix *db.Index, value, keys string) {
		t.Helper()
		if got := keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix, Values: []string{value}}}}); got != keys {
			t.Errorf("%s: %s has %q, want %q", what, value, got, keys)
		}
	}
	want("written before the index was built", ix[0], "green", "0")
	r1 := putIndexed(t, d, "/a/1", 0, "red", ix)
	want("one row", ix[0], "red", "1")
	if err := d.FailAfter(t.Context(), "/a/2", "red", ix); !errors.Is(err, db.ErrFailedOnPurpose) {
		t.Fatal(err)
	}
	if n := d.TailRows(); n != 2 {
		t.Errorf("%d rows are in memory, want that of the failed transaction, too", n)
	}
	want("a failed transaction", ix[0], "red", "1")
	putIndexed(t, d, "/a/3", 0, "blue", ix)
	if n := d.TailRows(); n != 2 {
		t.Errorf("%d rows are in memory, want 2", n)
	}
	want("after it", ix[0], "red", "1")
	want("at its revision", ix[0], "blue", "3")
	for i := range 100 { // more than a statement names
		putIndexed(t, d, fmt.Sprintf("/a/many%02d", i), 0, "many", ix)
	}
	if got := strings.Count(keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix[0], Values: []string{"many"}}}}), "many"); got != 100 {
		t.Errorf("%d of 100 are found", got)
	}
	putIndexed(t, d, "/a/1", r1, "blue", ix)
	want("a new revision", ix[0], "red", "")
	d.WriteEntries(t)
	if n := d.TailRows(); n != 0 {
		t.Errorf("%d rows are in memory that index_entries has", n)
	}
	want("in index_entries", ix[0], "blue", "1 3")
}

// However writes succeed, fail, are copied and are dropped from memory, a read by an index finds
// the same keys as a read of all keys.
func TestLatestEntriesAreThoseOfAllKeys(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	ix := declare(t, d, "color")
	random := rand.New(rand.NewPCG(1, 2))
	colors := []string{"red", "blue", "green"}
	at, has := map[string]int64{}, map[string]string{}
	for range 1500 { // more than are kept in memory
		key, color := fmt.Sprintf("/a/%02d", random.IntN(40)), colors[random.IntN(len(colors))]
		switch random.IntN(12) {
		case 0:
			if err := d.FailAfter(t.Context(), key+"x", color, ix); !errors.Is(err, db.ErrFailedOnPurpose) {
				t.Fatal(err)
			}
		case 1:
			if at[key] != 0 {
				if _, err := d.Delete(t.Context(), key, at[key]); err != nil {
					t.Fatal(err)
				}
				delete(at, key)
				delete(has, key)
			}
		case 2:
			if random.IntN(8) == 0 {
				d.WriteEntries(t)
			}
		default:
			at[key], has[key] = putIndexed(t, d, key, at[key], color, ix), color
		}
		var keys []string
		for key, is := range has {
			if is == color {
				keys = append(keys, strings.TrimPrefix(key, "/a/"))
			}
		}
		slices.Sort(keys)
		if got, want := keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix[0], Values: []string{color}}}}), strings.Join(keys, " "); got != want {
			t.Fatalf("%s has %q, want %q", color, got, want)
		}
	}
}

// BenchmarkLatest reads one of 255 objects whose entries index_entries lacks, 14 each, with them in
// memory and without.
func BenchmarkLatest(b *testing.B) {
	b.Cleanup(db.SetEntries(1<<20, 1<<30))
	d := dbtest.Open(b)
	indexes, err := d.DeclareIndexes(b.Context(), "/a/", []string{"digest"}, func(db.KV, []*db.Index) ([]db.IndexEntry, error) { return nil, nil })
	if err != nil {
		b.Fatal(err)
	}
	for i := range 255 {
		var entries []db.IndexEntry
		for n := range 14 {
			entries = append(entries, db.IndexEntry{Index: indexes[0], Value: fmt.Sprintf("sha256:%064x", i*14+n)})
		}
		if _, err := d.Put(b.Context(), fmt.Sprintf("/a/%d", i), 0, []byte("value"), db.PutOptions{Index: entries}); err != nil {
			b.Fatal(err)
		}
	}
	for _, without := range []bool{false, true} {
		b.Run(fmt.Sprintf("Without=%t", without), func(b *testing.B) {
			if without {
				d.DropTail()
			}
			for i := 0; b.Loop(); i++ {
				page, err := d.Range(b.Context(), db.RangeOptions{Prefix: "/a/", Index: []db.IndexQuery{{Index: indexes[0], Values: []string{fmt.Sprintf("sha256:%064x", i%(255*14))}}}})
				if err != nil || len(page.KVs) != 1 {
					b.Fatal(len(page.KVs), err)
				}
			}
		})
	}
}
