package truth

import (
	"context"
	"sync"
	"time"
)

const (
	// askTimeout bounds a question, so that waiting callers learn that the store does not answer.
	askTimeout = 5 * time.Second
	// A question waits for those to come back who waited for the one before: pauseEach for each of
	// them, about what answering one takes, and maxPause at most.
	pauseEach, maxPause = time.Millisecond, 20 * time.Millisecond
)

// Barrier asks a Store for its head, once for all that wait. A caller is given the answer to a
// question that was asked after the call: an earlier one may lack changes that were reported to the
// caller.
type Barrier struct {
	// Head is the store's.
	Head func(context.Context) (int64, error)

	mu       sync.Mutex
	asking   bool
	next     *question // to be asked when the one under way has been answered
	expected int       // the next question waits for so many callers; 0 while one is under way
	complete chan struct{}
}

type question struct {
	callers int // changes while the question is the next
	done    chan struct{}
	rev     int64
	err     error
}

// Wait returns a revision no older than the last write that was reported to anybody before the
// call.
func (b *Barrier) Wait(ctx context.Context) (int64, error) {
	b.mu.Lock()
	q := b.next
	if q == nil {
		q = &question{done: make(chan struct{})}
		b.next = q
		if !b.asking {
			b.asking = true
			go b.ask()
		}
	}
	if q.callers++; q.callers == b.expected {
		close(b.complete)
	}
	b.mu.Unlock()
	select {
	case <-q.done:
		return q.rev, q.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// ask answers questions until there are none.
func (b *Barrier) ask() {
	for {
		b.mu.Lock()
		q := b.next
		b.next, b.asking, b.expected = nil, q != nil, 0
		b.mu.Unlock()
		if q == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		q.rev, q.err = b.Head(ctx)
		cancel()
		// Those who have been answered come back soon, and share the next question with those who
		// wait.
		b.mu.Lock()
		expected, complete := q.callers, make(chan struct{})
		if b.next != nil {
			expected += b.next.callers
		}
		b.expected, b.complete = expected, complete
		b.mu.Unlock()
		close(q.done)
		if expected == 1 {
			continue
		}
		pause := time.NewTimer(min(time.Duration(expected)*pauseEach, maxPause))
		select {
		case <-complete:
		case <-pause.C:
		}
		pause.Stop()
	}
}
