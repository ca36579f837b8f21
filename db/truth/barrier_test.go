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

// TestBarrierAsksAfterTheCall: whoever calls while a question is under way is not given its answer, and shares the next
// question with the others that wait.
func TestBarrierAsksAfterTheCall(t *testing.T) {
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
			synctest.Wait() // it waits for an answer
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
				t.Errorf("late %d: %d, want the answer to the second question", i, got)
			}
		}
		synctest.Wait()
		if asked != 2 {
			t.Errorf("%d questions were asked, want 2", asked)
		}
	})
}

// TestBarrierGathers: callers that come back soon after an answer share the next question with those that wait for it. A single
// caller does not wait.
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
		begun := time.Now()
		for range times {
			ask()
		}
		if took := time.Since(begun); asked != times || took != times*time.Millisecond {
			t.Errorf("one caller asks %d times in %s, want %d in %d ms", asked, took, times, times)
		}
		asked = 0
		var callers sync.WaitGroup
		for i := range 5 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				for range times {
					ask()
				}
			})
		}
		callers.Wait()
		time.Sleep(time.Second) // a pause ends
		if asked > times+times/10 {
			t.Errorf("for 5 callers %d questions were asked, want about %d", asked, times)
		}
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
