package room

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestOnePartyCannotFillIt: a party that takes everything it can get leaves room for others, which
// do not wait.
func TestOnePartyCannotFillIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(24, 12)
		ctx, cancel := context.WithCancel(t.Context())
		for range 30 {
			go func() {
				if release, err := r.Acquire(ctx, "hostile", 4); err == nil {
					<-ctx.Done()
					release()
				}
			}()
		}
		synctest.Wait()
		if r.held != 12 || len(r.waiting) != 27 {
			t.Errorf("one party holds %d, and %d wait", r.held, len(r.waiting))
		}
		var gone []func()
		for range 3 {
			release, err := r.Acquire(t.Context(), "honest", 4)
			if err != nil {
				t.Fatal(err)
			}
			gone = append(gone, release)
		}
		got := make(chan error)
		go func() {
			release, err := r.Acquire(t.Context(), "third", 8)
			if err == nil {
				release()
			}
			got <- err
		}()
		synctest.Wait()
		if len(r.waiting) != 28 {
			t.Errorf("more than the room is held: %d", r.held)
		}
		for _, release := range gone {
			release()
			release() // the second time does nothing
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
		if r.held != 0 || len(r.parties) != 0 || len(r.waiting) != 0 {
			t.Errorf("in the end %d are held by %v, and %d wait", r.held, r.parties, len(r.waiting))
		}
	})
}

// TestSeveralPartiesCannotFillIt: some parties fill the room together, and many more of their
// pieces wait. Another party gets the first place that becomes free.
func TestSeveralPartiesCannotFillIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(8, 3)
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan struct{})
		for range 100 {
			for _, party := range []string{"a", "b", "c"} {
				go func() {
					if release, err := r.Acquire(ctx, party, 1); err == nil {
						<-end
						release()
					}
				}()
			}
		}
		synctest.Wait()
		if r.held != 8 || len(r.waiting) != 292 {
			t.Fatalf("%d are held, and %d wait", r.held, len(r.waiting))
		}
		got := make(chan error)
		go func() {
			release, err := r.Acquire(t.Context(), "honest", 1)
			if err == nil {
				release()
			}
			got <- err
		}()
		synctest.Wait()
		end <- struct{}{}
		synctest.Wait()
		select {
		case err := <-got:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the place that became free went to a party that holds several")
		}
		cancel()
		close(end)
		synctest.Wait()
		if r.held != 0 || len(r.parties) != 0 || len(r.waiting) != 0 {
			t.Errorf("in the end %d are held by %v, and %d wait", r.held, r.parties, len(r.waiting))
		}
	})
}

// TestLargePieces: a piece that is larger than its party's share, or than the room, is held alone.
// Smaller pieces of others do not overtake it for ever. When it gives up, they get their places.
func TestLargePieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(10, 5)
		whole, err := r.Acquire(t.Context(), "a", 100)
		if err != nil || r.held != 10 {
			t.Fatalf("%d of 10 are held: %v", r.held, err)
		}
		ctx, giveUp := context.WithCancelCause(t.Context())
		results := make(chan error, 2)
		go func() {
			_, err := r.Acquire(ctx, "b", 8)
			results <- err
		}()
		synctest.Wait()
		go func() {
			_, err := r.Acquire(t.Context(), "c", 3)
			results <- err
		}()
		synctest.Wait()
		why := errors.New("enough")
		giveUp(why)
		if err := <-results; err != why {
			t.Error(err)
		}
		whole()
		if err := <-results; err != nil || r.held != 3 {
			t.Errorf("%d are held: %v", r.held, err)
		}
	})
}

// TestPiecesGrow: a piece may grow beyond its party's share while it is the party's only piece.
func TestPiecesGrow(t *testing.T) {
	r := New(10, 5)
	for _, tc := range []struct {
		party  string
		has, n int64
		ok     bool
	}{
		{"a", 0, 4, true},
		{"a", 4, 3, true},
		{"a", 0, 1, false}, // another piece
		{"b", 0, 4, false},
		{"b", 0, 3, true},
		{"a", 7, 1, false},
	} {
		if ok := r.TryAdd(tc.party, tc.has, tc.n); ok != tc.ok {
			t.Errorf("%+v: %t", tc, ok)
		}
	}
	r.Remove("b", 3)
	if !r.TryAdd("a", 7, 3) || r.TryAdd("b", 0, 1) {
		t.Error("the only piece does not get the whole room")
	}
	r.Remove("a", 10)
	if r.held != 0 || len(r.parties) != 0 || len(r.waiting) != 0 {
		t.Errorf("in the end %d are held by %v, and %d wait", r.held, r.parties, len(r.waiting))
	}
}
