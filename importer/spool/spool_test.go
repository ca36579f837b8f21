package spool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// testSpool is a spool whose time the test moves.
type testSpool struct {
	anySpool
	t     *testing.T
	clock *clocktesting.FakeClock
}

// anySpool is a spool as its users see it.
type anySpool interface {
	queue.Queue
	List(ctx context.Context, state job.State, after int64, limit int) ([]*push.Job, error)
	Retry(ctx context.Context, id int64) error
	RetryDead(context.Context) (int64, error)
	Drop(ctx context.Context, id int64) error
	DropDead(context.Context) (int64, error)
	Enqueue(context.Context, []push.Event) error
	Find(ctx context.Context, source push.Source, key string) (*push.Job, error)
	ClaimNow(n int, lease time.Duration) ([]*push.Job, error)
	Delay(attempts int) time.Duration
	Counted(context.Context) (int64, error)
}

// open opens a spool: one that servers share in the tests of TestShared.
func open(t *testing.T, opts spool.Options) *testSpool {
	t.Helper()
	if strings.HasPrefix(t.Name(), sharedTests) {
		return openShared(t, dbtest.NewTruth(), opts)
	}
	clock := clocktesting.NewFakeClock(start)
	// Maintenance stays asleep: its commit could take a request in under the time before a Step.
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = 1000 * time.Hour })
	s, err := spool.Open(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &testSpool{s, t, clock}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// request is an event about a tag, of the receiver "local"; see from.
func request(key, id, payload string) push.Event { return from("local", key, id, payload) }

// testHost is the registry of keys that name none.
const testHost = "registry.example.com"

// from is an event of a receiver. Its key is [host/]repository[:tag]; its payload, up
// to 32 bytes, is its digest: payloads and shortKey show both again.
func from(receiver, key, id, payload string) push.Event {
	host, path, ok := strings.Cut(key, "/")
	if !ok {
		host, path = testHost, key
	}
	repository, tag, _ := strings.Cut(path, ":")
	digest := make([]byte, 32)
	copy(digest, payload)
	return push.Event{
		Source: push.ParseSource(receiver), ID: id, Action: push.Pushed,
		Host: host, Repository: repository, Tag: cmp.Or(tag, "v"), Digest: "sha256:" + hex.EncodeToString(digest),
	}
}

// shortKey is the key that from was given.
func shortKey(j *push.Job) string {
	return strings.TrimSuffix(strings.TrimPrefix(j.Key, testHost+"/"), ":v")
}

// payload is what from was given.
func payload(e push.Event) string {
	b, _ := hex.DecodeString(strings.TrimPrefix(e.Digest, "sha256:"))
	return string(bytes.TrimRight(b, "\x00"))
}

func (s *testSpool) enqueue(events ...push.Event) {
	s.t.Helper()
	if err := s.Enqueue(context.Background(), events); err != nil {
		s.t.Fatal(err)
	}
}

// claim leases for a minute what is due now.
func (s *testSpool) claim(n int) []*push.Job {
	s.t.Helper()
	jobs, err := s.ClaimNow(n, time.Minute)
	if err != nil {
		s.t.Fatal(err)
	}
	return jobs
}

// claimOne fails the test unless just one job is due.
func (s *testSpool) claimOne() *push.Job {
	s.t.Helper()
	jobs := s.claim(10)
	if len(jobs) != 1 {
		s.t.Fatalf("%d jobs are due, want 1", len(jobs))
	}
	return jobs[0]
}

func (s *testSpool) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// stats are the figures of all jobs.
type stats struct {
	job.Depth
	Payloads   int64
	ByReceiver map[push.Source]job.Depth
}

func (s *testSpool) stats() (st stats) {
	s.t.Helper()
	var err error
	st.ByReceiver, err = s.Depth(context.Background())
	s.ok(err)
	st.Payloads, err = s.Counted(context.Background())
	s.ok(err)
	for _, d := range st.ByReceiver {
		st.Waiting, st.Leased, st.Dead = st.Waiting+d.Waiting, st.Leased+d.Leased, st.Dead+d.Dead
		if st.Oldest.IsZero() || !d.Oldest.IsZero() && d.Oldest.Before(st.Oldest) {
			st.Oldest = d.Oldest
		}
	}
	return st
}

// payloads shows the payloads of a job.
func payloads(j *push.Job) string {
	var out []string
	for _, e := range j.Events {
		out = append(out, payload(e))
	}
	return strings.Join(out, " ")
}

func TestLifeOfAJob(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	start := s.clock.Now()
	s.enqueue(request("app:1", "e1", "a"))
	if st := s.stats(); st.Waiting != 1 || st.Payloads != 1 || !st.Oldest.Equal(start) || st.ByReceiver[push.OfWebhook("local")] != st.Depth {
		t.Errorf("after Enqueue: %+v", st)
	}
	j := s.claimOne()
	if shortKey(j) != "app:1" || j.Source != push.OfWebhook("local") || payloads(j) != "a" || j.Attempts != 1 || !j.Enqueued.Equal(start) || !j.Due.Equal(start.Add(time.Minute)) {
		t.Errorf("claimed %+v", j)
	}
	if again := s.claim(10); len(again) != 0 {
		t.Errorf("claimed twice: %+v", again)
	}
	s.ok(s.Done(ctx, j))
	if st := s.stats(); st.Waiting+st.Leased+st.Dead+st.Payloads != 0 || !st.Oldest.IsZero() {
		t.Errorf("after Done: %+v", st)
	}
	if err := s.Done(ctx, j); !errors.Is(err, spool.ErrLeaseLost) {
		t.Errorf("Done twice: %v", err)
	}
}

func TestSeesAnEventOnce(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	take := func() string {
		t.Helper()
		var got []string
		for _, j := range s.claim(10) {
			got = append(got, payloads(j))
			s.ok(s.Done(ctx, j))
		}
		return strings.Join(got, ";")
	}
	expect := func(when, want string) {
		t.Helper()
		if got := take(); got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	s.enqueue(request("k", "e1", "a"), request("k", "e1", "b"))
	expect("the same ID in one batch", "a")
	s.enqueue(request("k", "e1", "c"))
	expect("the same ID again", "")
	s.enqueue(from("other", "k", "e1", "d"))
	expect("the same ID of another receiver", "d")
	s.enqueue(request("k", "", "e"))
	s.enqueue(request("k", "", "f"))
	expect("no ID", "e f")
	s.clock.Step(24*time.Hour - time.Millisecond)
	s.enqueue(request("k", "e1", "g"))
	expect("just within 24 hours", "")
	s.clock.Step(time.Millisecond)
	s.enqueue(request("k", "e1", "h"))
	expect("after 24 hours", "h")
}

// TestForgets keeps the memory of events within its bound, the newest kept.
func TestForgets(t *testing.T) {
	s := open(t, spool.Options{MaxSeen: 10})
	for i := range 100 {
		s.enqueue(request("k", fmt.Sprint("e", i), "p"))
	}
	n := 0
	for i := range 100 {
		before := s.stats().Payloads
		s.enqueue(request("k", fmt.Sprint("e", 99-i), fmt.Sprint("again ", i)))
		if s.stats().Payloads == before {
			n++
		} else if i < 9 {
			t.Fatalf("event %d of the last ten is forgotten", 99-i)
		} else {
			break
		}
	}
	if n > 11 {
		t.Errorf("%d events are remembered, want about 10", n)
	}
}

func TestCoalesces(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	start := s.clock.Now()
	s.enqueue(request("k", "1", "a"), request("k", "2", "b"), request("other", "4", "a"))
	s.clock.Step(time.Second)
	s.enqueue(request("k", "3", "a"))
	jobs := s.claim(10)
	if len(jobs) != 2 || payloads(jobs[0]) != "a b" || payloads(jobs[1]) != "a" {
		t.Fatalf("claimed %+v", jobs)
	}
	if !jobs[0].Enqueued.Equal(start) || !jobs[0].Latest.Equal(start.Add(time.Second)) || !jobs[1].Latest.Equal(start) {
		t.Errorf("the times of the first and the latest request: %+v", jobs)
	}
	// What comes while the job is being done is another job, due when it is over.
	s.enqueue(request("k", "5", "a"), request("k", "6", "c"))
	if more := s.claim(10); len(more) != 0 {
		t.Fatalf("two jobs of one key are leased: %+v", more)
	}
	s.ok(s.Done(ctx, jobs[0]))
	if j := s.claimOne(); payloads(j) != "a c" {
		t.Errorf("claimed %q, want a c", payloads(j))
	}
}

// A job belongs to the trace of the delivery that made it. What joins it has none, so a push that
// is told of again and again does not take more room because it is traced; and what is not sampled
// is not kept.
func TestTraced(t *testing.T) {
	s := open(t, spool.Options{})
	delivery := func(trace byte, flags oteltrace.TraceFlags) context.Context {
		return oteltrace.ContextWithSpanContext(context.Background(), oteltrace.NewSpanContext(oteltrace.SpanContextConfig{TraceID: oteltrace.TraceID{trace}, SpanID: oteltrace.SpanID{trace}, TraceFlags: flags}))
	}
	for i := range 5 {
		s.ok(s.Enqueue(delivery(byte(i+1), oteltrace.FlagsSampled), []push.Event{request("k", "", "a")}))
	}
	s.ok(s.Enqueue(delivery(9, 0), []push.Event{request("other", "", "a")}))
	jobs := s.claim(10)
	if len(jobs) != 2 || len(jobs[0].Events) > 2 || jobs[0].Events[0].Trace != "00-01"+strings.Repeat("0", 30)+"-01"+strings.Repeat("0", 14)+"-01" || jobs[0].Events[1].Trace != "" || jobs[1].Events[0].Trace != "" {
		for _, j := range jobs {
			t.Errorf("claimed %+v", j.Events)
		}
	}
}

// TestLosesNoEvent sends more different events for a key than a job has
// room for.
func TestLosesNoEvent(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	const n = 600
	for i := range n {
		s.enqueue(request("k", "", fmt.Sprint("p", i)))
	}
	seen := map[string]bool{}
	for range 3 {
		j := s.claimOne()
		if len(j.Events) > 256 {
			t.Errorf("a job of %d events", len(j.Events))
		}
		for _, e := range j.Events {
			seen[payload(e)] = true
		}
		s.ok(s.Done(ctx, j))
	}
	if len(seen) != n || len(s.claim(1)) != 0 {
		t.Errorf("%d payloads came out, want %d", len(seen), n)
	}
}

func TestLease(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	s.enqueue(request("k", "", "a"))
	first := s.claimOne()
	s.clock.Step(40 * time.Second)
	s.ok(s.Renew(ctx, first, time.Minute))
	s.clock.Step(59 * time.Second)
	if jobs := s.claim(1); len(jobs) != 0 {
		t.Fatalf("a renewed lease ended early: %+v", jobs)
	}
	s.clock.Step(time.Second)
	second := s.claimOne()
	if second.ID != first.ID || second.Attempts != 2 || !strings.Contains(second.Error, "lease ended") {
		t.Errorf("claimed %+v", second)
	}
	for name, err := range map[string]error{
		"Renew": s.Renew(ctx, first, time.Minute), "Done": s.Done(ctx, first),
		"Fail": s.Fail(ctx, first, job.Failure{}), "Release": s.Release(ctx, first),
	} {
		if !errors.Is(err, spool.ErrLeaseLost) {
			t.Errorf("%s with a lease that ended: %v", name, err)
		}
	}
	s.ok(s.Release(ctx, second))
	if third := s.claimOne(); third.Attempts != 2 {
		t.Errorf("a released job counts %d attempts, want 2", third.Attempts)
	}
}

// TestReopened gives back what a process that is gone had leased.
func TestReopened(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	opts := db.Options{Dir: t.TempDir(), Clock: clock}
	d, err := db.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(d, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Enqueue(context.Background(), []push.Event{request("k", "e1", "a")}); err != nil {
		t.Fatal(err)
	}
	if jobs, err := s.ClaimNow(1, time.Hour); err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = dbtest.OpenOptions(t, opts)
	if s, err = spool.Open(d, spool.Options{}); err != nil {
		t.Fatal(err)
	}
	jobs, err := s.ClaimNow(1, time.Hour)
	if err != nil || len(jobs) != 1 || jobs[0].Attempts != 2 {
		t.Fatalf("after reopening: %+v, %v", jobs, err)
	}
	if err := s.Enqueue(context.Background(), []push.Event{request("k", "e1", "b")}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Counted(context.Background()); err != nil || n != 1 {
		t.Errorf("an event is forgotten by reopening: there are %d, %v", n, err)
	}
}

// A job that ends its workers each time is dead at last, and that is a warning in the
// log like any other death.
func TestJobWhoseLeasesEndIsWarnedAbout(t *testing.T) {
	var log bytes.Buffer
	s := open(t, spool.Options{MaxAttempts: 3, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	s.enqueue(request("r.example.com/app", "", "a"))
	for range 3 {
		if log.Len() > 0 {
			t.Errorf("warned before it is dead:\n%s", &log)
		}
		s.claimOne()
		s.clock.Step(time.Hour)
	}
	if jobs := s.claim(1); len(jobs) != 0 {
		t.Fatalf("claimed %+v", jobs)
	}
	want := `level=WARN msg="a push was given up: its job is dead" job=1 receiver=local about=r.example.com/app:v attempts=3 err="the worker did not report`
	if got := log.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged:\n%s\nwant one line with %s", got, want)
	}
}

func TestBacksOffAndGivesUp(t *testing.T) {
	var log bytes.Buffer
	s, ctx := open(t, spool.Options{MaxAttempts: 5, BaseDelay: time.Second, MaxDelay: 4 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}), context.Background()
	s.enqueue(request("k", "", "a"))
	for i, limit := range []time.Duration{1, 2, 4, 4} {
		limit *= time.Second
		j := s.claimOne()
		failed := s.clock.Now()
		s.ok(s.Fail(ctx, j, job.Failure{Error: "no route", Unread: i == 0}))
		jobs, err := s.List(ctx, job.Waiting, 0, 10)
		s.ok(err)
		if jobs[0].Unread != (i == 0) {
			t.Errorf("after %d failures the job is %+v", i+1, jobs[0])
		}
		if wait := jobs[0].Due.Sub(failed); wait < limit/2 || wait > limit {
			t.Errorf("after %d failures it waits %v, want %v to %v", i+1, wait, limit/2, limit)
		}
		if len(s.claim(1)) != 0 {
			t.Errorf("after %d failures it is due at once", i+1)
		}
		s.clock.Step(limit)
	}
	s.ok(s.Fail(ctx, s.claimOne(), job.Failure{Error: strings.Repeat("no route ", 1000)}))
	s.clock.Step(time.Hour)
	if jobs := s.claim(1); len(jobs) != 0 {
		t.Fatalf("a dead job was claimed: %+v", jobs)
	}
	dead, err := s.List(ctx, job.Dead, 0, 10)
	s.ok(err)
	if len(dead) != 1 || dead[0].Attempts != 5 || !strings.HasPrefix(dead[0].Error, "no route") || len(dead[0].Error) > 1100 {
		t.Fatalf("dead: %+v", dead)
	}
	if got := log.String(); !strings.Contains(got, `level=WARN msg="a push was given up: its job is dead" job=`+strconv.FormatInt(dead[0].ID, 10)+" receiver=local about=registry.example.com/k:v attempts=5 err=") || strings.Count(got, "\n") != 1 {
		t.Errorf("logged:\n%s", got)
	}

	s.enqueue(request("k2", "", "b"))
	s.ok(s.Fail(ctx, s.claimOne(), job.Failure{Error: "not an image", Permanent: true}))
	if st := s.stats(); st.Dead != 2 || st.Waiting != 0 {
		t.Errorf("a permanent failure is not dead: %+v", st)
	}
	s.enqueue(request("k3", "", "b"))
	s.ok(s.Fail(ctx, s.claimOne(), job.Failure{Error: "429", After: time.Hour}))
	s.clock.Step(time.Hour - time.Second)
	if len(s.claim(1)) != 0 {
		t.Error("a job is due before the time it was told to wait for")
	}
}

// Jobs of a host that is back do not wait for their own time. Their attempts count, and the dead
// stay dead.
func TestHurry(t *testing.T) {
	s, ctx := open(t, spool.Options{MaxAttempts: 2, BaseDelay: time.Minute}), context.Background()
	s.enqueue(request("back.example.com/dead", "", "a"))
	s.ok(s.Fail(ctx, s.claimOne(), job.Failure{Error: "broken", Permanent: true}))
	s.enqueue(request("back.example.com/a", "", "a"), request("back.example.com/b", "", "a"), request("away.example.com/a", "", "a"))
	for _, j := range s.claim(3) {
		s.ok(s.Fail(ctx, j, job.Failure{Error: "no route"}))
	}
	s.clock.Step(time.Second)
	if jobs := s.claim(3); len(jobs) != 0 {
		t.Fatalf("due: %v", jobs)
	}
	s.ok(s.Hurry(ctx, "back.example.com"))
	jobs := s.claim(3)
	for _, j := range jobs {
		if j.Host() != "back.example.com" || j.Attempts != 2 {
			t.Errorf("%+v", j)
		}
		s.ok(s.Fail(ctx, j, job.Failure{Error: "no route"}))
	}
	if st := s.stats(); len(jobs) != 2 || st.Dead != 3 || st.Waiting != 1 {
		t.Errorf("%d jobs, %+v", len(jobs), st)
	}
}

// TestPoison says that a job which ends its workers is dead in the end.
func TestPoison(t *testing.T) {
	s := open(t, spool.Options{MaxAttempts: 3})
	s.enqueue(request("k", "", "a"))
	for range 3 {
		s.claimOne()
		s.clock.Step(time.Minute)
	}
	if jobs := s.claim(1); len(jobs) != 0 || s.stats().Dead != 1 {
		t.Errorf("after three workers died: %+v, %+v", jobs, s.stats())
	}
}

func TestDelayBounds(t *testing.T) {
	s := open(t, spool.Options{})
	for attempts := range 200 {
		limit := 5 * time.Minute
		if attempts < 10 {
			limit = time.Second << max(attempts-1, 0)
		}
		for range 20 {
			if d := s.Delay(attempts); d < limit/2 || d > limit {
				t.Fatalf("after %d attempts it waits %v, want %v to %v", attempts, d, limit/2, limit)
			}
		}
	}
}

func TestAdmin(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	for i := range 5 {
		s.enqueue(request(fmt.Sprint("k", i), "", "p"))
	}
	for _, j := range s.claim(3) {
		s.ok(s.Fail(ctx, j, job.Failure{Error: "gone", Permanent: true}))
	}
	list := func(state job.State, after int64, limit int) (ids []int64) {
		t.Helper()
		jobs, err := s.List(ctx, state, after, limit)
		s.ok(err)
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		return ids
	}
	if got := list("", 0, 0); !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("all: %v", got)
	}
	if got := list(job.Dead, 1, 1); !slices.Equal(got, []int64{2}) {
		t.Errorf("the second page of the dead: %v", got)
	}
	s.ok(s.Retry(ctx, 1))
	s.ok(s.Drop(ctx, 2))
	if got := list(job.Dead, 0, 0); !slices.Equal(got, []int64{3}) {
		t.Errorf("dead after Retry and Drop: %v", got)
	}
	for _, id := range []int64{2, 99} {
		if err := errors.Join(s.Retry(ctx, id), s.Drop(ctx, id)); !errors.Is(err, job.ErrNoSuchJob) {
			t.Errorf("job %d: %v", id, err)
		}
	}
	jobs := s.claim(10)
	if len(jobs) != 3 {
		t.Fatalf("%d jobs are due after Retry, want 3", len(jobs))
	}
	if err := s.Drop(ctx, jobs[0].ID); !errors.Is(err, job.ErrNoSuchJob) {
		t.Errorf("a leased job was dropped: %v", err)
	}
	for _, j := range jobs {
		s.ok(s.Fail(ctx, j, job.Failure{Permanent: true}))
	}
	if n, err := s.RetryDead(ctx); n != 4 || err != nil {
		t.Errorf("RetryDead: %d, %v; want 4", n, err)
	}
	for _, j := range s.claim(10) {
		if j.Attempts != 1 {
			t.Errorf("retried, job %d counts %d attempts", j.ID, j.Attempts)
		}
		s.ok(s.Fail(ctx, j, job.Failure{Permanent: true}))
	}
	if n, err := s.DropDead(ctx); n != 4 || err != nil {
		t.Errorf("DropDead: %d, %v; want 4", n, err)
	}
	if st := s.stats(); st.Payloads != 0 || st.Dead != 0 {
		t.Errorf("after DropDead: %+v", st)
	}
}

func TestRefusesBadRequests(t *testing.T) {
	s := open(t, spool.Options{})
	long, large := request("app", "", "p"), request("app", "", "p")
	long.Tag, large.Digest = strings.Repeat("k", 1025), strings.Repeat("p", 8193)
	for name, e := range map[string]push.Event{"a long key": long, "a large event": large} {
		if err := s.Enqueue(context.Background(), []push.Event{request("good", "", "p"), e}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if st := s.stats(); st.Payloads != 0 {
		t.Errorf("a refused batch left something: %+v", st)
	}
	if _, err := s.Claim(context.Background(), 0, time.Minute, nil); err == nil {
		t.Error("a claim of no jobs was taken")
	}
}

// TestClaimWaits covers what ends the waiting: a new job, a time, and the
// key of a due job coming free.
func TestClaimWaits(t *testing.T) {
	s, ctx := open(t, spool.Options{}), context.Background()
	claimed := make(chan *push.Job)
	errs := make(chan error, 1)
	claim := func() {
		jobs, err := s.Claim(ctx, 1, time.Hour, nil)
		if err != nil {
			errs <- err
			return
		}
		claimed <- jobs[0]
	}
	wait := func(what string) *push.Job {
		t.Helper()
		select {
		case j := <-claimed:
			return j
		case err := <-errs:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(time.Minute):
			t.Fatalf("%s does not end Claim", what)
		}
		return nil
	}
	go claim()
	s.enqueue(request("k", "", "a"))
	j := wait("a new job")

	s.ok(s.Fail(ctx, j, job.Failure{After: time.Minute}))
	go claim()
	s.clock.Step(time.Minute + time.Second)
	s.enqueue(request("wake", "", "x")) // if Claim read the time before the step
	j = wait("the end of a back-off")
	if shortKey(j) == "wake" {
		t.Fatal("the job that was due first came second")
	}

	go claim()
	s.ok(s.Done(ctx, wait("the job that woke it")))
	s.enqueue(request("k", "", "b"))
	go claim()
	s.ok(s.Done(ctx, j))
	if j = wait("the end of the lease before"); payloads(j) != "b" {
		t.Errorf("claimed %q, want b", payloads(j))
	}
}

func TestClaimEnds(t *testing.T) {
	d, err := db.Open(db.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(d, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Claim(ctx, 1, time.Minute, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim with a context that ended: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Claim(context.Background(), 1, time.Minute, nil)
		done <- err
	}()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, db.ErrClosed) {
		t.Errorf("Claim of a closed database: %v", err)
	}
}
