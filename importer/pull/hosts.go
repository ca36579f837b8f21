package pull

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Others are the programs that ask the same hosts as this one. Its methods are called for each
// request.
type Others interface {
	// Sharing returns how many programs ask a host now, with this one, which is about to: how much
	// it is asked is divided among them.
	Sharing(host string) int
	// Paused tells the others that a host wants not to be asked for d from now.
	Paused(host string, d time.Duration)
	// PauseLeft returns for how long a host does not want to be asked, by what the others were
	// told; 0 or less is none.
	PauseLeft(host string) time.Duration
}

// hosts remembers the bounds of each host, for the most recently used hosts.
type hosts struct {
	limits     Limits
	registries registries
	others     Others // nil for none
	clock      clock.WithDelayedExecution

	mu    sync.Mutex
	known *lru.Cache // name → *host
}

func newHosts(limits Limits, registries registries, others Others, clock clock.WithDelayedExecution) *hosts {
	return &hosts{limits: limits, registries: registries, others: others, clock: clock, known: lru.New(maxHosts)}
}

func (hs *hosts) get(name string) *host {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h, ok := hs.known.Get(name); ok {
		return h.(*host)
	}
	r := hs.registries.lookup(canonicalHost(name))
	h := &host{
		name: name, hosts: hs,
		atATime: int64(cmp.Or(r.RequestsAtATime, hs.limits.HostConcurrency)),
		pace:    newPace(name, cmp.Or(r.RequestsPerSecond, hs.limits.HostRate), hs.limits.HostBurst),
	}
	h.slots = semaphore.NewWeighted(h.atATime)
	hs.known.Add(name, h)
	return h
}

// host bounds the requests to one host: how many at a time, how many a second, and none
// for as long as it asked.
type host struct {
	name  string
	hosts *hosts
	pace  *pace

	atATime int64               // of all programs that share the host
	slots   *semaphore.Weighted // a request takes as many as there are programs

	mu          sync.Mutex
	pausedUntil time.Time // no request before this time
}

// acquire waits until the host may be asked once more. release ends that. While
// the host is paused for longer than Limits.MaxWait, acquire fails at once.
func (h *host) acquire(ctx context.Context) (release func(), err error) {
	for {
		wait := h.pauseLeft()
		if wait <= 0 {
			break
		}
		if wait > h.hosts.limits.MaxWait {
			return nil, &Error{Reason: RateLimited, RetryAfter: wait, Message: fmt.Sprintf("%s asked for a pause", h.name)}
		}
		if err := sleep(ctx, h.hosts.clock, wait); err != nil {
			return nil, err
		}
	}
	sharing := 1
	if h.hosts.others != nil {
		sharing = max(h.hosts.others.Sharing(h.name), 1)
	}
	weight := min(int64(sharing), h.atATime)
	if h.slots.Acquire(ctx, weight) != nil {
		return nil, context.Cause(ctx)
	}
	release = func() { h.slots.Release(weight) }
	now := h.hosts.clock.Now()
	h.pace.divide(now, sharing)
	turn, wait := h.pace.reserve(now)
	if err := sleep(ctx, h.hosts.clock, wait); err != nil {
		turn.CancelAt(h.hosts.clock.Now())
		release()
		return nil, err
	}
	return release, nil
}

// pause keeps requests from the host for d from now.
func (h *host) pause(d time.Duration) {
	if h.hosts.others != nil {
		h.hosts.others.Paused(h.name, d)
	}
	until := h.hosts.clock.Now().Add(d)
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.pausedUntil) {
		h.pausedUntil = until
	}
}

func (h *host) pauseLeft() (left time.Duration) {
	if h.hosts.others != nil {
		left = h.hosts.others.PauseLeft(h.name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(left, h.pausedUntil.Sub(h.hosts.clock.Now()))
}

func sleep(ctx context.Context, clock clock.Clock, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
