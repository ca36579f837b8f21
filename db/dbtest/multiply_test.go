package dbtest_test

import (
	"fmt"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestMultiply: a database with copies is intact, and has each copy where the engine would have put
// it.
func TestMultiply(t *testing.T) {
	dir := t.TempDir()
	open := func() (*db.DB, []*db.Index) {
		d := dbtest.OpenOptions(t, db.Options{Dir: dir})
		indexes, err := d.DeclareIndexes(t.Context(), "/a/", []string{"value"}, func(kv db.KV, declared []*db.Index) ([]db.IndexEntry, error) {
			return []db.IndexEntry{{Index: declared[0], Value: string(kv.Value)}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return d, indexes
	}
	d, indexes := open()
	if _, err := d.Put(t.Context(), "/a/00", 0, []byte("name 00"), db.PutOptions{Index: []db.IndexEntry{{Index: indexes[0], Value: "name 00"}}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprint(i+10))
	}
	dbtest.Multiply(t, dir, "/a/", names)
	d, indexes = open() // the file is checked when the test ends
	if kv, ok, _, err := d.Get(t.Context(), "/a/59"); err != nil || !ok || string(kv.Value) != "name 59" {
		t.Errorf("a copy is %q, %v", kv.Value, err)
	}
	if page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Index: []db.IndexQuery{{Index: indexes[0], Values: []string{"name 42"}}}}); err != nil || len(page.KVs) != 1 || page.KVs[0].Key != "/a/42" {
		t.Errorf("the index has %v, %v", page.KVs, err)
	}
	if objects, bytes, err := d.Totals(t.Context(), "/a/"); err != nil || objects != 51 || bytes != 51*7 {
		t.Errorf("there are %d objects of %d bytes, %v", objects, bytes, err)
	}
	if rev, err := d.Put(t.Context(), "/a/other", 0, nil, db.PutOptions{}); err != nil || rev < 52 {
		t.Errorf("the next revision is %d, %v", rev, err)
	}
}
