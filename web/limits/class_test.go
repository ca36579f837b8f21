package limits

import (
	"context"
	"testing"
	"time"
)

// waits returns when n requests wait for a place of c.
func waits(t *testing.T, c *class, n int) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		waiting := c.waiting
		c.mu.Unlock()
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", waiting, n)
		}
	}
}

var attacker, honest = caller{"admin", "10.0.0.1"}, caller{"admin", "10.0.0.2"}

// nothingKept fails if c counts a request as in flight or waiting.
func nothingKept(t *testing.T, c *class) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != 0 || c.waiting != 0 || len(c.shares) != 0 || len(c.users) != 0 {
		t.Errorf("%d run, %d wait, %d callers and %d users are known", c.running, c.waiting, len(c.shares), len(c.users))
	}
}

// TestFloodWaitsForItself: a caller that floods a class delays only itself. The next free place
// goes to another caller. If too many requests wait, the flooding caller's own are refused. The
// other caller is the same user at another address, or another user at the same address.
func TestFloodWaitsForItself(t *testing.T) {
	t.Parallel()
	for _, honest := range []caller{honest, {"ann", attacker.address}} {
		const max, share = 4, 3
		c := newClass(max, max, share, share, time.Hour)
		for range share {
			if reached := c.enter(t.Context(), attacker); reached != "" {
				t.Fatalf("refused a place that is free: %s", reached)
			}
		}
		// The last place is not for a caller that has its share.
		refused := make(chan bool, 2*share)
		for range share {
			go func() { refused <- c.enter(t.Context(), attacker) != "" }()
		}
		waits(t, c, share)
		if reached := c.enter(t.Context(), attacker); reached != byAddress {
			t.Errorf("more requests wait than allowed: %q", reached)
		}
		if reached := c.enter(t.Context(), honest); reached != "" {
			t.Errorf("the last place was refused to another caller: %s", reached)
		}
		// Now all places are taken. Another caller waits in place of one of the flood,
		// and is next, although it came last.
		got := make(chan bool, 1)
		go func() { got <- c.enter(t.Context(), honest) == "" }()
		if !<-refused {
			t.Error("one of the flood got a place")
		}
		waits(t, c, share)
		c.leave(attacker)
		if !<-got {
			t.Error("the honest caller was refused")
		}
		// All requests end, and nothing is kept.
		c.leave(honest)
		c.leave(honest)
		for range share - 1 {
			c.leave(attacker)
		}
		for range share - 1 {
			if <-refused {
				t.Error("a waiting request was refused although places were free")
			}
			c.leave(attacker)
		}
		nothingKept(t, c)
	}
}

// TestAttackOfOneUserAtManyAddresses: a user at many addresses gets only one user's places, and its
// waiting requests do not displace those of others.
func TestAttackOfOneUserAtManyAddresses(t *testing.T) {
	t.Parallel()
	const max, perUser, perCaller, maxWaiting = 8, 6, 4, 10
	c := newClass(max, perUser, perCaller, maxWaiting, time.Hour)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	at := func(i int) caller { return caller{"mallory", string(rune('a' + i))} }
	for i := range perUser {
		if reached := c.enter(ctx, at(i)); reached != "" {
			t.Fatalf("refused a place that is free: %s", reached)
		}
	}
	over := make(chan bound, 2*maxWaiting)
	for i := range maxWaiting {
		go func() { over <- c.enter(ctx, at(perUser+i)) }()
	}
	waits(t, c, maxWaiting)
	if reached := c.enter(ctx, at(100)); reached != byUser {
		t.Errorf("one more of the user is refused by the bound %q", reached)
	}
	// Others have the other places. If one of their requests must wait, one of the user's waiting
	// requests is refused for it.
	for range max - perUser {
		if reached := c.enter(ctx, honest); reached != "" {
			t.Errorf("a place that is not the user's was refused: %s", reached)
		}
	}
	got := make(chan bound)
	go func() { got <- c.enter(ctx, honest) }()
	if reached := <-over; reached != byUser {
		t.Errorf("a waiting request was displaced with the bound %q", reached)
	}
	c.leave(at(0))
	if reached := <-got; reached != "" {
		t.Errorf("the place went to the user with more in flight: %s", reached)
	}
	leave()
	for range maxWaiting - 1 {
		<-over
	}
	for i := 1; i < perUser; i++ {
		c.leave(at(i))
	}
	for range max - perUser + 1 {
		c.leave(honest)
	}
	nothingKept(t, c)
}

// TestWaitingEnds: a request stops waiting when its time has passed or its client leaves.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	c := newClass(1, 1, 1, 5, time.Hour)
	if c.enter(t.Context(), attacker) != "" {
		t.Fatal("refused a place that is free")
	}
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan bound)
	go func() { got <- c.enter(ctx, honest) }()
	waits(t, c, 1)
	leave()
	if <-got == "" {
		t.Error("a client that left got a place")
	}
	c.maxWait = time.Nanosecond
	if c.enter(t.Context(), honest) == "" {
		t.Error("a place was given that is taken")
	}
	c.leave(attacker)
	nothingKept(t, c)
}
