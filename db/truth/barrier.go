package truth

import (
	"context"
	"sync"
	"time"
)

const (
	// askTimeout bounds a call of Head, so that waiting callers get an error if the store does not
	// answer.
	askTimeout = 5 * time.Second
	// After a call of Head, the next call waits, so that the callers of the last one can come back and
	// share it. It waits pauseEach, about the time that one caller needs, for each of them, but at
	// most maxPause.
	pauseEach, maxPause = time.Millisecond, 20 * time.Millisecond
)

// Barrier reads a Store's head once for all callers that wait. A caller gets the result of a Head
// that began after its call, because an earlier one may lack changes that the caller knows of.
type Barrier struct {
	// Head is the store's.
	Head func(context.Context) (int64, error)

	mu       sync.Mutex
	running  bool
	next     *headCall // begins when the running one has ended
	expected int       // callers that the next one waits for; 0 while one is running
	complete chan struct{}
}

type headCall struct {
	callers int // may rise until the call begins
	done    chan struct{}
	rev     int64
	err     error
}

// Wait returns a revision no older than the last write that was acknowledged before the call.
func (b *Barrier) Wait(ctx context.Context) (int64, error) {
	b.mu.Lock()
	q := b.next
	if q == nil {
		q = &headCall{done: make(chan struct{})}
		b.next = q
		if !b.running {
			b.running = true
			go b.run()
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

// run calls Head until no caller waits.
func (b *Barrier) run() {
	for {
		b.mu.Lock()
		q := b.next
		b.next, b.running, b.expected = nil, q != nil, 0
		b.mu.Unlock()
		if q == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		q.rev, q.err = b.Head(ctx)
		cancel()
		// The callers of this call come back soon, and share the next one with the callers that wait.
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
