package db_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// writers returns how many commits there were, and how many writes they had.
func writers(t *testing.T, d *db.DB) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(d)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidewaiter_db_commit_writers" {
			h := f.GetMetric()[0].GetHistogram()
			return fmt.Sprintf("%d commits of %v", h.GetSampleCount(), h.GetSampleSum())
		}
	}
	t.Fatal("no such metric")
	return ""
}

// announced returns a database whose clock stands still. It calls before, which announces writes,
// and then starts a write; done gets the write's error.
func announced(t *testing.T, before func(*db.DB, *testclock.FakeClock)) (d *db.DB, clock *testclock.FakeClock, done chan error) {
	clock = testclock.NewFakeClock(time.Now())
	d = dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	dbtest.AwaitWaiters(t, clock, 1)
	before(d, clock)
	done = make(chan error, 1)
	go func() {
		_, err := d.Put(t.Context(), "/a/k", 0, []byte("v"), db.PutOptions{})
		done <- err
	}()
	return d, clock, done
}

func TestCommitWaitsForAnAnnouncedWrite(t *testing.T) {
	var ctx context.Context
	d, clock, done := announced(t, func(d *db.DB, _ *testclock.FakeClock) {
		ctx, _ = d.Announce(t.Context())
	})
	dbtest.AwaitWaiters(t, clock, 2)
	if len(done) > 0 {
		t.Fatalf("the commit did not wait: %v", <-done)
	}
	if _, err := d.Put(ctx, "/a/l", 0, []byte("v"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := writers(t, d); got != "1 commits of 2" {
		t.Errorf("%s, want one of both writes", got)
	}
	// The commit of this write did not wait for another one.
	put(t, d, "/a/m", 0, "v")
	if _, err := d.Put(ctx, "/a/n", 0, []byte("v"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestCommitWaitsForAShortTime(t *testing.T) {
	d, clock, done := announced(t, func(d *db.DB, _ *testclock.FakeClock) {
		d.Announce(t.Context())
	})
	dbtest.AwaitWaiters(t, clock, 2)
	if len(done) > 0 {
		t.Fatalf("the commit did not wait: %v", <-done)
	}
	clock.Step(2 * time.Millisecond)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// Ten milliseconds after the announcement, commits no longer wait for its write.
	clock.Step(8 * time.Millisecond)
	put(t, d, "/a/l", 0, "v")
}

func TestCommitDoesNotWait(t *testing.T) {
	for name, before := range map[string]func(*db.DB, *testclock.FakeClock){
		"none is announced": func(*db.DB, *testclock.FakeClock) {},
		"it has ended": func(d *db.DB, _ *testclock.FakeClock) {
			_, end := d.Announce(t.Context())
			end()
			end()
		},
		"it was long ago": func(d *db.DB, clock *testclock.FakeClock) {
			d.Announce(t.Context())
			clock.Step(10 * time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, done := announced(t, before)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// Eight writes are enough: further announced writes go into the next commit.
func TestCommitHasEnough(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = testclock.NewFakeClock(time.Now()) })
	d.Announce(t.Context())
	done := make(chan error, 8)
	for i := range 8 {
		go func() {
			_, err := d.Put(t.Context(), fmt.Sprintf("/a/%d", i), 0, []byte("v"), db.PutOptions{})
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := writers(t, d); got != "1 commits of 8" {
		t.Errorf("%s, want one of all eight", got)
	}
}
