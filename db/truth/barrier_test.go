package truth_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

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
