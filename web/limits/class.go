package limits

import (
	"context"
	"sync"
	"time"
)

// caller is who shares a class with others.
type caller struct{ user, address string }

// class bounds the requests of one kind that are in flight. Who comes when it is
// full waits for a moment; a place that becomes free goes to the caller with the
// fewest in flight.
type class struct {
	max        int           // in flight
	perCaller  int           // in flight for one caller
	maxWaiting int           // waiting for a place
	patience   time.Duration // how long one waits

	mu      sync.Mutex
	running int
	waiting int
	shares  map[caller]*share
}

// share is what one caller has of a class.
type share struct {
	running int
	waiting []chan bool // told true for a place, false for none
}

func newClass(max, perCaller, maxWaiting int, patience time.Duration) *class {
	return &class{max: max, perCaller: perCaller, maxWaiting: maxWaiting, patience: patience, shares: map[caller]*share{}}
}

// enter takes a place, which leave gives back, and is false when none became
// free in time.
func (c *class) enter(ctx context.Context, who caller) bool {
	c.mu.Lock()
	s := c.shares[who]
	if s == nil {
		s = &share{}
		c.shares[who] = s
	}
	if c.running < c.max && s.running < c.perCaller {
		c.running++
		s.running++
		c.mu.Unlock()
		return true
	}
	if !c.roomToWait(s) {
		c.forget(who, s)
		c.mu.Unlock()
		return false
	}
	admitted := make(chan bool, 1)
	s.waiting = append(s.waiting, admitted)
	c.waiting++
	c.mu.Unlock()

	over := time.NewTimer(c.patience)
	defer over.Stop()
	select {
	case ok := <-admitted:
		return ok
	case <-over.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range s.waiting {
		if p == admitted {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			c.waiting--
			c.forget(who, s)
			return false
		}
	}
	return <-admitted // it was told meanwhile
}

// roomToWait says whether a request of s may wait. Where too many do, the one
// that came last of the caller with most of them waits no longer.
func (c *class) roomToWait(s *share) bool {
	if c.waiting < c.maxWaiting {
		return true
	}
	most := s
	for _, other := range c.shares {
		if len(other.waiting) > len(most.waiting)+1 {
			most = other
		}
	}
	if most == s {
		return false
	}
	last := len(most.waiting) - 1
	most.waiting[last] <- false
	most.waiting = most.waiting[:last]
	c.waiting--
	return true
}

// leave gives a place back.
func (c *class) leave(who caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shares[who]
	s.running--
	c.running--
	if c.waiting > 0 {
		c.handOn()
	}
	c.forget(who, s)
}

// handOn gives a free place to the caller that waits with the fewest in flight.
func (c *class) handOn() {
	var next *share
	for _, s := range c.shares {
		if len(s.waiting) > 0 && s.running < c.perCaller && (next == nil || s.running < next.running) {
			next = s
		}
	}
	if next == nil {
		return
	}
	next.waiting[0] <- true
	next.waiting = next.waiting[1:]
	next.running++
	c.waiting--
	c.running++
}

// forget drops a caller that has nothing here any more.
func (c *class) forget(who caller, s *share) {
	if s.running == 0 && len(s.waiting) == 0 {
		delete(c.shares, who)
	}
}
