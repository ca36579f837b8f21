package db

import "time"

const (
	// leap is how far the clock must move between two looks, beyond the time that passed,
	// to count as set.
	leap = time.Minute
	// leapWait is how long a clock that was set ahead must stay ahead to be believed.
	leapWait = 5 * time.Minute
)

// steady is the time by which keys expire and history ends. It is the clock's, unless
// that was just set ahead: a machine that has not asked a time server yet, or a person
// who mistyped, would delete every Event at once. If the clock is still there after
// leapWait, it was right, as when a suspended machine wakes up.
type steady struct {
	last    time.Time     // what the clock said at the last look, or when something was last written
	looked  time.Time     // when that look was, by the process's own clock, which nobody sets
	ahead   time.Duration // of the clock, not believed
	waiting time.Duration // since it was set ahead
}

// now takes the clock's time, the process's own time, and the least time that has passed
// since the last look. It returns the time to go by. set is true if this look found the
// clock set ahead.
func (s *steady) now(clock, own time.Time, least time.Duration) (now time.Time, set bool) {
	if s.last.IsZero() {
		s.last = clock
	}
	started := s.looked.IsZero() // then the time between says nothing of the clock
	if started {
		s.looked = own
	}
	passed := max(own.Sub(s.looked), least)
	moved := clock.Sub(s.last)
	s.last, s.looked = clock, own
	s.waiting += passed
	switch by := moved - passed; {
	case by > leap:
		s.ahead, s.waiting, set = s.ahead+by, 0, !started
	case by < -leap:
		s.ahead = max(0, s.ahead+by)
	}
	if s.waiting >= leapWait {
		s.ahead = 0
	}
	return clock.Add(-s.ahead), set
}
