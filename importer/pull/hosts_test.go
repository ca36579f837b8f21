package pull

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestHostConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Limits: Limits{HostConcurrency: 2}.WithDefaults(false)})
		if err != nil {
			t.Fatal(err)
		}
		host := c.hosts.get("registry.example.com")
		var release func()
		for range 2 {
			var err error
			if release, err = host.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got := false
		go func() {
			if _, err := host.acquire(t.Context()); err != nil {
				t.Error(err)
			}
			got = true
		}()
		if synctest.Wait(); got {
			t.Error("a third request went out beside two")
		}
		release()
		if synctest.Wait(); !got {
			t.Error("a slot that was given back is lost")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := host.acquire(ctx); err == nil {
			t.Error("a canceled request got a slot")
		}
		if _, err := c.hosts.get("other.example.com").acquire(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestHostRateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Limits: Limits{HostRate: 10, HostBurst: 5}.WithDefaults(false)})
		if err != nil {
			t.Fatal(err)
		}
		start, host := time.Now(), c.hosts.get("registry.example.com")
		for range 25 {
			release, err := host.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release()
		}
		if took := time.Since(start).Round(time.Millisecond); took != 2*time.Second {
			t.Errorf("25 requests took %s, want 5 at once and 20 at 10 a second", took)
		}
	})
}

// The configuration says how much single hosts may be asked.
func TestHostsWithLimitsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Limits: Limits{}.WithDefaults(false), Registries: []Registry{{Prefix: "registry.example.com:5000", RequestsPerSecond: 10, RequestsAtATime: 30}}})
		if err != nil {
			t.Fatal(err)
		}
		start, host := time.Now(), c.hosts.get("registry.example.com:5000")
		for range 30 { // and give none back
			if _, err := host.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start).Round(time.Millisecond); took != time.Second {
			t.Errorf("30 requests took %s, want 20 at once and 10 at 10 a second", took)
		}
	})
}

// programs are others that know what they are told.
type programs struct {
	sharing int
	until   time.Time
}

func (p *programs) Sharing(string) int               { return p.sharing }
func (p *programs) Paused(_ string, d time.Duration) { p.until = time.Now().Add(d) }
func (p *programs) PauseLeft(string) time.Duration   { return time.Until(p.until) }

// TestProgramsSharePauses: what a host has asked one of several programs for holds for the others,
// too.
func TestProgramsSharePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := &programs{}
		var hosts [2]*host
		for i := range hosts {
			c, err := New(Options{Limits: Limits{MaxWait: time.Second}.WithDefaults(false), Others: others})
			if err != nil {
				t.Fatal(err)
			}
			hosts[i] = c.hosts.get("registry.example.com")
		}
		hosts[0].pause(time.Hour, false)
		var limited *Error
		if _, err := hosts[1].acquire(t.Context()); !errors.As(err, &limited) || limited.Reason != RateLimited || limited.RetryAfter != time.Hour {
			t.Errorf("another program asks the host: %v", err)
		}
		time.Sleep(time.Hour)
		if _, err := hosts[1].acquire(t.Context()); err != nil {
			t.Errorf("after the pause: %v", err)
		}
	})
}

// TestProgramsShareAHost: of what a number bounds, each of several programs that ask a host takes
// its part, for as long as they do.
func TestProgramsShareAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := &programs{sharing: 2}
		c, err := New(Options{
			Limits: Limits{}.WithDefaults(false), Registries: []Registry{{Prefix: "registry.example.com", RequestsPerSecond: 20, RequestsAtATime: 6}},
			Others: others,
		})
		if err != nil {
			t.Fatal(err)
		}
		host := c.hosts.get("registry.example.com")
		rate := func(n int) time.Duration {
			begun := time.Now()
			for range n {
				release, err := host.acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				release()
			}
			return time.Since(begun).Round(time.Millisecond)
		}
		if took := rate(40); took != 2*time.Second {
			t.Errorf("beside another program 40 requests took %s, want 20 at once and 20 at 10 a second", took)
		}
		others.sharing = 1
		if took := rate(20); took != time.Second {
			t.Errorf("alone 20 requests took %s, want 20 a second", took)
		}
		others.sharing = 3
		var got atomic.Int64
		for range 6 {
			go func() {
				if _, err := host.acquire(t.Context()); err == nil {
					got.Add(1)
				}
			}()
		}
		time.Sleep(time.Minute)
		if synctest.Wait(); got.Load() != 2 {
			t.Errorf("beside two other programs %d requests of 6 are under way at a time, want 2", got.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := host.acquire(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request: %v", err)
		}
	})
}

// TestProgramsAdaptTogether: a host that refuses what is above 15 requests a second (429) comes to
// refuse none of three programs, as of one. The least rate, ten a second, is that of all of them.
func TestProgramsAdaptTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bears, programsThatAsk = 15, 3
		var mu sync.Mutex
		var second int64
		var asked, all, refused int // in this second, and since they were reset
		answer := func() (tooMany bool) {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now().Unix(); now != second {
				second, asked = now, 0
			}
			asked, all = asked+1, all+1
			if asked > bears {
				refused++
			}
			return asked > bears
		}
		reset := func() (n, tooMany int) {
			mu.Lock()
			defer mu.Unlock()
			n, tooMany, all, refused = all, refused, 0, 0
			return n, tooMany
		}
		ctx, stop := context.WithCancel(t.Context())
		for range programsThatAsk {
			c, err := New(Options{Limits: Limits{}.WithDefaults(false), Others: &programs{sharing: programsThatAsk}})
			if err != nil {
				t.Fatal(err)
			}
			host := c.hosts.get("registry.example.com")
			for range 8 {
				go func() {
					for {
						release, err := host.acquire(ctx)
						if err != nil {
							return
						}
						const took = 5 * time.Millisecond
						time.Sleep(took)
						host.pace.answered(time.Now(), took, answer())
						release()
					}
				}()
			}
		}
		time.Sleep(30 * time.Second) // until a minute after the last refusal the rate stays
		reset()
		const seconds = 20
		time.Sleep(seconds * time.Second)
		if n, tooMany := reset(); tooMany != 0 || n < seconds*(minRate-1) {
			t.Errorf("%d requests in %d seconds, of which %d were refused; want %d a second or more, and none", n, seconds, tooMany, minRate)
		}
		stop()
	})
}

func TestHostsAreForgotten(t *testing.T) {
	c, err := New(Options{Limits: Limits{}.WithDefaults(false)})
	if err != nil {
		t.Fatal(err)
	}
	first := c.hosts.get("host0.example.com")
	for i := range 2 * maxHosts {
		c.hosts.get(fmt.Sprintf("host%d.example.com", i))
		c.hosts.get("always.example.com")
	}
	if n := c.hosts.known.Len(); n != maxHosts {
		t.Errorf("%d hosts are remembered, want %d", n, maxHosts)
	}
	if c.hosts.get("host0.example.com") == first {
		t.Error("the host longest unused is not the one forgotten")
	}
}

func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Limits: Limits{}.WithDefaults(false)})
		if err != nil {
			t.Fatal(err)
		}
		unlock, err := c.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.Lock(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()
		got := false
		go func() {
			unlock, err := c.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			got = true
			unlock()
		}()
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := false
		go func() {
			_, err := c.Lock(ctx, "a")
			gaveUp = err != nil
		}()
		if synctest.Wait(); got || c.Locked() != 1 {
			t.Errorf("got it: %t, held: %d", got, c.Locked())
		}
		cancel()
		if synctest.Wait(); !gaveUp {
			t.Error("waiting goes on after its context")
		}
		unlock()
		if synctest.Wait(); !got || c.Locked() != 0 {
			t.Errorf("got it: %t, held: %d", got, c.Locked())
		}
	})
}

// What a registry has asked for is not forgotten because somebody names many other hosts.
func TestPauseIsRememberedBesideManyHosts(t *testing.T) {
	hs := newHosts(Limits{}.WithDefaults(false), registries{}, nil, clocktesting.NewFakeClock(time.Now()))
	hs.get("registry-1.docker.io").pause(time.Hour, false)
	for i := range 256 {
		hs.get(fmt.Sprintf("h%d.invalid", i))
	}
	if left, _ := hs.get("registry-1.docker.io").pauseLeft(); left <= 0 {
		t.Errorf("the pause of an hour is forgotten: %s left", left)
	}
}
