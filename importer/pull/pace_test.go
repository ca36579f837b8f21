package pull

import (
	"math/rand/v2"
	"testing"
	"time"
)

// window has n requests made within a window, each answered after took, and one in five refused.
func window(p *pace, now time.Time, n int, took time.Duration, refused bool) time.Time {
	whole := paceWindow(took)
	for i := range n {
		at := now.Add(time.Duration(i) * whole / time.Duration(n))
		p.reserve(at)
		p.answered(at, took, refused && i%5 == 0)
	}
	now = now.Add(whole)
	p.reserve(now)
	p.answered(now, took, false)
	return now
}

func TestPaceFollowsTheHost(t *testing.T) {
	t.Parallel()
	p := newPace("registry.example.com", 0, 0)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := func(what string, rate float64) {
		t.Helper()
		if got := p.perSecond(); got != rate {
			t.Fatalf("%s: %v requests a second, want %v", what, got, rate)
		}
	}
	want("at first", 200)
	now = window(p, now, 100, 10*time.Millisecond, false)
	want("who needs less is given no more", 200)
	now = window(p, now, 1000, 10*time.Millisecond, false)
	want("it answers quickly", 400)
	now = window(p, now, 2000, 15*time.Millisecond, false)
	want("and more", 800)
	now = window(p, now, 3000, 50*time.Millisecond, false)
	want("it becomes slow", 800)
	now = window(p, now, 3000, 15*time.Millisecond, true)
	want("it refuses", 400)
	now = window(p, now, 3000, 10*time.Millisecond, false)
	want("and is spared for a while", 400)
	// ends the window that was open meanwhile
	now = window(p, now.Add(calm), 20, 10*time.Millisecond, false)
	now = window(p, now, 3000, 10*time.Millisecond, false)
	want("then tried again", 800)
	for range 10 {
		now = window(p, now, 20000, 10*time.Millisecond, false)
	}
	want("at most", maxRate)
	now = window(p, now, 1, time.Millisecond, false)
	now = window(p, now, 1, time.Millisecond, false)
	want("a few answers tell nothing", maxRate)
	for range 20 {
		now = window(p, now, 3000, 10*time.Millisecond, true)
	}
	want("it refuses the same share at half the rate", maxRate)
	for range 100 {
		p.reserve(now)
		p.answered(now, 10*time.Millisecond, true)
		now = now.Add(time.Second)
	}
	want("at least", minRate)
}

// A registry that fails now and then, with one answer in five hundred, was asked ten times a second
// in the end.
func TestPaceOfAHostThatFailsNowAndThen(t *testing.T) {
	t.Parallel()
	p := newPace("registry.example.com", 0, 0)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 50_000 {
		p.reserve(now)
		p.answered(now, time.Millisecond, i%500 == 7)
		now = now.Add(time.Second / time.Duration(p.perSecond()))
	}
	if got := p.perSecond(); got < firstRate {
		t.Errorf("%v requests a second", got)
	}
	for p.perSecond() > minRate { // it ends: a host that refuses more is spared
		p.reserve(now)
		p.answered(now, time.Millisecond, true)
		now = now.Add(time.Second)
	}
}

// A registry that refused one request in seven, whatever the rate, was asked ten times a second in
// the end, so that what takes ten seconds took two minutes.
func TestPaceOfAHostThatRefusesAtAnyRate(t *testing.T) {
	t.Parallel()
	for _, oneIn := range []int{3, 7, 15} {
		p := newPace("registry.example.com", 0, 0)
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		now := start
		const requests = 100_000
		random := rand.New(rand.NewPCG(1, 2))
		for range requests {
			p.reserve(now)
			p.answered(now, time.Millisecond, random.IntN(oneIn) == 0)
			now = now.Add(time.Duration(float64(time.Second) / p.perSecond()))
		}
		if took, most := now.Sub(start), requests/firstRate*time.Second*11/10; p.perSecond() < firstRate/2 || took > most {
			t.Errorf("one in %d is refused: %v requests a second in the end, %d took %s, want at most %s", oneIn, p.perSecond(), requests, took, most)
		}
	}
}

// A registry that takes so many requests a second is soon asked for no more than twice as many, and
// seldom refuses.
func TestPaceOfAHostThatTakesSoManyRequests(t *testing.T) {
	t.Parallel()
	for _, limit := range []float64{15, 40, 95, 150, 190} {
		p := newPace("registry.example.com", 0, 0)
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		now := start
		taken, refused, asked := 0, 0, 0
		for now.Sub(start) < 10*time.Minute {
			p.reserve(now)
			isRefused := float64(taken) >= limit*(1+now.Sub(start).Seconds())
			if !isRefused {
				taken++
			}
			if now.Sub(start) > time.Minute {
				if asked++; isRefused {
					refused++
				}
			}
			p.answered(now, time.Millisecond, isRefused)
			now = now.Add(time.Duration(float64(time.Second) / p.perSecond()))
		}
		if share := float64(refused) / float64(asked); p.perSecond() > 2*limit || share > 0.1 {
			t.Errorf("%v requests a second are taken: asked %v in the end, %.0f %% refused after the first minute", limit, p.perSecond(), 100*share)
		}
	}
}

// A registry nearby is not kept waiting for the time that one far away needs to show how it bears a
// rate.
func TestPaceOfAHostNearby(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		200 * time.Microsecond: 180 * time.Millisecond, 20 * time.Millisecond: 800 * time.Millisecond,
		50 * time.Millisecond: 2 * time.Second, time.Second: 2 * time.Second,
	} {
		p := newPace("registry.example.com", 0, 0)
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		now := start
		for p.perSecond() < maxRate && now.Sub(start) < time.Minute {
			p.reserve(now)
			p.answered(now, took, false)
			now = now.Add(50 * time.Microsecond)
		}
		if got := now.Sub(start).Round(10 * time.Millisecond); got != want {
			t.Errorf("answers after %s: the rate is the greatest after %s, want %s", took, got, want)
		}
	}
}

func TestPaceThatWasGiven(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, p := range []*pace{newPace("registry.example.com", 20, 0), newPace("index.docker.io", 0, 0)} {
		for range 3 {
			now = window(p, now, 1000, time.Millisecond, false)
		}
		if got := p.perSecond(); got != 20 {
			t.Errorf("%v requests a second, want 20", got)
		}
	}
}

// perSecond is this program's present rate.
func (p *pace) perSecond() float64 { return float64(p.bucket.Limit()) }
