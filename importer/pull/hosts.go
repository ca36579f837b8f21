package pull

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Others are other programs that send requests to the same hosts. Its methods are called for each
// request.
type Others interface {
	// Sharing returns how many programs, with this one, send requests to a host now. They divide the
	// host's rate and concurrency.
	Sharing(host string) int
	// Paused informs the others that a host asked for a pause of d from now.
	Paused(host string, d time.Duration)
	// PauseLeft returns the rest of the pause that others have reported for a host; 0 or less is none.
	PauseLeft(host string) time.Duration
}

// hosts remembers the bounds of each host, for the most recently used hosts.
type hosts struct {
	limits     Limits
	registries registries
	others     Others // nil for none
	clock      clock.WithDelayedExecution

	mu     sync.Mutex
	known  *lru.Cache // name → *host
	paused pausedHosts
}

// pausedHosts are hosts that asked for a pause, by name. They get no requests meanwhile, so the LRU
// cache would drop them first.
type pausedHosts map[string]*host

// keep keeps a host until its pause ends. If maxHosts are kept already, it does not keep another,
// so that no host pushes out an earlier one.
func (p pausedHosts) keep(h *host, now time.Time) {
	maps.DeleteFunc(p, func(_ string, h *host) bool { return !h.isPaused(now) })
	if len(p) < maxHosts {
		p[h.name] = h
	}
}

func newHosts(limits Limits, registries registries, others Others, clock clock.WithDelayedExecution) *hosts {
	return &hosts{limits: limits, registries: registries, others: others, clock: clock, known: lru.New(maxHosts), paused: pausedHosts{}}
}

func (hs *hosts) get(name string) *host {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h, ok := hs.known.Get(name); ok {
		return h.(*host)
	}
	if h := hs.paused[name]; h != nil {
		hs.known.Add(name, h)
		return h
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

// host bounds the requests to one host: how many at a time, how many a second, and none during a
// pause that it asked for.
type host struct {
	name  string
	hosts *hosts
	pace  *pace

	atATime int64               // of all programs that share the host
	slots   *semaphore.Weighted // a request takes as many as there are programs

	// gatewayFailures counts failures in a row of a gateway in front of the registry
	gatewayFailures atomic.Int64

	mu          sync.Mutex
	pausedUntil time.Time // no request before this time
	// granted is true if the pause came with the answer to a request that succeeded
	granted bool
	// well is the time of the last answer that was neither a failure nor a refusal
	well time.Time
	// ended: a pause that others reported does not count if it ends by then
	ended time.Time
}

// Answered returns when a registry last answered a request of this client with neither a failure
// nor a refusal; zero if it has not. registry is the host as in references.
func (c *Client) Answered(registry string) time.Time {
	h := c.hosts.get(apiHost(registry))
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.well
}

// EndPause ends the pause that a registry asked for: the next request is sent at once.
func (c *Client) EndPause(registry string) {
	h := c.hosts.get(apiHost(registry))
	var others time.Duration
	if h.hosts.others != nil {
		others = h.hosts.others.PauseLeft(h.name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// the pause that others reported is rounded up to a second
	h.pausedUntil, h.ended = time.Time{}, h.hosts.clock.Now().Add(others+time.Second)
}

// apiHost is the host of a registry's API.
func apiHost(registry string) string {
	if r, err := name.NewRegistry(registry); err == nil {
		return r.RegistryStr()
	}
	return registry
}

// grantedWait is how long a request waits at least if the request before it used up a quota, even
// if Limits.MaxWait is shorter. A job that gave up would begin with the same first request again,
// and never get further.
const grantedWait = 10 * time.Second

// acquire waits until a request to the host may be sent; call release when it ends. While the host
// is paused for longer than Limits.MaxWait, acquire fails at once.
func (h *host) acquire(ctx context.Context) (release func(), err error) {
	for {
		wait, longest := h.pauseLeft()
		if wait <= 0 {
			break
		}
		if wait > longest {
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

// maxGatewayFailures is how many failures in a row a server causes that is being replaced. More
// have another cause.
const maxGatewayFailures = 16

// answered records how long an answer took to begin, and its status.
func (h *host) answered(now time.Time, took time.Duration, status int) {
	h.pace.answered(now, took, isRefusal(status))
	if status < http.StatusInternalServerError && !isRefusal(status) {
		h.mu.Lock()
		h.well = now
		h.mu.Unlock()
	}
	if isGatewayFailure(status) {
		h.gatewayFailures.Add(1)
	} else {
		h.gatewayFailures.Store(0)
	}
}

// pause stops requests to the host for d from now, at most for MaxPause. granted is true if the
// request whose answer asks for the pause succeeded.
func (h *host) pause(d time.Duration, granted bool) {
	if d = min(d, MaxPause); d <= 0 {
		return
	}
	if h.hosts.others != nil {
		h.hosts.others.Paused(h.name, d)
	}
	now := h.hosts.clock.Now()
	h.mu.Lock()
	if until := now.Add(d); until.After(h.pausedUntil) {
		h.pausedUntil, h.granted = until, granted
	}
	h.mu.Unlock()
	h.hosts.mu.Lock()
	defer h.hosts.mu.Unlock()
	h.hosts.paused.keep(h, now)
}

// isPaused reports whether a pause that the host asked this program for has not ended.
func (h *host) isPaused(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pausedUntil.After(now)
}

// pauseLeft returns the rest of the host's pause, and how long a request waits for its end at most.
func (h *host) pauseLeft() (left, longest time.Duration) {
	if h.hosts.others != nil {
		left = h.hosts.others.PauseLeft(h.name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.hosts.clock.Now().Add(left).After(h.ended) {
		left = 0
	}
	longest = h.hosts.limits.MaxWait
	if h.granted {
		longest = max(longest, grantedWait)
	}
	return max(left, h.pausedUntil.Sub(h.hosts.clock.Now())), longest
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
