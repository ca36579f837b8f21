package db_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func put(t testing.TB, d *db.DB, key string, expect int64, value string) int64 {
	t.Helper()
	rev, err := d.Put(t.Context(), key, expect, []byte(value), db.PutOptions{})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

func TestPutAndDelete(t *testing.T) {
	d := dbtest.Open(t)
	ctx := t.Context()
	r1 := put(t, d, "/a/k", 0, "one")
	r2 := put(t, d, "/a/k", r1, "two")
	if r2 <= r1 {
		t.Errorf("revisions %d then %d, want them to grow", r1, r2)
	}
	for _, expect := range []int64{0, r1, r2 + 1, -1} {
		if _, err := d.Put(ctx, "/a/k", expect, []byte("x"), db.PutOptions{}); !errors.Is(err, db.ErrConflict) {
			t.Errorf("put at expected revision %d: %v, want ErrConflict", expect, err)
		}
		if _, err := d.Delete(ctx, "/a/k", expect); !errors.Is(err, db.ErrConflict) {
			t.Errorf("delete at expected revision %d: %v, want ErrConflict", expect, err)
		}
	}
	if got := d.Revision(); got != r2 {
		t.Errorf("refused writes moved the revision to %d, want %d", got, r2)
	}
	r3, err := d.Delete(ctx, "/a/k", r2)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _, err := d.Get(ctx, "/a/k"); ok || err != nil {
		t.Errorf("get of a deleted key: found %v, %v", ok, err)
	}
	for rev, want := range map[int64]string{r1: "one", r2: "two", r3: "", r1 - 1: ""} {
		kv, ok, err := d.GetAt(ctx, "/a/k", rev)
		if err != nil || ok != (want != "") || string(kv.Value) != want {
			t.Errorf("at revision %d: %q, found %v, %v; want %q", rev, kv.Value, ok, err, want)
		}
	}
	put(t, d, "/a/k", 0, "three")
}

func TestKeyLimits(t *testing.T) {
	d := dbtest.Open(t)
	for _, key := range []string{"", string(make([]byte, db.MaxKeySize+1))} {
		if _, err := d.Put(t.Context(), key, 0, nil, db.PutOptions{}); err == nil {
			t.Errorf("a key of %d bytes was accepted", len(key))
		}
	}
	if rev := put(t, d, "/empty", 0, ""); rev == 0 {
		t.Error("an empty value was refused")
	}
}

// TestGroupCommit lets many writers share commits. One writer in three fails after it has written:
// only its own writes may be undone.
func TestGroupCommit(t *testing.T) {
	d := dbtest.Open(t)
	boom := errors.New("boom")
	var wg sync.WaitGroup
	var mu sync.Mutex
	revs := map[int64]bool{}
	for i := range 300 {
		wg.Go(func() {
			var rev int64
			err := d.Write(context.Background(), func(t *db.Tx) (err error) {
				rev, err = t.PutTx(fmt.Sprintf("/a/%03d", i), 0, []byte("v"))
				if err == nil && i%3 == 0 {
					err = boom
				}
				return err
			})
			if i%3 == 0 {
				if !errors.Is(err, boom) {
					t.Errorf("writer %d: %v, want its own error", i, err)
				}
				return
			}
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if revs[rev] {
				t.Errorf("revision %d given out twice", rev)
			}
			revs[rev] = true
		})
	}
	wg.Wait()
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/"})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.KVs) != 200 {
		t.Errorf("%d keys, want the 200 of the writers that did not fail", len(page.KVs))
	}
	for _, kv := range page.KVs {
		if !revs[kv.Rev] {
			t.Errorf("%s has revision %d, which no writer got", kv.Key, kv.Rev)
		}
	}
}

// TestLargeWriteFailsAlone fills the disk with one writer of a shared commit: the other writes must
// succeed.
func TestLargeWriteFailsAlone(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.MaxPageCount = 200 })
	hold, held := make(chan struct{}), make(chan struct{}, 2) // a closure may run twice
	var wg sync.WaitGroup
	wg.Go(func() {
		// Hold the writer until the others wait for the next commit together.
		if err := d.Write(context.Background(), func(*db.Tx) error { held <- struct{}{}; <-hold; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-held
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			size := 100
			if i == 3 {
				size = 4 << 20
			}
			_, errs[i] = d.Put(context.Background(), fmt.Sprintf("/a/%d", i), 0, make([]byte, size), db.PutOptions{})
		})
	}
	time.Sleep(20 * time.Millisecond) // likely enough for all to be queued; correct in any case
	close(hold)
	wg.Wait()
	for i, err := range errs {
		var full *datafile.UnavailableError
		switch {
		case i == 3 && !errors.As(err, &full):
			t.Errorf("the large write: %v, want *UnavailableError", err)
		case i != 3 && err != nil:
			t.Errorf("write %d failed with the large one: %v", i, err)
		}
	}
}

func TestClose(t *testing.T) {
	d, err := db.Open(db.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Watch("/a/", false, d.Revision())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	<-w.Ready()
	if _, err := w.Poll(t.Context()); !errors.Is(err, db.ErrClosed) {
		t.Errorf("poll: %v, want ErrClosed", err)
	}
	if _, err := d.Put(t.Context(), "/a/k", 0, nil, db.PutOptions{}); !errors.Is(err, db.ErrClosed) {
		t.Errorf("put: %v, want ErrClosed", err)
	}
	if _, _, _, err := d.Get(t.Context(), "/a/k"); !errors.Is(err, db.ErrClosed) {
		t.Errorf("get: %v, want ErrClosed", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
