// Package clockguard keeps what depends on time from a clock that was set ahead by mistake.
package clockguard

import "time"

const (
	// leap is how far the clock must move between two looks, beyond the time that passed,
	// to count as set.
	leap = time.Minute
	// Wait is how long a clock that was set ahead must stay ahead to be believed.
	Wait = 5 * time.Minute
)

// Guard is the time by which keys expire and history ends. It is the clock's, unless
// that was just set ahead: a machine that has not asked a time server yet, or a person
// who mistyped, would delete every Event at once. If the clock is still there after
// Wait, it was right, as when a suspended machine wakes up.
type Guard struct {
	// what the clock said at the last look, or when something was last written
	Last    time.Time
	looked  time.Time     // when that look was, by the process's own clock, which nobody sets
	Ahead   time.Duration // of the clock, not believed
	waiting time.Duration // since it was set ahead
}

// Now takes the clock's time, the process's own time, and the least time that has passed
// since the last look. It returns the time to go by. set is true if this look found the
// clock set ahead.
func (s *Guard) Now(clock, own time.Time, least time.Duration) (now time.Time, set bool) {
	if s.Last.IsZero() {
		s.Last = clock
	}
	started := s.looked.IsZero() // then the time between says nothing of the clock
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
