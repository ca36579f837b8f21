package truth_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// TestBarrierAsksAfterTheCall: whoever calls while a question is under way is not given its answer, and shares the next
// question with the others that wait.
func TestBarrierAsksAfterTheCall(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan int64)
	b := &truth.Barrier{Head: func(context.Context) (int64, error) {
		asked <- struct{}{}
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
		return got
	}
	first := wait()
	<-asked
	var late []<-chan int64
	var joined sync.WaitGroup
	for range 10 {
		joined.Go(func() {
			// A call that has ended has joined the next question.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	joined.Wait()
	for range 10 {
		late = append(late, wait())
	}
	answer <- 7
	if got := <-first; got != 7 {
		t.Errorf("first: %d", got)
	}
	<-asked
	answer <- 8
	for i, l := range late {
		select {
		case got := <-l:
			if got != 8 {
				t.Errorf("late %d: %d, want the answer to the second question", i, got)
			}
		case <-asked: // it came too late even for the second question
			answer <- 8
			if got := <-l; got != 8 {
				t.Errorf("late %d: %d", i, got)
			}
		}
	}
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
