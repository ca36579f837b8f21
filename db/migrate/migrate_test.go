package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/migrate"
)

// failing is a store that fails after a number of writes.
type failing struct {
	*dbtest.Truth
	left atomic.Int64
}

var errEnough = errors.New("enough")

func (f *failing) Put(ctx context.Context, key string, expect int64, value []byte, expires int64) (int64, error) {
	if f.left.Add(-1) < 0 {
		return 0, errEnough
	}
	return f.Truth.Put(ctx, key, expect, value, expires)
}

func fill(t *testing.T, d *db.DB, n int) {
	t.Helper()
	for i := range n {
		o := db.PutOptions{}
		if i%7 == 0 {
			o.TTL = time.Hour
		}
		rev, err := d.Put(t.Context(), fmt.Sprintf("/k/%04d", i), 0, fmt.Appendf(nil, "value %d", i), o)
		if err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			if _, err := d.Delete(t.Context(), fmt.Sprintf("/k/%04d", i), rev); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCopyContinues: a second Copy continues after an interrupted one. Then database and store are
// equal, also in expiry times, and Verify detects each key or value that differs.
func TestCopyContinues(t *testing.T) {
	t.Parallel()
	d, store := dbtest.Open(t), &failing{Truth: dbtest.NewTruth()}
	const n = 500
	fill(t, d, n)
	before := d.Revision()
	store.left.Store(150)
	if _, _, err := migrate.Copy(t.Context(), d, store); !errors.Is(err, errEnough) {
		t.Fatalf("an interrupted copy: %v", err)
	}
	if _, err := migrate.Verify(t.Context(), d, store); !errors.Is(err, migrate.ErrDiffers) || !strings.Contains(err.Error(), "does not have /k/") {
		t.Errorf("half a copy is the same: %v", err)
	}
	store.left.Store(1000)
	keys, written, err := migrate.Copy(t.Context(), d, store)
	if err != nil || keys != n*4/5 || written != n*4/5-150 {
		t.Fatalf("%d keys, %d written, %v; want %d and %d", keys, written, err, n*4/5, n*4/5-150)
	}
	if keys, err := migrate.Verify(t.Context(), d, store); err != nil || keys != n*4/5 {
		t.Errorf("%d are the same, %v", keys, err)
	}
	if d.Revision() != before {
		t.Error("the source has changed")
	}
	extra, err := store.Truth.Put(t.Context(), "/spool/1", 0, []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := migrate.Copy(t.Context(), d, store); !errors.Is(err, migrate.ErrDiffers) || !strings.Contains(err.Error(), "also has /spool/1") {
		t.Errorf("a store with something else: %v", err)
	}
	if _, err := store.Truth.Delete(t.Context(), "/spool/1", extra); err != nil {
		t.Fatal(err)
	}
	kv, _, _, err := d.Get(t.Context(), "/k/0001")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Put(t.Context(), "/k/0001", kv.Rev, []byte("other"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.Verify(t.Context(), d, store); !errors.Is(err, migrate.ErrDiffers) || !strings.Contains(err.Error(), "another /k/0001") {
		t.Errorf("another value: %v", err)
	}
}

// TestRaise: Raise brings a store's revision above a revision that clients hold, unless no store
// ever reaches that revision.
func TestRaise(t *testing.T) {
	t.Parallel()
	store := dbtest.NewTruth()
	for _, above := range []int64{1, 300, 7, 1 << 50} {
		if err := migrate.Raise(t.Context(), store, above, "/raise"); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := store.Head(t.Context()); err != nil || at <= 300 || at > 400 {
		t.Errorf("at revision %d, %v", at, err)
	}
	if _, _, more, err := store.Range(t.Context(), "", 0); err != nil || more {
		t.Error("keys of Raise are left")
	}
	var far *migrate.FarBehindError
	if err := migrate.Raise(t.Context(), store, 1<<30, "/raise"); !errors.As(err, &far) || far.Above != 1<<30 {
		t.Errorf("raising above a much higher revision: %v", err)
	}
}

// TestDetach: a detached copy has everything that the store has and can be written without it. A
// watch from a revision of the store fails with ErrCompacted.
func TestDetach(t *testing.T) {
	t.Parallel()
	store, dir := dbtest.NewTruth(), t.TempDir()
	copied, err := db.Open(db.Options{Dir: dir, Truth: store})
	if err != nil {
		t.Fatal(err)
	}
	if err := copied.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, copied, 20)
	known := copied.Revision()
	if err := datafile.Detach(dir, time.Now()); err == nil {
		t.Error("a copy was detached that is in use")
	}
	if err := copied.Close(); err != nil {
		t.Fatal(err)
	}
	if err := datafile.Detach(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	if keys, err := migrate.Verify(t.Context(), d, store); err != nil || keys != 16 {
		t.Errorf("%d keys are the same, %v", keys, err)
	}
	if rev, err := d.Put(t.Context(), "/k/new", 0, []byte("x"), db.PutOptions{}); err != nil || rev <= known {
		t.Errorf("written at %d, %v, after %d", rev, err, known)
	}
	for _, rev := range []int64{known, known + 1} {
		w, err := d.Watch("/k/", false, rev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Poll(t.Context()); !errors.Is(err, db.ErrCompacted) {
			t.Errorf("a watch from revision %d of the store: %v", rev, err)
		}
		w.Stop()
	}
}
