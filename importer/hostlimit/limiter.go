// Package hostlimit limits and slows down the jobs of each registry by itself, so that a slow, dead
// or busy registry costs only itself:
//
//   - a host that is not known to answer is given one job at a time, one that answers up to
//     a bound;
//   - a host that cannot be reached, does not answer in time, refuses requests or asks to be left
//     alone is backed off from: for as long as it asked, and at least for a second, which doubles
//     up to five minutes with each failure. Then one job probes it, and sooner if there is a sign
//     that the host is back (see Sign). A host that returns an image and refuses only requests for
//     its signatures gets a pause only if it asked for one;
//   - a job may still hang although its host is back. It does not delay others: another job begins
//     beside it, and its timeout does not count as a failure of the host;
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
	left    int // running jobs that have left their slots
	busy    int // hosts for which something runs
	hosts   map[string]*hostState
}

// hostState is kept while jobs run, and while something bad is known of the host.
type hostState struct {
	running  int
	left     int       // running jobs that have left their slots
	answers  bool      // the host's last sign was an answer
	failures int       // in a row
	until    time.Time // no job before this time
	asked    time.Time // until when the host asked to be left alone; not after until
	failed   time.Time // the last failure
	probed   time.Time // the last sign that the host is back
	back     time.Time // the last such sign, or the first answer after failures
	before   int       // running jobs that began before back
	// when a sign, and when an answer, last caused all waiting jobs of the host to be tried
	bySign, byAnswer time.Time
}

// maxBusy bounds the hosts that have a job at a time. If as many hang, others wait until one of
// them is given up.
const maxBusy = 128

// New returns a Limiter with two bounds on the jobs at a time: a host gets perHost jobs, and all
// hosts together get further jobs in addition to the first job of each of at most 128 hosts.
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
	return maxBusy - l.busy, max(0, l.further-max(0, l.running-l.left-l.busy))
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
		n = min(l.perHost-(h.running-h.left), further)
	case h.running == h.before && h.running < maxHung:
		n = min(1, further)
	}
	return max(0, n), time.Time{}
}

const (
	// minProbe is the least time between two signs that count: outsiders can cause signs.
	minProbe = 5 * time.Second
	// maxHung is how many jobs of a host may run while older ones hang.
	maxHung = 2
)

// Sign takes a sign of a time that a host answers: a request that it answered, or a notification
// that it sent. A sign after the last failure ends the back-off: a job may probe the host now, even
// beside a job that hangs. A pause that the host asked for goes on. isBack is [Result.IsBack].
func (l *Limiter) Sign(host string, at time.Time) (isBack bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, now := l.hosts[host], l.clock.Now()
	if h == nil || h.failures == 0 || !at.After(h.failed) || now.Sub(h.probed) < minProbe || h.running == 0 && !h.until.After(now) {
		return false
	}
	h.until, h.probed = h.asked, now
	h.returned(now)
	return due(&h.bySign, now)
}

// Fails reports whether a host has not answered since it failed.
func (l *Limiter) Fails(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	return h != nil && h.failures > 0
}

// returned records that a host is back. All jobs that run now began before that.
func (h *hostState) returned(now time.Time) { h.back, h.before = now, h.running }

// due reports whether maxBackoff has passed since last. If so, it sets last to now.
func due(last *time.Time, now time.Time) bool {
	if now.Sub(*last) < maxBackoff {
		return false
	}
	*last = now
	return true
}

// End ends the back-off from a host, or from all if it is "", and what it asked for, too.
func (l *Limiter) End(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, h := range l.hosts {
		if (host == "" || name == host) && !h.answers {
			h.until, h.asked, h.failures = time.Time{}, time.Time{}, 0
			h.returned(l.clock.Now())
		}
	}
}

// Until returns when a host may be asked again; zero if now.
func (l *Limiter) Until(host string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hosts[host]; h != nil && h.until.After(l.clock.Now()) {
		return h.until
	}
	return time.Time{}
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

// maxLeft bounds the jobs that have left their slots: each has an image in memory.
const maxLeft = 64

// Leave gives the slot of a job to another while the job waits for something else than its host,
// until Return. It returns false if too many jobs wait so: then the job keeps its slot.
func (l *Limiter) Leave(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left >= maxLeft {
		return false
	}
	l.left++
	l.hosts[host].left++
	return true
}

// Return takes the slot of a job back, although another has it: the job is nearly done.
func (l *Limiter) Return(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left--
	l.hosts[host].left--
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
	return l.DoneSince(host, l.clock.Now(), err).PausedUntil
}

// Result is what the end of a job shows about its host.
type Result struct {
	// PausedUntil is when the host may be asked again; zero when there is no back-off.
	PausedUntil time.Time
	// IsBack is true for the first job that the host answers after failures. The caller should then
	// try all waiting jobs of the host. It is true at most once in five minutes, so that a host that
	// comes and goes does not use up the attempts of jobs.
	IsBack bool
	// HungBefore is true for a job that hung and had begun before the host was back.
	HungBefore bool
}

// DoneSince is Done for a job whose start is known.
func (l *Limiter) DoneSince(host string, began time.Time, err error) (r Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, now := l.hosts[host], l.clock.Now()
	if h.running--; h.running == 0 {
		l.busy--
	}
	l.running--
	old := began.Before(h.back)
	if old && h.before > 0 {
		h.before--
	}
	answered := func() {
		if !h.failed.IsZero() {
			h.back, r.IsBack = now, due(&h.byAnswer, now)
		}
		*h = hostState{running: h.running, left: h.left, answers: true, back: h.back, bySign: h.bySign, byAnswer: h.byAnswer}
	}
	var e *pull.Error
	switch failed := errors.As(err, &e); {
	case failed && importer.Unsearched(err) && e.IsRefusal():
		// The request was answered, so the host's own wish is the only reason for the pause.
		if !h.until.After(now) {
			answered()
		}
		h.ask(now.Add(min(e.RetryAfter, pull.MaxPause)))
	case failed && old && e.Reason == pull.Timeout:
		r.HungBefore = true
	case failed && BacksOff(e):
		h.answers, h.failed = false, now
		// A job that ran beside the one that failed first is not a further failure.
		if !h.until.After(now) {
			h.until = now.Add(min(minBackoff<<min(h.failures, 16), maxBackoff))
			h.failures++
		}
		h.ask(now.Add(min(e.RetryAfter, pull.MaxPause)))
	case h.asked.After(now) || failed && e.Reason == pull.Canceled:
		// An answer does not end the pause that the host asked for.
	case err == nil || failed:
		answered()
	}
	if len(l.hosts) > maxIdle {
		l.forget()
	}
	if h.until.After(now) {
		r.PausedUntil = h.until
	}
	return r
}

// ask notes until when the host asks to be left alone.
func (h *hostState) ask(until time.Time) {
	if until.After(h.asked) {
		h.asked = until
	}
	if until.After(h.until) {
		h.until = until
	}
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

// forget forgets hosts for which nothing runs until half as many are left: those that fail and
// those that asked for a pause last.
func (l *Limiter) forget() {
	now := l.clock.Now()
	for _, keep := range []func(*hostState) bool{
		func(h *hostState) bool { return h.until.After(now) },
		func(h *hostState) bool { return h.asked.After(now) },
		func(*hostState) bool { return false },
	} {
		for name, h := range l.hosts {
			if len(l.hosts) <= maxIdle/2 {
				return
			}
			if h.running == 0 && !keep(h) {
				delete(l.hosts, name)
			}
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
