package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// color is the index of these tests: the value up to its first space.
func color(kv db.KV, indexes []*db.Index) (entries []db.IndexEntry, err error) {
	c, _, _ := strings.Cut(string(kv.Value), " ")
	if c == "bad" {
		return nil, errors.New("no color")
	}
	for _, ix := range indexes {
		entries = append(entries, db.IndexEntry{Index: ix, Value: c})
	}
	return entries, nil
}

func declare(t testing.TB, d *db.DB, names ...string) []*db.Index {
	t.Helper()
	indexes, err := d.DeclareIndexes(t.Context(), "/a/", names, color)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for _, ix := range indexes {
		for !ix.Ready() {
			if time.Now().After(deadline) {
				t.Fatalf("index %s is not built in time", ix.Name)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return indexes
}

func putIndexed(t testing.TB, d *db.DB, key string, expect int64, value string, indexes []*db.Index) int64 {
	t.Helper()
	entries, _ := color(db.KV{Value: []byte(value)}, indexes)
	rev, err := d.Put(t.Context(), key, expect, []byte(value), db.PutOptions{Index: entries})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func keysOf(t testing.TB, d *db.DB, o db.RangeOptions) string {
	t.Helper()
	o.Prefix = "/a/"
	var keys []string
	for {
		page, err := d.Range(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range page.KVs {
			keys = append(keys, strings.TrimPrefix(kv.Key, "/a/"))
		}
		if !page.More {
			return strings.Join(keys, " ")
		}
		o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
	}
}

func TestIndex(t *testing.T) {
	d := dbtest.Open(t)
	ix := declare(t, d, "color")
	if !ix[0].Ready() {
		t.Error("an index over nothing is not ready at once")
	}
	r1 := putIndexed(t, d, "/a/1", 0, "red", ix)
	putIndexed(t, d, "/a/2", 0, "blue", ix)
	putIndexed(t, d, "/a/3", 0, "red wine", ix)
	before := d.Revision()
	d.WriteEntries(t)
	r1b := putIndexed(t, d, "/a/1", r1, "blue", ix)
	if _, err := d.Delete(t.Context(), "/a/3", before); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		value string
		rev   int64
		want  string
	}{
		{"red", before, "1 3"}, {"blue", before, "2"}, {"green", before, ""},
		{"red", 0, ""}, {"blue", 0, "1 2"},
		{"red", r1b, "3"}, {"red", r1, "1"},
	}
	for _, tt := range tests {
		for _, limit := range []int{0, 1} {
			if got := keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix[0], Values: []string{tt.value}}}, Rev: tt.rev, Limit: limit}); got != tt.want {
				t.Errorf("%s at revision %d, limit %d: %q, want %q", tt.value, tt.rev, limit, got, tt.want)
			}
		}
	}
	if err := d.Compact(t.Context(), d.Revision()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{1, 2, 2} {
		// WriteEntries wrote the entry of /a/2, and not yet the one of /a/1
		if n, err := d.QueryInt("SELECT count(*) FROM index_entries"); err != nil || n != want {
			t.Errorf("%d entries after compaction, %v; want %d", n, err, want)
		}
		d.WriteEntries(t)
	}
}

// TestEntriesAreWritten: once enough revisions wait, their entries are written to index_entries,
// also those of an earlier process, but not those of a dropped index.
func TestEntriesAreWritten(t *testing.T) {
	dir := t.TempDir()
	const rows = 10
	t.Cleanup(db.SetEntries(rows, 1<<20))
	await := func(d *db.DB) {
		t.Helper()
		eventually(t, "writing entries", func() bool {
			to, err := d.QueryInt("SELECT value FROM meta WHERE name = 'indexed'")
			if err != nil {
				t.Fatal(err)
			}
			return d.Revision()-to < rows
		})
	}
	entries := func(d *db.DB) int64 {
		t.Helper()
		n, err := d.QueryInt("SELECT count(*) FROM index_entries")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	ix := declare(t, d, "color", "old")
	for i := range 3*rows + rows/2 {
		putIndexed(t, d, fmt.Sprintf("/a/%02d", i), 0, "red", ix)
	}
	await(d)
	if n := entries(d); n <= 2*2*rows || n > 2*3*rows+rows {
		t.Errorf("%d entries of %d revisions with two each", n, d.Revision())
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = dbtest.OpenOptions(t, db.Options{Dir: dir})
	ix = declare(t, d, "color")
	eventually(t, "removing the entries of an index that is gone", func() bool { return entries(d) <= 3*rows+rows/2 })
	if got := len(strings.Fields(keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix[0], Values: []string{"red"}}}}))); got != 3*rows+rows/2 {
		t.Errorf("%d keys are found after a restart", got)
	}
	for i := range rows {
		putIndexed(t, d, fmt.Sprintf("/a/later%02d", i), 0, "red", ix)
	}
	await(d)
	d.WriteEntries(t)
	if n := entries(d); n != 4*rows+rows/2 {
		t.Errorf("%d entries of one index, want %d", n, 4*rows+rows/2)
	}
}

// TestLargeEntriesAreWritten: a few revisions with large entries are enough, and are written a few
// at a time.
func TestLargeEntriesAreWritten(t *testing.T) {
	dir, red := t.TempDir(), strings.Repeat("red", 100)
	// fill adds ten keys to those that another process left.
	fill := func(rows, bytes int64) (d *db.DB, entries func() int64) {
		t.Helper()
		t.Cleanup(db.SetEntries(rows, bytes))
		d = dbtest.OpenOptions(t, db.Options{Dir: dir})
		ix := declare(t, d, "color")
		for i := range 10 {
			putIndexed(t, d, fmt.Sprintf("/a/%d/%d", bytes, i), 0, red, ix)
		}
		return d, func() int64 {
			t.Helper()
			n, err := d.QueryInt("SELECT count(*) FROM index_entries")
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	d, entries := fill(1<<40, 1<<40)
	if n := entries(); n != 0 {
		t.Errorf("%d entries, want none yet", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, _ = fill(1<<40, 10_000) // limits that are not reached
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	db.SetEntries(1<<40, 1000)
	d = dbtest.OpenOptions(t, db.Options{Dir: dir})
	if n := d.WriteEntries(t); n != 4 { // the fourth reaches the limit of bytes
		t.Errorf("%d entries were written at once, want 4", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	_, entries = fill(1<<40, 999)
	// three have less than 999 bytes
	eventually(t, "writing 27 entries of 30", func() bool { return entries() >= 27 })
}

// TestIndexedRange compares a range by index with a range of everything: at any revision, for rare
// and common values, with any bytes in the values, page by page.
func TestIndexedRange(t *testing.T) {
	d := dbtest.Open(t)
	ix := declare(t, d, "color", "colour")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	// Some of these values contain the encoding of other entries.
	values := []string{"", "a", "b", "aa", "x\x01\x01a", "\x02\x01a\x01\x01b", "\x01\x00"}
	live := map[string]int64{}
	for range 400 {
		key := fmt.Sprintf("/a/%02d", rnd.IntN(60))
		if rnd.IntN(150) == 0 {
			d.WriteEntries(t) // later entries are found in their rows
		}
		if live[key] != 0 && rnd.IntN(3) == 0 {
			if _, err := d.Delete(t.Context(), key, live[key]); err != nil {
				t.Fatal(err)
			}
			delete(live, key)
			continue
		}
		live[key] = putIndexed(t, d, key, live[key], values[rnd.IntN(len(values))], ix)
	}
	for rev := int64(2); rev <= d.Revision(); rev += rnd.Int64N(40) + 1 {
		at := map[string][]string{}
		page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Rev: rev})
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range page.KVs {
			at[string(kv.Value)] = append(at[string(kv.Value)], strings.TrimPrefix(kv.Key, "/a/"))
		}
		undo := db.SetFewChanges(0)
		byHistory, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Rev: rev})
		undo()
		if err != nil || !reflect.DeepEqual(byHistory, page) {
			t.Errorf("at %d: %v by the history, %v, and %v by changes", rev, byHistory, err, page)
		}
		for i, few := range []int64{0, 0, 30, 1 << 40} {
			undo := db.SetFewMatches(few)
			undoChanges := db.SetFewChanges(int64(i * 1000))
			for _, value := range append(values, "none") {
				// Both indexes have the same entries. A key with several of the values is returned once.
				several := []string{value, value}
				want := map[string][]string{value: at[value]}
				if other := values[rnd.IntN(len(values))]; other != value && rnd.IntN(2) == 0 {
					several = append(several, other)
					want[value] = slices.Sorted(slices.Values(slices.Concat(want[value], at[other])))
				}
				o := db.RangeOptions{Index: []db.IndexQuery{{Index: ix[rnd.IntN(2)], Values: several}}, Rev: rev, Limit: rnd.IntN(4), KeysOnly: rnd.IntN(2) == 0}
				switch rnd.IntN(3) {
				case 0: // queries of both indexes find the same keys
					o.Index = append(o.Index, db.IndexQuery{Index: ix[rnd.IntN(2)], Values: several})
				case 1: // the second query drops keys
					o.Index = append(o.Index, db.IndexQuery{Index: ix[rnd.IntN(2)], Values: []string{value}})
					want[value] = at[value]
				}
				if got := keysOf(t, d, o); got != strings.Join(want[value], " ") {
					t.Errorf("%q at %d, few up to %d, %+v: %q, want %q", value, rev, few, o, got, want[value])
				}
				o.From = "/a/30"
				after := slices.DeleteFunc(slices.Clone(want[value]), func(k string) bool { return k < "30" })
				if got := keysOf(t, d, o); got != strings.Join(after, " ") {
					t.Errorf("%q at %d from 30, few up to %d, %+v: %q, want %q", value, rev, few, o, got, after)
				}
			}
			// parts of values, in upper and lower case; some values contain no such part
			for _, part := range []string{"A", "a", "aA", "\x01", "none"} {
				var want []string
				for value, keys := range at {
					if strings.Contains(value, strings.ToLower(part)) {
						want = append(want, keys...)
					}
				}
				slices.Sort(want)
				o := db.RangeOptions{Index: []db.IndexQuery{{Index: ix[rnd.IntN(2)], Part: part}}, Rev: rev, Limit: rnd.IntN(4), KeysOnly: rnd.IntN(2) == 0}
				if rnd.IntN(2) == 0 {
					o.Index = append(o.Index, db.IndexQuery{Index: ix[rnd.IntN(2)], Part: part})
				}
				if got := keysOf(t, d, o); got != strings.Join(want, " ") {
					t.Errorf("part %q at %d, few up to %d, %+v: %q, want %q", part, rev, few, o, got, want)
				}
			}
			undo()
			undoChanges()
		}
	}
}

func TestIndexRebuild(t *testing.T) {
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	open := func() *db.DB { return dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quiet}) }
	d := open()
	const n = 400 // several steps
	for i := range n {
		value := []string{"red", "blue", "bad"}[i%3]
		rev := put(t, d, fmt.Sprintf("/a/%03d", i), 0, value)
		if i%10 == 0 {
			put(t, d, fmt.Sprintf("/a/%03d", i), rev, "green") // leaves history
		}
		put(t, d, fmt.Sprintf("/other/%03d", i), 0, value)
	}
	past := d.Revision()
	ix := declare(t, d, "color")
	check := func(what string, ix *db.Index) {
		t.Helper()
		for _, value := range []string{"red", "blue", "green"} {
			for _, rev := range []int64{past, 0} {
				all, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Rev: rev})
				if err != nil {
					t.Fatal(err)
				}
				var want []string
				for _, kv := range all.KVs {
					if string(kv.Value) == value {
						want = append(want, strings.TrimPrefix(kv.Key, "/a/"))
					}
				}
				if got := keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix, Values: []string{value}}}, Rev: rev, Limit: 7}); got != strings.Join(want, " ") {
					t.Errorf("%s: %s at revision %d: %q, want %q", what, value, rev, got, want)
				}
			}
		}
	}
	check("built", ix[0])
	putIndexed(t, d, "/a/new", 0, "red", ix)

	// The same index at the next start needs no building; another name does.
	d.Close()
	d = open()
	again, err := d.DeclareIndexes(t.Context(), "/a/", []string{"color"}, func(db.KV, []*db.Index) ([]db.IndexEntry, error) {
		t.Error("a complete index is built again")
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check("opened again", again[0])
	if _, err := d.DeclareIndexes(t.Context(), "/a/", nil, color); err == nil {
		t.Error("a declaration that would drop an index in use was accepted")
	}
	d.Close()
	d = open()
	other := declare(t, d, "shade")
	check("renamed", other[0])
	deadline := time.Now().Add(time.Minute)
	for {
		left, err := d.QueryInt("SELECT count(DISTINCT id) FROM index_entries")
		if err != nil {
			t.Fatal(err)
		}
		if left == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("entries of a dropped index are still there")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestIndexRebuildUnderWrites builds an index while its keys change.
func TestIndexRebuildUnderWrites(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.Logger = slog.New(slog.DiscardHandler) })
	for i := range 300 {
		put(t, d, fmt.Sprintf("/a/%03d", i), 0, "red")
	}
	indexes, err := d.DeclareIndexes(t.Context(), "/a/", []string{"color"}, color)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		kv, _, _, err := d.Get(context.Background(), fmt.Sprintf("/a/%03d", i))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			putIndexed(t, d, kv.Key, kv.Rev, "blue", indexes)
		}
		if i == 150 {
			if err := d.Compact(context.Background(), d.Revision()); err != nil {
				t.Fatal(err)
			}
		}
	}
	declare(t, d, "color") // waits
	for value, want := range map[string]int{"red": 150, "blue": 150} {
		page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Index: []db.IndexQuery{{Index: indexes[0], Values: []string{value}}}})
		if err != nil || len(page.KVs) != want {
			t.Errorf("%s: %d keys, %v; want %d", value, len(page.KVs), err, want)
		}
	}
}
