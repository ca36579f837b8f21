// Package clockguard protects expiry and history from a clock that was set ahead by mistake.
package clockguard

import "time"

const (
	// leap is how far the clock must move between two calls, beyond the time that passed, to count as
	// set.
	leap = time.Minute
	// Wait is how long a clock that was set ahead must stay ahead before it is trusted.
	Wait = 5 * time.Minute
)

// Guard provides the time by which keys expire and history ends. It is the clock's time, unless the
// clock was just set ahead: otherwise a machine without a time server, or a typing error, would
// delete every Event at once. If the clock is still ahead after Wait, it is right: for instance,
// the machine was suspended.
type Guard struct {
	// the clock's time at the last call or, at first, of the last write
	Last    time.Time
	looked  time.Time     // when that call was, by the monotonic clock
	Ahead   time.Duration // how far the clock is ahead, while it is not trusted
	waiting time.Duration // since it was set ahead
}

// Now takes the clock's time, the monotonic time, and the least time that has passed since the last
// call. It returns the time to use. set is true if this call found that the clock was set ahead.
func (s *Guard) Now(clock, own time.Time, least time.Duration) (now time.Time, set bool) {
	if s.Last.IsZero() {
		s.Last = clock
	}
	started := s.looked.IsZero() // then there is no earlier call to compare with
	if started {
		s.looked = own
	}
	passed := max(own.Sub(s.looked), least)
	moved := clock.Sub(s.Last)
	s.Last, s.looked = clock, own
	s.waiting += passed
	switch by := moved - passed; {
	case by > leap:
		s.Ahead, s.waiting, set = s.Ahead+by, 0, !started
	case by < -leap:
		s.Ahead = max(0, s.Ahead+by)
	}
	if s.waiting >= Wait {
		s.Ahead = 0
	}
	return clock.Add(-s.Ahead), set
}
