package limits

import (
	"context"
	"sync"
	"time"
)

// caller is a user at an address.
type caller struct{ user, address string }

// bound names the bound that a request would exceed; empty for none.
type bound string

// The bounds, as the metric names them.
const (
	byAddress bound = "address" // of one user at one address
	byUser    bound = "user"    // of one user at all addresses
	byServer  bound = "server"  // of all
)

// class bounds the requests of one kind in flight: in all, for each user, and for each user at one
// address. A request that would exceed a bound waits, for at most maxWait. A place that becomes
// free goes to the user with the fewest requests in flight, and of that user's addresses to the one
// with the fewest.
type class struct {
	max        int           // in flight
	perUser    int           // in flight for one user
	perCaller  int           // in flight, and waiting, for one user at one address
	maxWaiting int           // waiting for a place
	maxWait    time.Duration // how long a request waits for a place

	mu      sync.Mutex
	running int
	waiting int
	shares  map[caller]*share
	users   map[string]*tally
}

// tally counts one user's part of a class.
type tally struct{ running, waiting, callers int }

// share is one caller's part of a class.
type share struct {
	user    *tally
	running int
	waiting []chan bool // each is sent true for a place, false for none
}

func newClass(max, perUser, perCaller, maxWaiting int, maxWait time.Duration) *class {
	return &class{
		max: max, perUser: perUser, perCaller: perCaller, maxWaiting: maxWaiting, maxWait: maxWait,
		shares: map[caller]*share{}, users: map[string]*tally{},
	}
}

// enter takes a place; call leave to free it. If no place becomes free in time, enter returns the
// bound that is reached.
func (c *class) enter(ctx context.Context, who caller) bound {
	c.mu.Lock()
	s := c.share(who)
	reached := c.reached(s)
	if reached == "" {
		c.run(s)
		c.mu.Unlock()
		return ""
	}
	if len(s.waiting) >= c.perCaller || !c.roomToWait(s) {
		c.forget(who, s)
		c.mu.Unlock()
		return reached
	}
	admitted := make(chan bool, 1)
	s.waiting = append(s.waiting, admitted)
	s.user.waiting++
	c.waiting++
	c.mu.Unlock()

	over := time.NewTimer(c.maxWait)
	defer over.Stop()
	got, decided := false, false
	select {
	case got = <-admitted:
		decided = true
	case <-over.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !decided && !c.giveUp(s, admitted) {
		got = <-admitted // handOn or roomToWait has sent it meanwhile
	}
	if got {
		return ""
	}
	c.forget(who, s)
	return reached
}

// giveUp removes a request from those that wait. It returns false if the request no longer waits.
func (c *class) giveUp(s *share, admitted chan bool) bool {
	for i, p := range s.waiting {
		if p == admitted {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.user.waiting--
			c.waiting--
			return true
		}
	}
	return false
}

func (c *class) share(who caller) *share {
	s := c.shares[who]
	if s == nil {
		user := c.users[who.user]
		if user == nil {
			user = &tally{}
			c.users[who.user] = user
		}
		user.callers++
		s = &share{user: user}
		c.shares[who] = s
	}
	return s
}

// reached returns the bound that keeps s from having one more request in flight.
func (c *class) reached(s *share) bound {
	switch {
	case s.running >= c.perCaller:
		return byAddress
	case s.user.running >= c.perUser:
		return byUser
	case c.running >= c.max:
		return byServer
	}
	return ""
}

func (c *class) run(s *share) {
	c.running++
	s.running++
	s.user.running++
}

// roomToWait reports whether a request of s may wait. If too many wait, it refuses one of them: the
// latest of the user, and of that user's address, that has most.
func (c *class) roomToWait(s *share) bool {
	if c.waiting < c.maxWaiting {
		return true
	}
	var largest *share
	for _, other := range c.shares {
		if largest == nil || more(other.user.waiting, len(other.waiting), largest.user.waiting, len(largest.waiting)) {
			largest = other
		}
	}
	switch {
	case len(largest.waiting) == 0,
		largest.user == s.user && len(largest.waiting) <= len(s.waiting)+1,
		largest.user != s.user && largest.user.waiting <= s.user.waiting+1:
		return false
	}
	last := len(largest.waiting) - 1
	largest.waiting[last] <- false
	largest.waiting = largest.waiting[:last]
	largest.user.waiting--
	c.waiting--
	return true
}

// more reports whether the first user has more than the other: in total or, if the totals are
// equal, at the address.
func more(user, here, otherUser, otherHere int) bool {
	return user > otherUser || user == otherUser && here > otherHere
}

// leave frees a place.
func (c *class) leave(who caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.release(who)
}

// rest frees a place for other users. It still counts for its own user during the pause.
func (c *class) rest(who caller, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.handOn()
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.release(who)
	})
}

// release ends the pause after rest: the place no longer counts for its user.
func (c *class) release(who caller) {
	s := c.shares[who]
	s.running--
	s.user.running--
	c.handOn()
	c.forget(who, s)
}

// handOn gives a free place to a request that waits.
func (c *class) handOn() {
	if c.waiting == 0 {
		return
	}
	var next *share
	for _, s := range c.shares {
		if len(s.waiting) > 0 && c.reached(s) == "" && (next == nil || more(next.user.running, next.running, s.user.running, s.running)) {
			next = s
		}
	}
	if next == nil {
		return
	}
	next.waiting[0] <- true
	next.waiting = next.waiting[1:]
	next.user.waiting--
	c.waiting--
	c.run(next)
}

// forget drops a caller that has no more requests in the class.
func (c *class) forget(who caller, s *share) {
	if s.running > 0 || len(s.waiting) > 0 || c.shares[who] != s {
		return
	}
	delete(c.shares, who)
	if s.user.callers--; s.user.callers == 0 {
		delete(c.users, who.user)
	}
}
