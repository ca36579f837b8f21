package spool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

var quiet = slog.New(slog.DiscardHandler)

// dropped is how many events the metrics say were dropped.
func dropped(t *testing.T, registry metrics.KubeRegistry) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidewaiter_spool_dropped_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// keys lists the keys of the receiver's jobs in a state, in order.
func (s *testSpool) keys(receiver string, state job.State) (keys []string) {
	s.t.Helper()
	jobs, err := s.List(context.Background(), state, 0, 0)
	s.ok(err)
	for _, j := range jobs {
		if j.Source.String() == receiver {
			keys = append(keys, shortKey(j))
		}
	}
	return keys
}

// TestLeakedSecretFillsItsOwnQuotaOnly floods the spool with the secret of one
// receiver. The other's jobs stay and more are taken; of the first the newest stay.
func TestLeakedSecretFillsItsOwnQuotaOnly(t *testing.T) {
	const quota, flood = 50, 400
	var log bytes.Buffer
	registry := metrics.NewKubeRegistry()
	s := open(t, spool.Options{Quota: quota, Registerer: registry, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var honest []string
	enqueueHonest := func() {
		key := fmt.Sprintf("honest:%03d", len(honest))
		honest = append(honest, key)
		s.enqueue(from("honest", key, key, "p"))
	}
	for range quota / 2 {
		enqueueHonest()
	}
	var leaked []string
	for i := range flood {
		key := fmt.Sprintf("leaked:%03d", i)
		leaked = append(leaked, key)
		s.enqueue(from("leaked", key, key, "p"))
		s.clock.Step(time.Millisecond)
	}
	for range quota / 2 {
		enqueueHonest()
	}
	if got := s.keys("honest", job.Waiting); !slices.Equal(got, honest) {
		t.Errorf("of the honest receiver's %d jobs %d are left", len(honest), len(got))
	}
	if got := s.keys("leaked", job.Waiting); !slices.Equal(got, leaked[flood-quota:]) {
		t.Errorf("of the leaked secret's jobs are left %v, want the newest %d", got, quota)
	}
	if got := dropped(t, registry); got != flood-quota {
		t.Errorf("the metric counts %v dropped, want %d", got, flood-quota)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "receiver=leaked") {
		t.Errorf("%d warnings within a minute, want 1:\n%s", n, &log)
	}
	s.clock.Step(time.Minute)
	s.enqueue(from("leaked", "leaked:last", "", "p"))
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings after a minute, want 2", n)
	}
}

// TestRepeatedPushTakesNoQuota sends what waits already, under new event IDs.
func TestRepeatedPushTakesNoQuota(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	s := open(t, spool.Options{Quota: 3, Registerer: registry, Logger: quiet})
	for i := range 100 {
		for _, key := range []string{"a", "b", "c"} {
			s.enqueue(from("local", key, fmt.Sprint(key, i), "p"))
		}
	}
	if got := s.keys("local", job.Waiting); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("waiting: %v", got)
	}
	if got := dropped(t, registry); got != 0 {
		t.Errorf("something was dropped")
	}
}

// TestRepeatedPushIsNotTheOldest: a push that is told of again stays when older
// ones give way, or its sender would hear that it was taken when it was dropped.
func TestRepeatedPushIsNotTheOldest(t *testing.T) {
	s := open(t, spool.Options{Quota: 3, Logger: quiet})
	for _, r := range []string{"a 1", "b 1", "c 1", "a 2"} {
		key, payload, _ := strings.Cut(r, " ")
		s.enqueue(from("local", key, "", payload))
		s.clock.Step(time.Millisecond)
	}
	if got := s.keys("local", job.Waiting); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("waiting: %v, want a and c", got)
	}
}

// TestSharedKeyIsNotDroppedForAnother: two receivers tell of the same tag. What
// one of them sends in excess does not take the other's job away, nor its quota.
func TestSharedKeyIsNotDroppedForAnother(t *testing.T) {
	s := open(t, spool.Options{Quota: 300, Logger: quiet})
	s.enqueue(from("honest", "app:1", "", "honest"))
	for i := range 400 {
		s.clock.Step(time.Millisecond)
		s.enqueue(from("leaked", "app:1", "", fmt.Sprint("digest ", i)), from("leaked", fmt.Sprint("other:", i), "", "p"))
	}
	for i := range 3 {
		s.enqueue(from("honest", fmt.Sprint("app:", 2+i), "", "p"))
	}
	if got := s.keys("honest", job.Waiting); !slices.Equal(got, []string{"app:1", "app:2", "app:3", "app:4"}) {
		t.Errorf("the honest receiver's jobs: %v", got)
	}
	j := s.claim(1)[0]
	if shortKey(j) != "app:1" || j.Source.Name != "honest" || payloads(j) != "honest" {
		t.Errorf("claimed %+v with payloads %q", j, payloads(j))
	}
}

// TestQuota drops the dead first, the oldest of them before others, then what
// waits, and never what is being done. What is refused leaves nothing behind, its
// event ID included.
func TestQuota(t *testing.T) {
	registry, ctx := metrics.NewKubeRegistry(), context.Background()
	s := open(t, spool.Options{Quota: 4, Registerer: registry, Logger: quiet})
	for i := range 4 {
		s.enqueue(request(fmt.Sprint("k", i), "", "p"))
		s.clock.Step(time.Second)
	}
	for _, j := range s.claim(2) {
		s.ok(s.Fail(ctx, j, job.Failure{Permanent: true}))
	}
	expect := func(when string, dead, waiting []string) {
		t.Helper()
		if got := s.keys("local", job.Dead); !slices.Equal(got, dead) {
			t.Errorf("%s dead are %v, want %v", when, got, dead)
		}
		if got := s.keys("local", job.Waiting); !slices.Equal(got, waiting) {
			t.Errorf("%s waiting are %v, want %v", when, got, waiting)
		}
	}
	s.enqueue(request("k4", "", "p"))
	expect("after the first made room", []string{"k1"}, []string{"k2", "k3", "k4"})
	s.enqueue(request("k5", "", "p"))
	expect("after the last of the dead made room", nil, []string{"k2", "k3", "k4", "k5"})
	if got := dropped(t, registry); got != 0 {
		t.Errorf("dead jobs count as dropped")
	}
	s.enqueue(request("k6", "", "p"), request("k7", "", "p"))
	expect("after the oldest gave way", nil, []string{"k4", "k5", "k6", "k7"})

	leased := s.claim(4)
	err := s.Enqueue(ctx, []push.Event{request("k8", "e8", "p")})
	if !errors.Is(err, spool.ErrFull) {
		t.Fatalf("with all jobs being done one more was taken: %v", err)
	}
	if st := s.stats(); st.Payloads != 4 || st.Leased != 4 {
		t.Errorf("the refused request changed something: %+v", st)
	}
	s.ok(s.Done(ctx, leased[0]))
	s.enqueue(request("k8", "e8", "p"))
	expect("after one was done", nil, []string{"k8"})
	s.ok(s.Drop(ctx, 9))
	if st := s.stats(); st.Payloads != 3 || st.Waiting != 0 {
		t.Errorf("after Drop: %+v", st)
	}
}

// TestRequestPastTheQuota is refused: what is acknowledged is kept.
func TestRequestPastTheQuota(t *testing.T) {
	s := open(t, spool.Options{Quota: 10})
	var all []push.Event
	for i := range 11 {
		all = append(all, request(fmt.Sprintf("k%02d", i), "", "p"))
	}
	if err := s.Enqueue(context.Background(), all); !errors.Is(err, spool.ErrFull) {
		t.Errorf("11 jobs at once in a quota of 10: %v", err)
	}
	s.enqueue(all[:10]...)
	if got := s.keys("local", job.Waiting); len(got) != 10 {
		t.Errorf("waiting: %v", got)
	}
}

// TestClockSetBack: times of requests that go back do not make the newest give way.
func TestClockSetBack(t *testing.T) {
	s := open(t, spool.Options{Quota: 2, Logger: quiet})
	s.enqueue(request("a", "", "p"), request("b", "", "p"))
	s.clock.SetTime(s.clock.Now().Add(-time.Hour))
	s.enqueue(request("c", "", "p"))
	if got := s.keys("local", job.Waiting); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("waiting: %v", got)
	}
}
