package coreapi_test

import (
	"errors"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"

	"github.com/tidewaiter/tidewaiter/coreapi/internal/ranges"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

const rangeSize = 64

// openRange opens the bitmap of a range of numbers.
func openRange(t *testing.T, d *db.DB) *ranges.Store {
	t.Helper()
	g := kubestore.NewGetter(d, legacyscheme.Codecs, kubestore.Options{})
	s, err := ranges.New(g, "numbers", allocator.NewAllocationMapWithOffset(rangeSize, "0-63", 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Destroy)
	return s
}

// initializeRange stores an empty bitmap, as the first repair does.
func initializeRange(t *testing.T, s *ranges.Store) {
	t.Helper()
	empty, err := s.Get()
	if err != nil {
		t.Fatal(err)
	}
	empty.Range, empty.Data = "0-63", nil
	if err := s.CreateOrUpdate(empty); err != nil {
		t.Fatal(err)
	}
}

// A damaged bitmap is as one that was never stored.
func TestDamagedBitmap(t *testing.T) {
	d := dbtest.Open(t)
	s := openRange(t, d)
	initializeRange(t, s)
	dbtest.Damage(t, d, "/core/rangeallocations/numbers")
	if got, err := s.Get(); err != nil || got.ResourceVersion != "" {
		t.Errorf("Get: %v, %v; want no version", got, err)
	}
	initializeRange(t, s)
	if ok, err := s.Allocate(1); !ok || err != nil {
		t.Errorf("after it is made anew: %v, %v", ok, err)
	}
	if err := d.Compact(t.Context(), d.Revision()); err != nil {
		// so that the check at the end finds a whole file
		t.Fatal(err)
	}
}

func TestNothingBeforeTheFirstRepair(t *testing.T) {
	s := openRange(t, dbtest.Open(t))
	if _, err := s.Allocate(1); !errors.Is(err, ranges.ErrNotReady) {
		t.Errorf("Allocate: %v, want ErrNotReady", err)
	}
	if _, _, err := s.AllocateNext(); !errors.Is(err, ranges.ErrNotReady) {
		t.Errorf("AllocateNext: %v, want ErrNotReady", err)
	}
	if got, err := s.Get(); err != nil || got.ResourceVersion != "" {
		t.Errorf("Get: %v, %v; want no version", got, err)
	}
	initializeRange(t, s)
	if ok, err := s.Allocate(1); !ok || err != nil {
		t.Errorf("after it: %v, %v", ok, err)
	}
}

func TestNumbersAreGivenOnceAndKept(t *testing.T) {
	d := dbtest.Open(t)
	s := openRange(t, d)
	initializeRange(t, s)
	for _, want := range []bool{true, false} {
		if ok, err := s.Allocate(7); ok != want || err != nil {
			t.Errorf("Allocate(7): %v, %v; want %v", ok, err, want)
		}
	}
	if !s.Has(7) || s.Has(8) || s.Free() != rangeSize-1 {
		t.Errorf("has 7: %v, has 8: %v, free: %d", s.Has(7), s.Has(8), s.Free())
	}
	// A failed attempt leaves the next ones sound.
	if _, err := s.Allocate(rangeSize + 1); err == nil {
		t.Error("a number past the range")
	}
	other := openRange(t, d)
	if ok, err := other.Allocate(7); ok || err != nil {
		t.Errorf("another keeper gives 7 again: %v, %v", ok, err)
	}
	if err := other.Release(7); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Allocate(7); !ok || err != nil {
		t.Errorf("after its release by another: %v, %v", ok, err)
	}
	var given []int
	s.ForEach(func(n int) { given = append(given, n) })
	if len(given) != 1 || given[0] != 7 {
		t.Errorf("given out: %v", given)
	}
}

func TestReplacingAChangedBitmapIsAConflict(t *testing.T) {
	s := openRange(t, dbtest.Open(t))
	initializeRange(t, s)
	snapshot, err := s.Get()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Allocate(1); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateOrUpdate(snapshot); !apierrors.IsConflict(err) {
		t.Errorf("after a change: %v, want a conflict", err)
	}
	snapshot.ResourceVersion = ""
	if err := s.CreateOrUpdate(snapshot); !apierrors.IsConflict(err) {
		t.Errorf("as if it were new: %v, want a conflict", err)
	}
	if !s.Has(1) {
		t.Error("a refused replacement took a number back")
	}
}

func TestManyKeepersGiveEachNumberOnce(t *testing.T) {
	d := dbtest.Open(t)
	initializeRange(t, openRange(t, d))
	var mu sync.Mutex
	given := map[int]bool{}
	var group sync.WaitGroup
	for range 4 {
		s := openRange(t, d)
		for range 2 {
			group.Go(func() {
				for {
					n, ok, err := s.AllocateNext()
					if err != nil {
						t.Error(err)
						return
					}
					if !ok {
						return
					}
					mu.Lock()
					if given[n] {
						t.Errorf("%d is given twice", n)
					}
					given[n] = true
					mu.Unlock()
				}
			})
		}
	}
	group.Wait()
	if len(given) != rangeSize {
		t.Errorf("%d numbers given out of %d", len(given), rangeSize)
	}
}
