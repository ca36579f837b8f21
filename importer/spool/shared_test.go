package spool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/truth"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// sharedTests begins the names of the tests in which several servers could share the spool.
const sharedTests = "TestShared/"

// TestShared runs the tests of a spool over one that servers share.
func TestShared(t *testing.T) {
	for _, test := range []func(*testing.T){
		TestLifeOfAJob, TestSeesAnEventOnce, TestForgets, TestCoalesces, TestTraced, TestLosesNoEvent, TestLease, TestJobWhoseLeasesEndIsWarnedAbout,
		TestBacksOffAndGivesUp, TestHurry, TestPoison, TestDelayBounds, TestAdmin, TestRefusesBadRequests, TestClaimWaits,
		TestLeakedSecretFillsItsOwnQuotaOnly, TestRepeatedPushTakesNoQuota, TestRepeatedPushIsNotTheOldest, TestSharedKeyIsNotDroppedForAnother,
		TestQuota, TestRequestPastTheQuota, TestClockSetBack, TestLanesTakeTurns, TestReceiversTakeTurns, TestReceiversTakeTurnsAtOneRegistry, TestClaimHeedsRoom, TestJobThatWaitsForItsKeyHoldsUpNobody,
	} {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		t.Run(name[strings.LastIndexByte(name, '.')+1:], test)
	}
}

// openShared opens the spool of one of several servers.
func openShared(t *testing.T, store *dbtest.Truth, opts spool.Options) *testSpool {
	t.Helper()
	clock := clocktesting.NewFakeClock(start)
	return openSharedAt(t, store, opts, clock, clock)
}

// openSharedAt is openShared by another clock, for tests in which the store is away.
func openSharedAt(t *testing.T, store *dbtest.Truth, opts spool.Options, now db.Clock, clock *clocktesting.FakeClock) *testSpool {
	t.Helper()
	d := dbtest.Open(t, func(o *db.Options) { o.Clock, o.MaintenanceInterval, o.Truth = now, 1000*time.Hour, store })
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(d, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &testSpool{s, t, clock}
}

// TestServersShareJobs: what one server was told of another does, when the first and its data are
// gone; each has the same view; a delivery that is sent to both is taken once.
func TestServersShareJobs(t *testing.T) {
	store, ctx := dbtest.NewTruth(), t.Context()
	a, b := openShared(t, store, spool.Options{}), openShared(t, store, spool.Options{})
	a.enqueue(request("k", "e1", "a"), request("other", "e2", "a"))
	b.enqueue(request("k", "e1", "again"), request("k", "e3", "b"))
	same := func(when string) []*push.Job {
		t.Helper()
		x, err := a.List(ctx, "", 0, 0)
		a.ok(err)
		y, err := b.List(ctx, "", 0, 0)
		b.ok(err)
		if !reflect.DeepEqual(x, y) || !reflect.DeepEqual(a.stats(), b.stats()) {
			t.Errorf("%s one has %+v, the other %+v", when, a.stats(), b.stats())
		}
		return x
	}
	if all := same("after Enqueue"); len(all) != 2 || a.stats().Payloads != 3 {
		t.Fatalf("jobs: %v", all)
	}
	held := a.claim(1)[0]
	if shortKey(held) != "k" || payloads(held) != "a b" {
		t.Fatalf("claimed %+v", held)
	}
	if all := same("after Claim"); all[0].State != job.Leased {
		t.Errorf("jobs: %v", all)
	}
	if j, err := b.Find(ctx, push.OfWebhook("local"), held.Key); err != nil || j == nil || j.State != job.Leased {
		t.Errorf("found %v, %v", j, err)
	}

	// The server that did the jobs is gone: the next one takes them over without waiting for leases
	// to end.
	taken := b.claim(10)
	slices.SortFunc(taken, func(x, y *push.Job) int { return cmp.Compare(x.ID, y.ID) })
	if len(taken) != 2 || taken[0].ID != held.ID || taken[0].Attempts != 2 || !strings.Contains(taken[0].Error, "lease ended") {
		t.Fatalf("the other server has claimed %+v", taken)
	}
	for name, err := range map[string]error{"Renew": a.Renew(ctx, held, time.Minute), "Done": a.Done(ctx, held), "Fail": a.Fail(ctx, held, job.Failure{})} {
		if !errors.Is(err, spool.ErrLeaseLost) {
			t.Errorf("%s with a lease that another server has: %v", name, err)
		}
	}
	b.ok(b.Done(ctx, taken[0]))
	b.ok(b.Fail(ctx, taken[1], job.Failure{Error: "no", Unread: true, Permanent: true}))
	same("after the end")
	if j, err := a.Find(ctx, push.OfWebhook("local"), taken[1].Key); err != nil || j == nil || !j.Unread {
		t.Errorf("found %+v, %v", j, err)
	}
	a.ok(a.Retry(ctx, taken[1].ID)) // at the server that does not do them
	same("after Retry")             // the other has heard of it, too
	if j := b.claimOne(); j.ID != taken[1].ID || j.Attempts != 1 {
		t.Errorf("claimed %+v", j)
	}
}

// servers are those that share a spool, as one of them knows them.
type servers struct {
	self    string
	mu      sync.Mutex
	owned   map[string]bool // registries
	gone    map[string]bool // other servers
	changed []func()
}

func (s *servers) Self() string           { return s.self }
func (s *servers) OnChange(f func())      { s.changed = append(s.changed, f) }
func (s *servers) Owns(host string) bool  { s.mu.Lock(); defer s.mu.Unlock(); return s.owned[host] }
func (s *servers) Lives(name string) bool { s.mu.Lock(); defer s.mu.Unlock(); return !s.gone[name] }

// set changes who owns a registry and who is gone.
func (s *servers) set(fn func()) {
	s.mu.Lock()
	fn()
	s.mu.Unlock()
	for _, f := range s.changed {
		f()
	}
}

// claimed is what a server claims that knows all that any was told of.
func claimed(s *testSpool, n int) []*push.Job {
	s.t.Helper()
	_, err := s.List(s.t.Context(), "", 0, 0)
	s.ok(err)
	return s.claim(n)
}

// TestOneServerAsksARegistry: the jobs of a registry are those of its owner. A registry that
// changes hands waits for the jobs that the former owner is at; nobody takes these from it while it
// lives, and they need not wait for it when it is gone.
func TestOneServerAsksARegistry(t *testing.T) {
	store, ctx := dbtest.NewTruth(), t.Context()
	ofA := &servers{self: "a", owned: map[string]bool{"x.example": true}, gone: map[string]bool{}}
	ofB := &servers{self: "b", owned: map[string]bool{"y.example": true}, gone: map[string]bool{}}
	a, b := openShared(t, store, spool.Options{Servers: ofA}), openShared(t, store, spool.Options{Servers: ofB})
	keysOf := func(jobs []*push.Job) (keys []string) {
		for _, j := range jobs {
			keys = append(keys, j.Key)
		}
		slices.Sort(keys)
		return keys
	}
	expect := func(what string, jobs []*push.Job, want ...string) {
		t.Helper()
		if got := keysOf(jobs); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	a.enqueue(request("x.example/k1", "", "p"), request("y.example/k2", "", "p"))
	b.enqueue(request("x.example/k3", "", "p"), request("y.example/k4", "", "p"))
	held := claimed(b, 10)
	expect("of b", held, "y.example/k2:v", "y.example/k4:v")
	expect("of b once more", claimed(b, 10))
	x := claimed(a, 1)
	expect("of a", x, "x.example/k1:v")

	// x changes hands while a is at one of its jobs.
	ofA.set(func() { delete(ofA.owned, "x.example") })
	ofB.set(func() { ofB.owned["x.example"] = true })
	expect("of the former owner", claimed(a, 10))
	expect("of the next owner", claimed(b, 10))
	waited := make(chan []*push.Job)
	go func() {
		jobs, err := b.Claim(ctx, 10, time.Minute, nil)
		if err != nil {
			t.Error(err)
		}
		waited <- jobs
	}()
	a.ok(a.Renew(ctx, x[0], time.Minute))
	a.ok(a.Done(ctx, x[0]))
	expect("of the next owner, when the former has ended", <-waited, "x.example/k3:v")

	// b vanishes.
	ofA.set(func() { ofA.owned["x.example"], ofA.owned["y.example"] = true, true })
	expect("of who lives", claimed(a, 10))
	go func() {
		jobs, err := a.Claim(ctx, 10, time.Minute, nil)
		if err != nil {
			t.Error(err)
		}
		waited <- jobs
	}()
	ofA.set(func() { ofA.gone["b"] = true })
	taken := <-waited
	expect("of who is gone", taken, "x.example/k3:v", "y.example/k2:v", "y.example/k4:v")
	for _, j := range taken {
		if j.Attempts != 2 || !strings.Contains(j.Error, "lease ended") {
			t.Errorf("taken over: %+v", j)
		}
	}
	if err := b.Done(ctx, held[0]); !errors.Is(err, spool.ErrLeaseLost) {
		t.Errorf("Done with a lease that another server has: %v", err)
	}
}

// TestServersWhoseClocksDiffer: a registry changes hands while a server whose clock is ten minutes
// off is at one of its jobs. The next owner takes the job neither early nor late: when its worker
// has not renewed the lease for as long as it lasts.
func TestServersWhoseClocksDiffer(t *testing.T) {
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			store := dbtest.NewTruth()
			former := &servers{self: "former", owned: map[string]bool{testHost: true}}
			next := &servers{self: "next", owned: map[string]bool{}}
			offClock, clock := clocktesting.NewFakeClock(start.Add(off)), clocktesting.NewFakeClock(start)
			a := openSharedAt(t, store, spool.Options{Servers: former}, offClock, offClock)
			b := openSharedAt(t, store, spool.Options{Servers: next}, clock, clock)
			a.enqueue(request("k", "", "p"))
			held := claimed(a, 1)
			if len(held) != 1 {
				t.Fatalf("the owner has claimed %v", held)
			}
			former.set(func() { delete(former.owned, testHost) })
			next.set(func() { next.owned[testHost] = true })
			pass := func(d time.Duration, want int, when string) {
				t.Helper()
				offClock.Step(d)
				clock.Step(d)
				if taken := claimed(b, 1); len(taken) != want {
					t.Fatalf("%s the next owner has claimed %d jobs, want %d", when, len(taken), want)
				}
			}
			pass(0, 0, "at once")
			pass(50*time.Second, 0, "before the lease has ended")
			a.ok(a.Renew(t.Context(), held[0], time.Minute))
			pass(0, 0, "at the renewal")
			pass(50*time.Second, 0, "after a renewal")
			pass(20*time.Second, 1, "when the lease has ended")
		})
	}
}

// TestJobsOfServersWhoseClocksDiffer: a job that a server has taken whose clock is ten minutes off
// is claimed at once by the owner of its registry, and tried again no later than that server meant.
func TestJobsOfServersWhoseClocksDiffer(t *testing.T) {
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			store := dbtest.NewTruth()
			former := &servers{self: "former", owned: map[string]bool{}}
			owner := &servers{self: "owner", owned: map[string]bool{testHost: true}}
			offClock, clock := clocktesting.NewFakeClock(start.Add(off)), clocktesting.NewFakeClock(start)
			a := openSharedAt(t, store, spool.Options{Servers: former}, offClock, offClock)
			b := openSharedAt(t, store, spool.Options{Servers: owner}, clock, clock)
			a.enqueue(request("k", "", "p"))
			held := claimed(b, 1)
			if len(held) != 1 {
				t.Fatal("a job that another server took is not due")
			}
			b.ok(b.Release(t.Context(), held[0]))
			owner.set(func() { delete(owner.owned, testHost) })
			former.set(func() { former.owned[testHost] = true })
			if held = claimed(a, 1); len(held) != 1 {
				t.Fatal("a job that another server gave back is not due")
			}
			a.ok(a.Fail(t.Context(), held[0], job.Failure{Error: "away", After: time.Minute}))
			former.set(func() { delete(former.owned, testHost) })
			owner.set(func() { owner.owned[testHost] = true })
			_, err := b.List(t.Context(), "", 0, 0) // it has seen that
			b.ok(err)
			clock.Step(2 * time.Minute)
			if held = claimed(b, 1); len(held) != 1 {
				t.Fatal("a job that another server wanted to try again after a minute is not due after two")
			}
			b.ok(b.Release(t.Context(), held[0]))
			clock.SetTime(clock.Now().Add(-10 * time.Minute))
			if len(claimed(b, 1)) != 1 {
				t.Error("after a server's clock was set back, what was due is not")
			}
		})
	}
}

// laggingTruth is a store whose changes come late to one of its copies: when somebody asks how far
// it is, if they are held.
type laggingTruth struct {
	*dbtest.Truth
	mu    sync.Mutex
	held  chan struct{} // changes wait for its end; nil lets them through
	asked atomic.Int64
}

func (l *laggingTruth) Follow(ctx context.Context, from int64, apply func([]truth.Change, int64) error) error {
	return l.Truth.Follow(ctx, from, func(changes []truth.Change, upTo int64) error {
		l.mu.Lock()
		held := l.held
		l.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return apply(changes, upTo)
	})
}

func (l *laggingTruth) Head(ctx context.Context) (int64, error) {
	l.asked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
	return l.Truth.Head(ctx)
}

// hold has changes wait until the next question.
func (l *laggingTruth) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

// TestHandOverToACopyThatLags: a server whose copy is behind knows, before it begins with a
// registry that it has come to own, which of its jobs the former owner is at. It asks once for each
// time that registries change hands.
func TestHandOverToACopyThatLags(t *testing.T) {
	store := dbtest.NewTruth()
	lagging := &laggingTruth{Truth: store}
	ofA := &servers{self: "a", owned: map[string]bool{"x.example": true}}
	ofB := &servers{self: "b", owned: map[string]bool{"y.example": true}}
	a := openSharedAt(t, store, spool.Options{Servers: ofA}, clock.RealClock{}, nil)
	d := dbtest.Open(t, func(o *db.Options) { o.MaintenanceInterval, o.Truth = 1000*time.Hour, lagging })
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	shared, err := spool.Open(d, spool.Options{Servers: ofB})
	if err != nil {
		t.Fatal(err)
	}
	b := &testSpool{shared, t, nil}
	a.enqueue(request("x.example/k1", "", "p"), request("x.example/k2", "", "p"), request("x.example/k3", "", "p"), request("y.example/k", "", "p"))
	if jobs := claimed(b, 10); len(jobs) != 1 || jobs[0].Key != "y.example/k:v" {
		t.Fatalf("claimed: %v", jobs)
	}
	lagging.hold()
	x := a.claim(1)
	ofA.set(func() { delete(ofA.owned, "x.example") })
	ofB.set(func() { ofB.owned["x.example"] = true })
	if jobs := b.claim(10); len(jobs) != 0 {
		t.Errorf("%s is asked by two servers, for %s and %s", "x.example", x[0].Key, jobs[0].Key)
	}
	a.ok(a.Done(t.Context(), x[0]))
	if jobs := claimed(b, 1); len(jobs) != 1 || !strings.HasPrefix(jobs[0].Key, "x.example/") || jobs[0].Key == x[0].Key {
		t.Errorf("after the former owner has ended: %d jobs", len(jobs))
	}
	before := lagging.asked.Load()
	if jobs := b.claim(10); len(jobs) != 1 || lagging.asked.Load() != before {
		t.Errorf("a claim of %d jobs of what has not changed hands asks the store %d times", len(jobs), lagging.asked.Load()-before)
	}
}

// TestLeaseOfALivingServerEnds: a job whose server lives and has forgotten it is done by the owner
// of its registry.
func TestLeaseOfALivingServerEnds(t *testing.T) {
	store, clock := dbtest.NewTruth(), clocktesting.NewFakeClock(start)
	ofA := &servers{self: "a", owned: map[string]bool{testHost: true}}
	ofB := &servers{self: "b", owned: map[string]bool{testHost: true}}
	a, b := openSharedAt(t, store, spool.Options{Servers: ofA}, clock, clock), openSharedAt(t, store, spool.Options{Servers: ofB}, clock, clock)
	a.enqueue(request("k", "", "p"))
	a.claimOne()
	if jobs := claimed(b, 10); len(jobs) != 0 {
		t.Errorf("taken from the living: %v", jobs)
	}
	clock.Step(time.Minute)
	if jobs := claimed(b, 10); len(jobs) != 1 || jobs[0].Attempts != 2 {
		t.Errorf("claimed %+v", jobs)
	}
}

// TestSharedQuotaHoldsOverAllServers: receivers of all servers fill one quota, and what gives way
// is the oldest of them all.
func TestSharedQuotaHoldsOverAllServers(t *testing.T) {
	store := dbtest.NewTruth()
	a, b := openShared(t, store, spool.Options{Quota: 20, Logger: quiet}), openShared(t, store, spool.Options{Quota: 20, Logger: quiet})
	var sending sync.WaitGroup
	for _, s := range []*testSpool{a, b} {
		for w := range 4 {
			sending.Go(func() {
				for i := range 20 {
					if err := s.Enqueue(t.Context(), []push.Event{request(fmt.Sprintf("k:%p-%d-%d", s, w, i), "", "p")}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	sending.Wait()
	// now it has heard of all that the other was told: until then both may be over by what was told
	// last
	a.keys("local", job.Waiting)
	a.enqueue(request("last", "", "p"))
	if st := a.stats(); st.Payloads != 20 || st.Waiting != 20 {
		t.Errorf("in a quota of 20: %+v", st)
	}
	if keys := a.keys("local", job.Waiting); !slices.Contains(keys, "last") {
		t.Errorf("the newest is not there: %v", keys)
	}
}

// TestSharedSpoolWithoutTheStore: what the store has not taken is not acknowledged, and is taken
// when it is sent again.
func TestSharedSpoolWithoutTheStore(t *testing.T) {
	store := dbtest.NewTruth()
	s := openSharedAt(t, store, spool.Options{}, clock.RealClock{}, nil)
	s.enqueue(request("k", "e1", "a"))
	store.Stop()
	if err := s.Enqueue(t.Context(), []push.Event{request("k", "e2", "b")}); err == nil {
		t.Error("a push was taken that nobody has")
	}
	store.Start()
	s.enqueue(request("k", "e2", "b"))
	if j := s.claimOne(); payloads(j) != "a b" {
		t.Errorf("claimed %q, want a b", payloads(j))
	}
}

// TestSharedSpoolIsReadAnew: a spool continues when its copy was filled again, without the changes
// in between.
func TestSharedSpoolIsReadAnew(t *testing.T) {
	store, ctx := dbtest.NewTruth(), t.Context()
	a, b := openSharedAt(t, store, spool.Options{}, clock.RealClock{}, nil), openSharedAt(t, store, spool.Options{}, clock.RealClock{}, nil)
	for i := range 5 {
		a.enqueue(request(fmt.Sprint("k", i), fmt.Sprint("e", i), "p"))
	}
	if len(b.keys("local", "")) != 5 {
		t.Fatal("the other server has other jobs")
	}
	a.ok(a.Done(ctx, a.claim(1)[0]))
	store.Restore(1<<40, 1000) // the same keys, at a later revision of another cluster
	b.enqueue(request("k5", "e5", "p"), request("k5", "e4", "again"))
	for _, s := range []*testSpool{a, b} {
		if keys := s.keys("local", ""); !slices.Equal(keys, []string{"k1", "k2", "k3", "k4", "k5"}) {
			t.Errorf("jobs: %v", keys)
		}
	}
}

// FuzzJob: whatever is stored as a job, it is listed, and is given to a worker only with
// events that can be read.
func FuzzJob(f *testing.F) {
	good, err := json.Marshal(map[string]any{
		"key": "registry.example.com/k:v", "receiver": "local", "state": "waiting", "due": start.UnixMilli(), "enqueued": 1, "latest": 1,
		"events": []json.RawMessage{request("k", "", "p").Encode()},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.Replace(good, []byte("waiting"), []byte("leased"), 1))
	f.Add([]byte(`{"state":"waiting","events":[]}`))
	f.Add([]byte(`{"state":"waiting","events":[{"action":"later"}]}`))
	f.Add([]byte(`{"state":"strange","due":-1}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, stored []byte) {
		clock := clocktesting.NewFakeClock(start)
		d := dbtest.Open(t, func(o *db.Options) { o.Clock, o.MaintenanceInterval = clock, 1000*time.Hour })
		for _, key := range []string{"jobs/0000000000000007", "jobs/x", "seen/1"} {
			if _, err := d.Put(t.Context(), "/tidewaiter.dev/spool/"+key, 0, stored, db.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		opened, err := spool.Open(d, spool.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s := &testSpool{opened, t, clock}
		if all, err := s.List(t.Context(), "", 0, 0); err != nil || len(all) != 1 || all[0].ID != 7 {
			t.Fatalf("jobs: %v, %v", all, err)
		}
		for _, j := range s.claim(10) {
			if len(j.Events) == 0 {
				t.Errorf("claimed %+v", j)
			}
			_ = j.Host()
			s.ok(s.Done(t.Context(), j))
		}
	})
}
