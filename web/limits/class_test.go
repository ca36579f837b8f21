package limits

import (
	"context"
	"testing"
	"time"
)

// waits waits until n requests wait for a place of c.
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

// A caller that floods a class waits for itself: the next free place is another
// caller's, and of those who wait for too many its own are sent away.
func TestFloodWaitsForItself(t *testing.T) {
	t.Parallel()
	const max, perCaller, maxWaiting = 4, 3, 5
	c := newClass(max, perCaller, maxWaiting, time.Hour)
	for range perCaller {
		if !c.enter(t.Context(), attacker) {
			t.Fatal("refused a place that is free")
		}
	}
	// The last place is not for the caller that has three quarters.
	refused := make(chan bool, 2*maxWaiting)
	for range maxWaiting {
		go func() { refused <- !c.enter(t.Context(), attacker) }()
	}
	waits(t, c, maxWaiting)
	if c.enter(t.Context(), attacker) {
		t.Error("more may wait than there is room for")
	}
	if !c.enter(t.Context(), honest) {
		t.Error("the last place was refused to another caller")
	}
	// Now all are taken. Another caller waits in place of one of the flood, and is
	// the next, though it came last.
	got := make(chan bool, 1)
	go func() { got <- c.enter(t.Context(), honest) }()
	if !<-refused {
		t.Error("one of the flood got a place")
	}
	waits(t, c, maxWaiting)
	c.leave(attacker)
	if !<-got {
		t.Error("the honest caller was refused")
	}
	// Everybody leaves, and nothing is kept.
	c.leave(honest)
	c.leave(honest)
	for range perCaller - 1 {
		c.leave(attacker)
	}
	for range maxWaiting - 1 {
		if <-refused {
			t.Error("one that waited was refused though places were free")
		}
		c.leave(attacker)
	}
	if c.running != 0 || c.waiting != 0 || len(c.shares) != 0 {
		t.Errorf("%d run, %d wait, %d callers are known", c.running, c.waiting, len(c.shares))
	}
}

// Who waits gives up when its time is over or its client leaves.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	c := newClass(1, 1, 5, time.Hour)
	if !c.enter(t.Context(), attacker) {
		t.Fatal("refused a place that is free")
	}
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan bool)
	go func() { got <- c.enter(ctx, honest) }()
	waits(t, c, 1)
	leave()
	if <-got {
		t.Error("a client that left got a place")
	}
	c.patience = time.Nanosecond
	if c.enter(t.Context(), honest) {
		t.Error("a place was given that is taken")
	}
	c.leave(attacker)
	if c.running != 0 || c.waiting != 0 || len(c.shares) != 0 {
		t.Errorf("%d run, %d wait, %d callers are known", c.running, c.waiting, len(c.shares))
	}
}
