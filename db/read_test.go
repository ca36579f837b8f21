package db_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// A reader can see a commit a moment before the writer has recorded its revision. A later request
// at that revision must not fail with ErrFutureRevision.
func TestWhatWasReadIsNotInTheFuture(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(d *db.DB) (int64, error){
		"get": func(d *db.DB) (int64, error) {
			kv, _, atLeast, err := d.Get(t.Context(), "/a")
			if atLeast < kv.Rev {
				t.Errorf("revision %d, and the answer is not older than %d", kv.Rev, atLeast)
			}
			return kv.Rev, err
		},
		"range": func(d *db.DB) (int64, error) {
			p, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/"})
			return p.Rev, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := dbtest.Open(t)
			put, err := d.Put(t.Context(), "/a", 0, []byte("v"), db.PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			d.SetRevision(put - 1) // as before the writer has recorded the revision
			seen, err := read(d)
			if err != nil || seen != put {
				t.Fatalf("read revision %d, %v; want %d", seen, err, put)
			}
			if kv, ok, err := d.GetAt(t.Context(), "/a", seen); err != nil || !ok || string(kv.Value) != "v" {
				t.Errorf("at the revision that was read: %q, %t, %v", kv.Value, ok, err)
			}
		})
	}
}

// If compaction runs between a request's start and its read, the request fails with ErrCompacted
// instead of returning an incomplete result.
func TestCompactionBeforeTheRead(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(d *db.DB, rev int64) error{
		"DB).GetAt(": func(d *db.DB, rev int64) error { _, _, err := d.GetAt(t.Context(), "/a", rev); return err },
		"DB).Range(": func(d *db.DB, rev int64) error {
			_, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/", Rev: rev})
			return err
		},
		"DB).Values(": func(d *db.DB, rev int64) error {
			_, err := d.Values(t.Context(), rev, []db.KV{{Key: "/a", Rev: rev}}, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := dbtest.Open(t)
			old, err := d.Put(t.Context(), "/a", 0, []byte("old"), db.PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			newer, err := d.Put(t.Context(), "/a", old, []byte("new"), db.PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			release := d.HoldReaders()
			got := make(chan error, 1)
			go func() { got <- read(d, old) }()
			for deadline := time.Now().Add(time.Minute); !waitsForAReader(name); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no goroutine waits for a reader")
				}
			}
			if err := d.Compact(t.Context(), newer); err != nil {
				t.Fatal(err)
			}
			release()
			if err := <-got; !errors.Is(err, db.ErrCompacted) {
				t.Errorf("error %v, want %v", err, db.ErrCompacted)
			}
		})
	}
}

// waitsForAReader reports whether a goroutine waits within a function.
func waitsForAReader(function string) bool {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for goroutine := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(goroutine, "[select]") && strings.Contains(goroutine, function) {
			return true
		}
	}
	return false
}

// TestEndlessQuery: a query that would never end is stopped when its context is done, and the
// connection then serves other queries.
func TestEndlessQuery(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Readers = 1 })
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := d.Read(ctx, func(s db.Snapshot) error {
			_, _, err := s.First("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
			return err
		})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a query without end: %v, want the context's error", err)
		}
		if n, _, err := d.Totals(t.Context(), "/"); err != nil || n != 0 {
			t.Errorf("the next query: %d, %v", n, err)
		}
	}
}

// TestNewest: the newest keys come first, with their values, also after updates and deletions.
func TestNewest(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	revs := map[string]int64{}
	for _, key := range []string{"/a/1", "/a/2", "/b/1", "/a/3", "/a/4", "/a/2", "/b/2"} {
		// the second /a/2 is an update
		rev, err := d.Put(t.Context(), key, revs[key], []byte(key), db.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		revs[key] = rev
	}
	if _, err := d.Delete(t.Context(), "/a/4", revs["/a/4"]); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		limit int
		want  string
		more  bool
	}{{0, "/a/2 /a/3 /a/1", false}, {2, "/a/2 /a/3", true}, {3, "/a/2 /a/3 /a/1", false}} {
		for _, keysOnly := range []bool{false, true} {
			page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", Newest: true, Limit: tt.limit, KeysOnly: keysOnly})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, kv := range page.KVs {
				got = append(got, kv.Key)
				if want := map[bool]string{false: kv.Key, true: ""}[keysOnly]; string(kv.Value) != want || kv.Rev != revs[kv.Key] {
					t.Errorf("%s has the value %q of revision %d", kv.Key, kv.Value, kv.Rev)
				}
			}
			if strings.Join(got, " ") != tt.want || page.More != tt.more {
				t.Errorf("limit %d, keys only %t: %v, more %t; want %s, %t", tt.limit, keysOnly, got, page.More, tt.want, tt.more)
			}
		}
	}
}

// GetUnless is never older than what another read has returned before it.
func TestGetUnlessIsNotOlderThanAnotherRead(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	rev, err := d.Put(t.Context(), "/a", 0, []byte("0"), db.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const writes = 2000
	done := make(chan error, 1)
	go func() {
		at := rev
		for i := range writes {
			var err error
			if at, err = d.Put(t.Context(), "/a", at, fmt.Appendf(nil, "%d", i), db.PutOptions{}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	known := 0
	for {
		kv, _, _, err := d.Get(t.Context(), "/a")
		if err != nil {
			t.Fatal(err)
		}
		unless, ok, err := d.GetUnless(t.Context(), "/a", func(int64) bool { known++; return true })
		if err != nil || !ok || unless.Rev < kv.Rev {
			t.Fatalf("revision %d after %d, %t, %v", unless.Rev, kv.Rev, ok, err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			if known == 0 {
				t.Error("no revision was known without a read")
			}
			return
		default:
		}
	}
}

func TestGetUnless(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	get := func(has bool) (kv db.KV, ok bool, asked []int64) {
		t.Helper()
		kv, ok, err := d.GetUnless(t.Context(), "/a", func(rev int64) bool { asked = append(asked, rev); return has })
		if err != nil {
			t.Fatal(err)
		}
		return kv, ok, asked
	}
	if kv, ok, asked := get(true); ok || asked != nil {
		t.Errorf("a key that does not exist: %v, asked for %v", kv, asked)
	}
	rev := int64(0)
	for _, value := range []string{"v", "w"} {
		var err error
		if rev, err = d.Put(t.Context(), "/a", rev, []byte(value), db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if kv, ok, asked := get(false); !ok || kv.Rev != rev || string(kv.Value) != value || fmt.Sprint(asked) != fmt.Sprint([]int64{rev}) {
			t.Errorf("%v, %t, asked for %v", kv, ok, asked)
		}
		if kv, ok, asked := get(true); !ok || kv.Rev != rev || kv.Value != nil || len(asked) != 1 {
			t.Errorf("known: %v, %t, asked for %v", kv, ok, asked)
		}
	}
	if _, err := d.Delete(t.Context(), "/a", rev); err != nil {
		t.Fatal(err)
	}
	if kv, ok, asked := get(true); ok || asked != nil {
		t.Errorf("a deleted key: %v, asked for %v", kv, asked)
	}
}
