package feeder_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/controllers/feeder"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// fakeStreams have some references to be imported at each reading, and tell of others that come.
type fakeStreams struct {
	mu      sync.Mutex
	pending []reference.Reference
	reads   int
	fail    error
	come    chan []reference.Reference
}

func (s *fakeStreams) Each(_ context.Context, use func([]reference.Reference) error) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads++; s.fail != nil {
		return "", s.fail
	}
	return "1", use(slices.Clone(s.pending))
}

func (s *fakeStreams) Watch(ctx context.Context, version string, use func([]reference.Reference) error) (string, error) {
	select {
	case refs := <-s.come:
		return version, use(refs) // and the watch ends
	case <-ctx.Done():
		return version, nil
	}
}

// streamQueue keeps what it was given.
type streamQueue struct {
	mu      sync.Mutex
	jobs    map[string]*push.Job // by key
	batches []int
	added   []string
	retried []string
}

func (q *streamQueue) Enqueue(_ context.Context, events []push.Event) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches = append(q.batches, len(events))
	for _, e := range events {
		if e.Source != push.OfStreams || e.Action != push.Follows {
			return fmt.Errorf("queued is %+v", e)
		}
		q.added = append(q.added, e.Key())
		q.jobs[e.Key()] = &push.Job{ID: int64(len(q.jobs)), Key: e.Key(), State: job.Waiting}
	}
	return nil
}

func (q *streamQueue) Find(_ context.Context, receiver push.Source, key string) (*push.Job, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if receiver != push.OfStreams {
		return nil, errors.New("receiver " + receiver.String())
	}
	return q.jobs[key], nil
}

func (q *streamQueue) Retry(_ context.Context, id int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, j := range q.jobs {
		if j.ID == id {
			q.retried = append(q.retried, j.Key)
		}
	}
	return nil
}

func ref(t *testing.T, text string) reference.Reference {
	t.Helper()
	r, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func startStreams(t *testing.T, s *fakeStreams) *streamQueue {
	s.come = make(chan []reference.Reference)
	q := &streamQueue{jobs: map[string]*push.Job{}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- (&feeder.Streams{Followed: s, Queue: q}).Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return q
}

func (q *streamQueue) expect(t *testing.T, what string, added, retried []string) {
	t.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Equal(q.added, added) || !slices.Equal(q.retried, retried) {
		t.Errorf("%s, queued are %q and tried again %q, want %q and %q", what, q.added, q.retried, added, retried)
	}
	q.added, q.retried = nil, nil
}

// What is to be imported is queued when the server starts and when a stream is written. What waits
// is not queued again, what failed is tried at once when it is asked for again, and what is being
// done is queued behind that.
func TestWhatStreamsFollowIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStreams{pending: []reference.Reference{ref(t, "r.example.com/app:1")}}
		q := startStreams(t, s)
		q.expect(t, "at the start", []string{"r.example.com/app:1"}, nil)
		s.come <- []reference.Reference{ref(t, "r.example.com/app:1"), ref(t, "r.example.com/app:2")}
		q.expect(t, "when a stream is written", []string{"r.example.com/app:2"}, nil)
		q.mu.Lock()
		q.jobs["r.example.com/app:1"].Attempts = 3
		q.jobs["r.example.com/app:2"].State = job.Leased
		q.jobs["r.example.com/app:3"] = &push.Job{ID: 7, Key: "r.example.com/app:3", State: job.Dead}
		q.mu.Unlock()
		s.come <- []reference.Reference{ref(t, "r.example.com/app:1"), ref(t, "r.example.com/app:2"), ref(t, "r.example.com/app:3")}
		q.expect(t, "when all are asked for again", []string{"r.example.com/app:2"}, []string{"r.example.com/app:1", "r.example.com/app:3"})
	})
}

// What was dropped from the queue is found within the hour, and what could not be read a little
// later.
func TestAllStreamsAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStreams{fail: errors.New("the disk is away")}
		q := startStreams(t, s)
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		if s.reads < 10 || s.reads > 20 {
			t.Errorf("%d attempts in ten minutes", s.reads)
		}
		s.fail, s.pending = nil, []reference.Reference{ref(t, "r.example.com/app:1")}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		q.expect(t, "a minute later", []string{"r.example.com/app:1"}, nil)
		q.mu.Lock()
		clear(q.jobs)
		q.mu.Unlock()
		time.Sleep(feeder.Again)
		q.expect(t, "an hour later", []string{"r.example.com/app:1"}, nil)
	})
}

// Very many are queued in batches, with pauses.
func TestManyAreQueuedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStreams{}
		for i := range 1000 {
			s.pending = append(s.pending, reference.Reference{Host: "r.example.com", Repository: "app", Tag: fmt.Sprint(i)})
		}
		q, began := startStreams(t, s), time.Now()
		for n := 0; n < 1000; time.Sleep(100 * time.Millisecond) {
			synctest.Wait()
			q.mu.Lock()
			n = len(q.jobs)
			q.mu.Unlock()
			if time.Since(began) > time.Minute {
				t.Fatalf("%d are queued after a minute", n)
			}
		}
		if took := time.Since(began); took < 9*time.Second || slices.Max(q.batches) > 100 {
			t.Errorf("it took %s, in batches of %v", took, q.batches)
		}
	})
}
