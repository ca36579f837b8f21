package pull

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestHostConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Limits: Limits{HostConcurrency: 2}.WithDefaults(false)})
		if err != nil {
			t.Fatal(err)
		}
		host := c.hosts.get("registry.example.com")
		for range 2 {
			if err := host.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got := false
		go func() {
			if err := host.acquire(t.Context()); err != nil {
				t.Error(err)
			}
			got = true
		}()
		if synctest.Wait(); got {
			t.Error("a third request went out beside two")
		}
		host.release()
		if synctest.Wait(); !got {
			t.Error("a slot that was given back is lost")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := host.acquire(ctx); err == nil {
			t.Error("a canceled request got a slot")
		}
		if err := c.hosts.get("other.example.com").acquire(t.Context()); err != nil {
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
			if err := host.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			host.release()
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
			if err := host.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start).Round(time.Millisecond); took != time.Second {
			t.Errorf("30 requests took %s, want 20 at once and 10 at 10 a second", took)
		}
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
