package db_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// step moves a fake clock when the maintenance loop waits for it.
func step(t *testing.T, clock *testclock.FakeClock, by time.Duration, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	dbtest.AwaitWaiters(t, clock, 1)
	clock.Step(by)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("nothing happened in time")
		}
		if clock.HasWaiters() {
			clock.Step(time.Second)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestExpire(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	ctx := t.Context()
	const many = 250 // more than a batch
	for i := range many {
		if _, err := d.Put(ctx, "/e/"+string(rune('a'+i)), 0, []byte("v"), db.PutOptions{TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	renewed, err := d.Put(ctx, "/renewed", 0, []byte("v"), db.PutOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Put(ctx, "/renewed", renewed, []byte("v"), db.PutOptions{TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/forever", 0, "v")
	w, _ := d.Watch("/e/", false, d.Revision())
	defer w.Stop()
	count := func() int64 { n, _, _ := d.Totals(ctx, "/"); return n }

	clock.Step(30 * time.Second)
	if n := count(); n != many+2 {
		t.Fatalf("%d keys before their time, want %d", n, many+2)
	}
	step(t, clock, 31*time.Second, func() bool { return count() == 2 })
	var deleted int
	for deleted < many {
		events, err := w.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 { // readers see a commit a moment before watchers
			select {
			case <-w.Ready():
				continue
			case <-time.After(time.Minute):
				t.Fatalf("watcher saw %d deletions, want %d", deleted, many)
			}
		}
		for _, e := range events {
			if !e.Deleted {
				t.Errorf("event %+v, want a deletion", e)
			}
			deleted++
		}
	}
	if events, err := w.Poll(ctx); err != nil || len(events) > 0 || deleted > many {
		t.Errorf("watcher saw %d deletions of %d keys, and then %v, %v", deleted, many, events, err)
	}
}

// TestHistoryWindow: compaction removes revisions that are older than the window by the injected
// clock, and no others.
func TestHistoryWindow(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock; o.HistoryWindow = time.Minute })
	ctx := t.Context()
	r1 := put(t, d, "/a/k", 0, "one")
	r2 := put(t, d, "/a/k", r1, "two")
	clock.Step(50 * time.Second)
	put(t, d, "/a/k", r2, "three")
	if _, err := d.Range(ctx, db.RangeOptions{Prefix: "/", Rev: r1}); err != nil {
		t.Fatalf("list inside the window: %v", err)
	}
	step(t, clock, 11*time.Second, func() bool {
		n, err := d.QueryInt("SELECT count(*) FROM revisions")
		return err == nil && n == 2 // the live one and the one before it
	})
	if got := d.CompactedRevision(); got != r2 {
		t.Errorf("compacted to %d, want %d", got, r2)
	}
	page, err := d.Range(ctx, db.RangeOptions{Prefix: "/", Rev: r2})
	if err != nil || len(page.KVs) != 1 || string(page.KVs[0].Value) != "two" {
		t.Errorf("list at the compacted revision: %v, %v", page.KVs, err)
	}
}

// TestHold: a held revision stays readable after the history window, but not for ever.
func TestHold(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(time.Now())
	const window, round = 5 * time.Minute, 6 * time.Minute
	d := dbtest.Open(t, func(o *db.Options) { o.Clock, o.HistoryWindow, o.MaintenanceInterval = clock, window, round })
	pass := func() {
		t.Helper()
		dbtest.AwaitWaiters(t, clock, 1)
		clock.Step(round)
		dbtest.AwaitWaiters(t, clock, 1)
	}
	r1 := put(t, d, "/a/k", 0, "one")
	r2 := put(t, d, "/a/k", r1, "two")
	release, again := d.Hold(r2), d.Hold(r2)
	put(t, d, "/a/k", r2, "three")
	readable := func() bool {
		t.Helper()
		page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/", Rev: r2})
		if err == nil && (len(page.KVs) != 1 || string(page.KVs[0].Value) != "two") {
			t.Fatalf("at revision %d there is %v", r2, page.KVs)
		}
		if err != nil && !errors.Is(err, db.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}
	again()
	again() // does not release the other hold
	pass()
	if !readable() {
		t.Error("a held revision is gone after the window")
	}
	if got := d.CompactedRevision(); got != r2 {
		t.Errorf("compacted to %d, want %d: revisions before the held one need not stay", got, r2)
	}
	for range 8 {
		pass()
	}
	if !readable() {
		t.Error("a held revision is gone before twelve windows")
	}
	for range 3 {
		pass()
	}
	if readable() {
		t.Error("a held revision is still there after twelve windows")
	}
	release()

	r4 := put(t, d, "/a/k", d.Revision(), "four")
	release = d.Hold(r4)
	r5 := put(t, d, "/a/k", r4, "five")
	release()
	pass()
	if got := d.CompactedRevision(); got != r5 {
		t.Errorf("compacted to %d when nothing is held, want %d", got, r5)
	}
}

// wallClock is the system's clock, set wrong. Its timers are right.
type wallClock struct {
	ahead atomic.Int64
	looks atomic.Int64
}

func (c *wallClock) Now() time.Time {
	c.looks.Add(1)
	return time.Now().Add(time.Duration(c.ahead.Load()))
}
func (c *wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// awaitLooks waits until the clock has been read some more times: without writers, only maintenance
// reads it, once a round.
func (c *wallClock) awaitLooks(t *testing.T) {
	t.Helper()
	until := c.looks.Load() + 20
	for deadline := time.Now().Add(time.Minute); c.looks.Load() < until; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the clock is not read")
		}
	}
}

// TestClockGoesBack: changes that were written while the clock was far ahead do not prevent the
// compaction of later ones.
func TestClockGoesBack(t *testing.T) {
	clock := &wallClock{}
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = time.Millisecond })
	rev := put(t, d, "/a/1", 0, "v")
	clock.ahead.Store(int64(365 * 24 * time.Hour))
	rev = put(t, d, "/a/1", rev, "v")
	clock.ahead.Store(0)
	rev = put(t, d, "/a/1", rev, "v")
	for ahead := 50 * time.Second; ahead <= 6*time.Minute; ahead += 50 * time.Second {
		// too slow for maintenance to consider the clock set
		clock.ahead.Store(int64(ahead))
		clock.awaitLooks(t)
	}
	for deadline := time.Now().Add(time.Minute); d.CompactedRevision() < rev; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("compacted to revision %d of %d", d.CompactedRevision(), rev)
		}
	}
}

// TestClockAheadForSeconds: if the clock is two hours ahead for a moment, also at a start, neither
// keys with a TTL of an hour nor history are deleted.
func TestClockAheadForSeconds(t *testing.T) {
	t.Parallel()
	clock := &wallClock{}
	opts := db.Options{Dir: t.TempDir(), Clock: clock, MaintenanceInterval: time.Millisecond, Logger: quietLogger}
	d, err := db.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	const events = 50
	first := d.Revision()
	for i := range events {
		if _, err := d.Put(t.Context(), fmt.Sprintf("/events/%d", i), 0, []byte("v"), db.PutOptions{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		clock.awaitLooks(t)
		if n, _, err := d.Totals(t.Context(), "/"); err != nil || n != events {
			t.Errorf("%s, %d Events are left of %d, %v", when, n, events, err)
		}
		if _, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/", Rev: first + 1}); err != nil {
			t.Errorf("%s, a list of a moment ago: %v", when, err)
		}
	}
	clock.awaitLooks(t)
	clock.ahead.Store(int64(2 * time.Hour))
	check("while the clock is ahead")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = db.Open(opts); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	check("after a start while the clock is ahead")
	clock.ahead.Store(0)
	check("when the clock is right again")
}

// TestSteady: which readings of the clock the guard accepts.
func TestSteady(t *testing.T) {
	t.Parallel()
	type look struct{ passes, moves, behind time.Duration }
	const s, m, h = time.Second, time.Minute, time.Hour
	for name, looks := range map[string][]look{
		"runs":               {{s, s, 0}, {s, s, 0}, {h, h, 0}},
		"is late":            {{s, s, 0}, {m, m, 0}, {10 * m, 10*m + s, 0}},
		"ahead for seconds":  {{s, s, 0}, {s, 2 * h, 2*h - s}, {s, s, 2*h - s}, {s, s - 2*h + s, 0}, {s, s, 0}},
		"ahead for good":     {{s, s, 0}, {s, h + s, h}, {4 * m, 4 * m, h}, {m, m, 0}, {s, s, 0}},
		"ahead twice":        {{s, s, 0}, {s, h + s, h}, {4 * m, 4*m + h, 2 * h}, {4 * m, 4 * m, 2 * h}, {m, m, 0}},
		"ahead, half back":   {{s, s, 0}, {s, 2*h + s, 2 * h}, {s, s - h, h}, {5 * m, 5 * m, 0}},
		"back":               {{s, s, 0}, {s, -h, 0}, {s, s, 0}},
		"a little at a time": {{s, s, 0}, {s, 30 * s, 0}, {s, 30 * s, 0}},
	} {
		clock, own := time.Now(), time.Now()
		passed := db.NewSteady(clock)
		for i, l := range looks {
			clock, own = clock.Add(l.moves), own.Add(l.passes)
			if got := clock.Sub(passed(clock, own, s)); got != l.behind {
				t.Errorf("%s, look %d: goes by a time %s behind the clock, want %s", name, i+1, got, l.behind)
			}
		}
	}
}
