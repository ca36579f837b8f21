// Package room shares a limited resource among parties, so that one party cannot take all of it.
package room

import (
	"context"
	"slices"
	"sync"
)

// Room is a number of places, or bytes. A party holds at most a share, or a single piece that is
// larger. A piece may take its places all at once or one after another. The waiting party that
// holds least in its other pieces is served first, and a party's pieces are served in order. So
// another party waits for at most one piece of each, however many pieces they have waiting.
type Room struct {
	size, share int64

	mu      sync.Mutex
	held    int64
	parties map[string]int64 // how much each party holds, if any
	waiting []*waiter
}

// waiter waits for n more places for a piece that has some already. ready is closed once it gets
// them.
type waiter struct {
	party  string
	has, n int64
	ready  chan struct{}
}

// New returns a room with size places. A party holds at most share of them.
func New(size, share int64) *Room {
	return &Room{size: size, share: share, parties: map[string]int64{}}
}

// Acquire waits until a party may hold n more, and returns the function that gives it back. If n
// exceeds the room, it counts as the whole room.
func (r *Room) Acquire(ctx context.Context, party string, n int64) (release func(), err error) {
	n = min(n, r.size)
	if err := r.Add(ctx, party, 0, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { r.Remove(party, n) }), nil
}

// Add waits until a piece that has some already may have n more. has+n must not exceed the room.
func (r *Room) Add(ctx context.Context, party string, has, n int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := r.enter(party, has, n)
	select {
	case <-w.ready:
		return nil
	default:
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	if r.leave(w) {
		return context.Cause(ctx)
	}
	return nil // w was served meanwhile
}

// TryAdd is Add without waiting. It reports whether the piece got n more.
func (r *Room) TryAdd(party string, has, n int64) bool { return !r.leave(r.enter(party, has, n)) }

// Remove gives back n of a party's places.
func (r *Room) Remove(party string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= n
	if r.parties[party] -= n; r.parties[party] == 0 {
		delete(r.parties, party)
	}
	r.serve()
}

func (r *Room) enter(party string, has, n int64) *waiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &waiter{party: party, has: has, n: n, ready: make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.serve()
	return w
}

// leave makes w give up. It reports whether w was still waiting.
func (r *Room) leave(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.waiting {
		if other == w {
			r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
			r.serve() // w may have delayed others
			return true
		}
	}
	return false
}

// serve serves the waiters for which there is room. If the room is too full for the next waiter,
// the others wait, too: smaller pieces must not overtake it for ever.
func (r *Room) serve() {
	for {
		next, least := -1, int64(0)
		for i, w := range r.waiting {
			has := r.parties[w.party]
			mine := has == w.has || has+w.n <= r.share
			if other := has - w.has; mine && (next < 0 || other < least) {
				next, least = i, other
			}
		}
		if next < 0 || r.held+r.waiting[next].n > r.size {
			return
		}
		w := r.waiting[next]
		r.waiting = slices.Delete(r.waiting, next, next+1)
		r.held += w.n
		r.parties[w.party] += w.n
		close(w.ready)
	}
}
