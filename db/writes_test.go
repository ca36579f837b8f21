package db_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestPutAll: a database that is not a copy does all writes or none; a copy of a store does the
// last one only after the others.
func TestPutAll(t *testing.T) {
	own := dbtest.Open(t)
	copied := dbtest.Open(t, func(o *db.Options) { o.Truth = dbtest.NewTruth() })
	if err := copied.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]*db.DB{"own": own, "copy": copied} {
		there := func() (keys string) {
			p, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/k/"})
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range p.KVs {
				keys += fmt.Sprintf("%s=%s ", kv.Key, kv.Value)
			}
			return keys
		}
		writes := func(value string, names ...string) (all []db.Write) {
			for _, n := range names {
				all = append(all, db.Write{Key: "/k/" + n, Value: []byte(value)})
			}
			return all
		}
		if err := d.PutAll(t.Context(), nil); err != nil {
			t.Errorf("%s: no writes: %v", name, err)
		}
		if err := d.PutAll(t.Context(), writes("1", "a", "b")); err != nil || there() != "/k/a=1 /k/b=1 " {
			t.Errorf("%s: %v, there are %s", name, err, there())
		}
		before := d.Revision()
		err := d.PutAll(t.Context(), writes("2", "c", "a", "last"))
		if want := map[string]string{"own": "/k/a=1 /k/b=1 ", "copy": "/k/a=1 /k/b=1 /k/c=2 "}[name]; !errors.Is(err, db.ErrConflict) || there() != want {
			t.Errorf("%s: with a conflict: %v, there are %s", name, err, there())
		}
		if name == "own" && d.Revision() != before {
			t.Errorf("nothing was written, and the revision went from %d to %d", before, d.Revision())
		}
		errs := d.PutEach(t.Context(), writes("3", "d", "b", "e"))
		if len(errs) != 3 || errs[0] != nil || !errors.Is(errs[1], db.ErrConflict) || errs[2] != nil {
			t.Errorf("%s: each: %v", name, errs)
		}
		if err := d.PutAll(t.Context(), []db.Write{{Key: "/k/f"}, {}}); err == nil {
			t.Errorf("%s: a write without a key was done", name)
		}
	}
}
