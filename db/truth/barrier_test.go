package truth_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// TestBarrierReadsAfterTheCall: a call of Wait during a running Head does not get its result. It
// shares the next Head with the other waiting calls.
func TestBarrierReadsAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, make(chan int64)
		b := &truth.Barrier{Head: func(context.Context) (int64, error) {
			asked++
			return <-answer, nil
		}}
		wait := func() <-chan int64 {
			got := make(chan int64, 1)
			go func() {
				rev, err := b.Wait(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- rev
			}()
			synctest.Wait() // Wait has begun
			return got
		}
		first := wait()
		var late []<-chan int64
		for range 10 {
			late = append(late, wait())
		}
		answer <- 7
		if got := <-first; got != 7 {
			t.Errorf("first: %d", got)
		}
		answer <- 8
		for i, l := range late {
			if got := <-l; got != 8 {
				t.Errorf("late %d: %d, want the result of the second Head", i, got)
			}
		}
		time.Sleep(time.Second) // a pause ends
		if asked != 2 {
			t.Errorf("%d calls of Head, want 2", asked)
		}
	})
}

// TestBarrierGathers: callers that come back soon after a result share the next Head with the
// callers that wait. That Head begins as soon as all are there, and does not wait long for a caller
// that does not come back. A single caller does not wait.
func TestBarrierGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		b := &truth.Barrier{Head: func(context.Context) (int64, error) {
			asked++
			time.Sleep(time.Millisecond)
			return 0, nil
		}}
		ask := func() {
			if _, err := b.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		const times = 100
		// together starts callers that call Wait repeatedly, with a pause between two calls.
		together := func(callers int, between time.Duration, stays int, wantAsked int, want time.Duration) {
			t.Helper()
			asked = 0
			begun := time.Now()
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond)
					for n := range times {
						if n == stays && i == 0 {
							return
						}
						ask()
						time.Sleep(between)
					}
				})
			}
			all.Wait()
			if took := time.Since(begun); asked > wantAsked || took > want {
				t.Errorf("for %d callers there were %d calls of Head in %s, want at most %d in %s", callers, asked, took, wantAsked, want)
			}
			time.Sleep(time.Second) // a pause ends
		}
		together(1, 0, times, times, times*time.Millisecond)
		// The first caller ends first, and the others wait for it once.
		together(5, 0, times, times+1, (times+1+5)*time.Millisecond)
		together(5, 2*time.Millisecond, times, times+1, (3*(times+1)+5)*time.Millisecond)
		together(5, 0, times/2, times+1, (times+1+5)*time.Millisecond)
	})
}

func TestBarrierPassesErrorsOn(t *testing.T) {
	down := errors.New("down")
	b := &truth.Barrier{Head: func(context.Context) (int64, error) { return 0, down }}
	if _, err := b.Wait(t.Context()); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b = &truth.Barrier{Head: func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }}
	if _, err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
