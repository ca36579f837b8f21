package pull

import (
	"cmp"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// firstRate is how many requests a second a host gets at first.
	firstRate = 200
	// minRate and maxRate bound the rate. A registry on the same machine answers 20,000 requests a
	// second, at a few at a time; see Limits.HostConcurrency.
	minRate, maxRate = 10, 51_200
	// hubRate is the rate for Docker Hub, which limits requests.
	hubRate = 20
	// minPaceWindow and maxPaceWindow bound how long a rate is tried, and paceAnswers is the number
	// of answers that a trial needs.
	minPaceWindow, maxPaceWindow = 20 * time.Millisecond, 250 * time.Millisecond
	paceAnswers                  = 20
	// quick is a time to an answer that always counts as fast. A host nearby may answer in a fraction
	// of it, and then becomes more than twice as slow at a higher rate, which is no reason to stay at
	// the lower one.
	quick = 2 * time.Millisecond
	// calm is how long a rate stays after it was halved.
	calm = time.Minute
	// The rate is halved after maxRefused refusals, if they are more than one in refusedShare of the
	// answers at that rate. A host that fails now and then gives fewer, at any rate. Only the latest
	// paceMemory answers count.
	maxRefused, refusedShare, paceMemory = 2, 20, 1000
	// shareAnswers is how many answers show a share of refusals. Where more than half are refused,
	// fewer do.
	shareAnswers = 50
)

// pace is how many requests a second all programs together send to a host. Unless the number is
// configured, it adapts to the answers that this program gets. It doubles after a window in which
// requests had to wait for it, the host refused none (429, 503), and the mean time to an answer was
// at most twice the least mean so far, or two milliseconds. It halves when the host has refused
// more than one in twenty, and then stays for a minute. If the host then refuses the same share,
// the rate is not why: it returns to what it was, and for a minute only a share that doubles, or is
// more than half, halves it. A window is a quarter of a second, or shorter for a host that gives
// five answers sooner.
type pace struct {
	bucket *rate.Limiter // this program's part
	fixed  bool

	mu       sync.Mutex
	number   float64   // of requests a second, for all programs together
	burst    int       // of all programs
	sharing  int       // programs among which the two are divided
	since    time.Time // of the present window
	answers  int
	took     time.Duration // all answers of the window together
	waited   bool
	refused  bool
	asked    int           // at the present rate
	refusals int           // of these
	best     time.Duration // least mean of a window
	calm     time.Time     // no doubling before
	halved   trial         // what was seen before the rate was halved, once or more often in a row
	anyway   float64       // the share that the host refuses at any rate; 0 if none is known
	until    time.Time     // anyway counts until then
}

// trial is the share of requests that a host refused at a rate.
type trial struct{ rate, share float64 }

// isAnyway reports whether a host refuses a share at a lower rate that is nearer to t's share than
// to what a host would refuse that takes so many requests a second.
func (t trial) isAnyway(rate, share float64) bool {
	return t.rate > 0 && share > (t.share+max(0, 1-(1-t.share)*t.rate/rate))/2
}

// paceWindow is how long a rate is tried, given the mean time to an answer: a host that answers
// sooner needs less time.
func paceWindow(mean time.Duration) time.Duration {
	return min(max(5*mean, minPaceWindow), maxPaceWindow)
}

// newPace returns a pace of perSecond requests after a burst; perSecond 0 adapts.
func newPace(host string, perSecond float64, burst int) *pace {
	p := &pace{fixed: perSecond > 0}
	switch {
	case p.fixed:
	case IsDockerHub(host):
		p.fixed, perSecond = true, hubRate
	default:
		perSecond = firstRate
	}
	burst = cmp.Or(burst, max(1, int(2*perSecond)))
	p.number, p.burst, p.sharing = perSecond, burst, 1
	p.bucket = rate.NewLimiter(rate.Limit(perSecond), burst)
	return p
}

// IsDockerHub reports whether a host is one of Docker Hub's.
func IsDockerHub(host string) bool {
	switch host {
	case "index.docker.io", "registry-1.docker.io", "auth.docker.io":
		return true
	}
	return false
}

// divide sets this program's part of the rate, if sharing programs send requests to the host.
func (p *pace) divide(now time.Time, sharing int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sharing != p.sharing {
		p.sharing = sharing
		p.apply(now)
	}
}

// apply sets the bucket to this program's part of the rate. The caller holds mu.
func (p *pace) apply(now time.Time) {
	p.bucket.SetLimitAt(now, rate.Limit(p.number/float64(p.sharing)))
	p.bucket.SetBurstAt(now, max(1, p.burst/p.sharing))
}

// reserve takes the next turn, which the caller can cancel, and returns how long to wait for it.
func (p *pace) reserve(now time.Time) (turn *rate.Reservation, wait time.Duration) {
	turn = p.bucket.ReserveN(now, 1)
	if wait = turn.DelayFrom(now); wait > 0 && !p.fixed {
		p.mu.Lock()
		p.waited = true
		p.mu.Unlock()
	}
	return turn, wait
}

// answered records how long an answer took to begin, and whether it refused the request with 429 or
// 503.
func (p *pace) answered(now time.Time, took time.Duration, refused bool) {
	if p.fixed {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = now
	}
	p.answers++
	p.took += took
	if p.asked++; refused {
		p.refused = true
		p.refusals++
	}
	if p.asked > paceMemory {
		p.asked, p.refusals = p.asked/2, p.refusals/2
	}
	mean := p.took / time.Duration(p.answers)
	if now.Sub(p.since) < paceWindow(mean) || p.answers < paceAnswers && !p.refused {
		return
	}
	if p.best == 0 || mean < p.best {
		p.best = mean
	}
	share := float64(p.refusals) / float64(p.asked)
	if !now.Before(p.until) {
		p.anyway = 0
	}
	refuses := p.refusals >= maxRefused && refusedShare*p.refusals > p.asked && (p.asked >= shareAnswers || share > 0.5)
	switch {
	case refuses && share <= 0.5 && p.halved.isAnyway(p.number, share):
		p.number, p.calm = p.halved.rate, now
		p.anyway, p.until = share, now.Add(calm)
		p.asked, p.refusals, p.halved = 0, 0, trial{}
	case refuses && (share > 0.5 || share > 2*p.anyway):
		if p.halved.rate == 0 {
			p.halved = trial{p.number, share}
		}
		p.number, p.calm = max(p.number/2, minRate), now.Add(calm)
		p.asked, p.refusals = 0, 0
	case p.refused && p.anyway == 0:
	case p.waited && mean <= max(2*p.best, quick) && !now.Before(p.calm):
		p.number = min(2*p.number, maxRate)
		p.asked, p.refusals, p.halved = 0, 0, trial{}
	}
	p.burst = int(2 * p.number)
	p.apply(now)
	p.since, p.answers, p.took, p.waited, p.refused = now, 0, 0, false, false
}
