// Package hostlimit limits and slows down the jobs of each registry by itself, so that a slow, dead
// or busy registry costs only itself:
//
//   - a host that is not known to answer is given one job at a time, one that answers up to
//     a bound;
//   - a host that cannot be reached, does not answer in time, refuses requests or asks to be left
//     alone is backed off from: for as long as it asked, and at least for a second, which doubles
//     up to five minutes with each failure. Then one job probes it. A host that returns an image
//     and refuses only what is asked about its signatures is backed off from for as long as it
//     asked;
//   - the first job of a host has a slot of its own, of which there are many, because a job that
//     hangs costs little else. Further jobs of hosts that answer share other slots. So
//     however many hosts hang, up to that many, a push to another host finds a slot.
package hostlimit

import (
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// Limiter is safe for concurrent use.
type Limiter struct {
	further, perHost int
	clock            clock.PassiveClock

	mu      sync.Mutex
	running int
	busy    int // hosts for which something runs
	hosts   map[string]*hostState
}

// hostState is kept while jobs run, and while something bad is known of the host.
type hostState struct {
	running  int
	answers  bool      // the host's last sign was an answer
	failures int       // in a row
	until    time.Time // no job before this time
}

// maxBusy bounds the hosts that have a job at a time. If as many hang, others wait until one of
// them is given up.
const maxBusy = 128

// New returns a Limiter by which a host gets perHost jobs at a time, and all hosts together further
// jobs beside the first one of each of at most 128 hosts.
func New(further, perHost int, clock clock.PassiveClock) *Limiter {
	return &Limiter{further: further, perHost: perHost, clock: clock, hosts: map[string]*hostState{}}
}

// Free returns how many jobs may be asked for at once, so that whichever they are, each has a
// slot.
func (l *Limiter) Free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, further := l.free()
	if first == 0 {
		return further
	}
	return min(first, max(1, further))
}

// free returns how many slots there are for first jobs of hosts, and for further ones.
func (l *Limiter) free() (first, further int) {
	return maxBusy - l.busy, max(0, l.further-(l.running-l.busy))
}

// Available returns how many more jobs of a host may begin. While the host is backed off from, n is
// 0, and again is when to probe it.
func (l *Limiter) Available(host string) (n int, again time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if h == nil {
		h = &hostState{}
	}
	first, further := l.free()
	switch {
	case h.until.After(l.clock.Now()):
		return 0, h.until
	case h.running == 0 && first == 0:
		return 0, time.Time{}
	case h.running == 0 && h.answers:
		n = min(l.perHost, 1+further)
	case h.running == 0:
		n = 1
	case h.answers:
		n = min(l.perHost-h.running, further)
	}
	return max(0, n), time.Time{}
}

// Start is called when a job of a host begins, and End when it has ended.
func (l *Limiter) Start(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if h == nil {
		h = &hostState{}
		l.hosts[host] = h
	}
	if h.running++; h.running == 1 {
		l.busy++
	}
	l.running++
}

// Bounds of a back-off.
const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// maxIdle bounds the hosts that are remembered although nothing runs for them.
const maxIdle = 1024

// Done takes the result of a job. It returns when the host may be asked again; zero when there is
// no back-off.
func (l *Limiter) Done(host string, err error) (pausedUntil time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, now := l.hosts[host], l.clock.Now()
	if h.running--; h.running == 0 {
		l.busy--
	}
	l.running--
	var e *pull.Error
	switch failed := errors.As(err, &e); {
	case failed && importer.Unsearched(err) && e.IsRefusal():
		// The request was answered, so the host's own wish is the only reason for the pause.
		if !h.until.After(now) {
			*h = hostState{running: h.running, answers: true}
		}
		if until := now.Add(e.RetryAfter); until.After(h.until) {
			h.until = until
		}
	case failed && BacksOff(e):
		h.answers = false
		// A job that ran beside the one that failed first is not a further failure.
		if !h.until.After(now) {
			h.until = now.Add(min(minBackoff<<min(h.failures, 16), maxBackoff))
			h.failures++
		}
		if until := now.Add(e.RetryAfter); until.After(h.until) {
			h.until = until
		}
	case h.until.After(now) || failed && e.Reason == pull.Canceled:
		// An answer does not end the pause that the host asked for.
	case err == nil || failed:
		*h = hostState{running: h.running, answers: true}
	}
	if len(l.hosts) > maxIdle {
		l.forget()
	}
	if h.until.After(now) {
		return h.until
	}
	return time.Time{}
}

// BackingOff returns the hosts that are backed off from, in order.
func (l *Limiter) BackingOff() (hosts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, h := range l.hosts {
		if h.until.After(l.clock.Now()) {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// forget forgets hosts for which nothing runs, until half as many are left, or until there
// are no more of them.
func (l *Limiter) forget() {
	for name, h := range l.hosts {
		if h.running == 0 {
			delete(l.hosts, name)
		}
		if len(l.hosts) <= maxIdle/2 {
			return
		}
	}
}

// BacksOff reports whether an error is about the host, which is backed off from then, and not about
// what it was asked for.
func BacksOff(e *pull.Error) bool {
	switch e.Reason {
	case pull.Unreachable, pull.Timeout, pull.RateLimited:
		return true
	}
	return e.IsRefusal()
}
