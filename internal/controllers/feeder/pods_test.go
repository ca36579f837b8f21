package feeder_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/controllers/feeder"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// fakeQueue keeps what it was given.
type fakeQueue struct {
	mu      sync.Mutex
	queued  []push.Event
	batches []int
	jobs    map[string]*push.Job // by receiver and key
	retried []int64
	fail    error
}

func (q *fakeQueue) Enqueue(_ context.Context, events []push.Event) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fail != nil {
		return q.fail
	}
	q.queued, q.batches = append(q.queued, events...), append(q.batches, len(events))
	for _, e := range events {
		q.jobs[e.Source.String()+" "+e.Key()] = &push.Job{ID: int64(len(q.jobs)), State: job.Waiting}
	}
	return nil
}

func (q *fakeQueue) Find(_ context.Context, receiver push.Source, key string) (*push.Job, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.jobs[receiver.String()+" "+key], nil
}

func (q *fakeQueue) Retry(_ context.Context, id int64) error {
	q.retried = append(q.retried, id)
	return nil
}

// take returns what was queued since the last call, once nothing else happens, also after the pause
// between two batches: what is used one after the other may come in several.
func (q *fakeQueue) take() (out []string) {
	time.Sleep(10 * time.Second)
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.queued {
		out = append(out, e.Source.String()+" "+string(e.Action)+" "+e.Key())
	}
	q.queued = nil
	slices.Sort(out)
	return out
}

func refs(t testing.TB, texts ...string) (out []reference.Reference) {
	t.Helper()
	for _, text := range texts {
		ref, err := reference.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ref)
	}
	return out
}

// uses are what pods use; nil is none.
type uses func(use func(string, []reference.Reference))

// Known knows the repository known, and cannot read damaged.
func (uses) Known(_ context.Context, ref reference.Reference) (bool, error) {
	if ref.Repository == "damaged" {
		return false, errors.New("it cannot be read")
	}
	return ref.Repository == "known", nil
}

func (u uses) Each(_ context.Context, use func(string, []reference.Reference)) error {
	if u != nil {
		u(use)
	}
	return nil
}

func (uses) Wanted(cluster string) bool { return cluster != "quiet" }

// start runs a feeder in a bubble.
func start(t *testing.T, u uses) (*feeder.Pods, *fakeQueue) {
	q := &fakeQueue{jobs: map[string]*push.Job{}}
	f := feeder.NewPods(feeder.PodsOptions{Queue: q, Uses: u})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, q
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: queued are %q, want %q", what, got, want)
	}
}

func TestWhatIsNotKnownIsQueuedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		digest := "sha256:" + fmt.Sprintf("%064d", 1)
		f, q := start(t, nil)
		f.Use("prod", append(refs(t, "r.example.com/app:1", "r.example.com/known:1", "r.example.com/damaged:1", "r.example.com/app:1@"+digest), reference.Reference{Digest: digest}))
		f.Use("prod", refs(t, "r.example.com/app:1"))
		f.Use("test", refs(t, "r.example.com/app:1", "busybox"))
		f.Use("quiet", refs(t, "r.example.com/app:2"))
		expect(t, "at first", q.take(), "cluster/prod run r.example.com/app:1", "cluster/prod run r.example.com/app@"+digest,
			"cluster/test run docker.io/library/busybox:latest", "cluster/test run r.example.com/app:1")
		time.Sleep(time.Minute)
		f.Use("prod", refs(t, "r.example.com/app:1", "r.example.com/app:3"))
		expect(t, "a further pod", q.take(), "cluster/prod run r.example.com/app:3")
	})
}

// What was given up is tried again when an hour has passed, also if no pod changes; what could not
// be queued is queued then.
func TestEveryHourAllPodsAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var more atomic.Bool
		f, q := start(t, func(use func(string, []reference.Reference)) {
			use("prod", refs(t, "r.example.com/app:1"))
			if more.Load() {
				use("prod", refs(t, "r.example.com/app:2"))
			}
		})
		expect(t, "at first", q.take(), "cluster/prod run r.example.com/app:1")
		q.mu.Lock()
		failed := q.jobs["cluster/prod r.example.com/app:1"]
		failed.State, failed.Due = job.Dead, time.Now().Add(time.Minute)
		q.fail = errors.New("the disk is full")
		q.mu.Unlock()
		more.Store(true)
		f.Use("prod", refs(t, "r.example.com/app:2"))
		expect(t, "on a full disk", q.take())
		time.Sleep(feeder.Again + time.Second)
		expect(t, "on a full disk", q.take())
		if len(q.retried) != 0 {
			t.Error("what was given up less than an hour ago is tried again")
		}
		q.mu.Lock()
		q.fail = nil
		q.mu.Unlock()
		time.Sleep(feeder.Again + time.Minute)
		expect(t, "after two hours", q.take(), "cluster/prod run r.example.com/app:2")
		if !slices.Equal(q.retried, []int64{failed.ID}) {
			t.Errorf("tried again are %v", q.retried)
		}
	})
}

// A cluster of very many images is looked at in the end, with a bounded number waiting and no flood
// of the queue.
func TestManyImagesAreFedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const images = 25_000
		each := func(use func(string, []reference.Reference)) {
			for i := range images {
				use("prod", []reference.Reference{{Host: "r.example.com", Repository: "app", Tag: fmt.Sprint(i)}})
			}
		}
		f, q := start(t, each)
		began := time.Now()
		each(f.Use)
		for {
			time.Sleep(time.Second)
			synctest.Wait()
			q.mu.Lock()
			n := len(q.jobs)
			q.mu.Unlock()
			if n == images {
				break
			}
			if time.Since(began) > time.Hour/2 {
				t.Fatalf("after half an hour %d are queued", n)
			}
		}
		if least := images / 100 * time.Second; time.Since(began) < least-2*time.Second {
			t.Errorf("it took %s, want %s at least", time.Since(began), least)
		}
		if slices.Max(q.batches) > 100 {
			t.Errorf("%d at once", slices.Max(q.batches))
		}
	})
}
