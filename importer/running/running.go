// Package running has the images imported that pods run, as if they had been pushed.
//
// A [Feeder] is told which references pods use ([Feeder.Use]), and puts those that are not known into the queue of
// pushes. There each cluster has a quota, and failed imports are tried again and listed, as for a receiver of webhooks.
// Every hour the Feeder goes through all pods, and so tries again what was dropped or given up.
//
// # Bounds
//
// At most 10,000 references wait to be looked at; others are found when all pods are gone through. At most 100 are put
// into the queue in a second, so that pushes do not wait long behind a cluster that is seen for the first time.
package running

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// Bounds of a Feeder.
const (
	maxWaiting = 10_000
	batch      = 100
	pause      = time.Second // between two batches
	// Again is how often all pods are gone through, and how long a reference that was given up is left alone.
	Again = time.Hour
)

// Queue keeps references until they are imported.
type Queue interface {
	// Enqueue makes events durable. An event that waits already is not added again.
	Enqueue(ctx context.Context, events []push.Event) error
	// Find returns the newest job of a receiver for a key, nil if there is none.
	Find(ctx context.Context, receiver, key string) (*push.Job, error)
	// Retry makes a job due that waits or is dead. It fails with push.ErrNoSuchJob.
	Retry(ctx context.Context, id int64) error
}

// Options of a Feeder. All but Clock and Logger are required.
type Options struct {
	Queue Queue
	// Known reports whether an image is known by a reference.
	Known func(ctx context.Context, ref reference.Reference) (bool, error)
	// Each calls use with the images of each pod.
	Each func(ctx context.Context, use func(cluster string, images []reference.Reference)) error
	// Wanted reports whether the images of a cluster's pods are imported.
	Wanted func(cluster string) bool
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
	// Logger is told what fails. Default slog.Default().
	Logger *slog.Logger
}

// Feeder puts references that pods use into a queue. It is safe for concurrent use.
type Feeder struct {
	Options
	wake chan struct{} // holds a token when something waits

	mu      sync.Mutex
	waiting map[use]struct{}
	missed  bool // there was no room for a reference
}

// use is a reference that pods of a cluster use.
type use struct {
	cluster string
	image   reference.Reference
}

// New returns a Feeder; Run starts it.
func New(o Options) *Feeder {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Feeder{Options: o, wake: make(chan struct{}, 1), waiting: map[use]struct{}{}}
}

// Use takes the images of a pod. It returns at once.
func (f *Feeder) Use(cluster string, images []reference.Reference) {
	if !f.Wanted(cluster) {
		return
	}
	for _, image := range images {
		if image.Host == "" || image.Repository == "" {
			continue // a registry cannot be asked for it
		}
		if !f.add(use{cluster, image.Pulled()}) {
			f.mu.Lock()
			f.missed = true
			f.mu.Unlock()
		}
	}
}

// add queues a reference to be looked at, if there is room.
func (f *Feeder) add(u use) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.waiting[u]; !ok && len(f.waiting) == maxWaiting {
		return false
	}
	f.waiting[u] = struct{}{}
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return true
}

// Run feeds the queue until ctx is done.
func (f *Feeder) Run(ctx context.Context) error {
	again := f.Clock.NewTicker(Again)
	defer again.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-again.C():
			f.all(ctx)
		case <-f.wake:
		}
		for f.feed(ctx) {
		}
		if f.hasMissed() {
			f.all(ctx)
		}
	}
	return nil
}

// all goes through all pods. When there is no room for one, it feeds what waits first.
func (f *Feeder) all(ctx context.Context) {
	err := f.Each(ctx, func(cluster string, images []reference.Reference) {
		f.Use(cluster, images)
		for f.hasMissed() && f.feed(ctx) {
			f.Use(cluster, images)
		}
	})
	if err != nil && ctx.Err() == nil {
		f.Logger.Error("What pods use cannot be gone through, and is when the hour is over", "err", err)
	}
}

// hasMissed reports whether a reference found no room since the last call.
func (f *Feeder) hasMissed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	missed := f.missed
	f.missed = false
	return missed
}

// feed looks at a batch of references. It returns false when there are none or ctx is done.
func (f *Feeder) feed(ctx context.Context) bool {
	taken := f.take()
	var events []push.Event
	for _, u := range taken {
		e := push.Event{Receiver: push.OfCluster(u.cluster), Action: push.Runs, Host: u.image.Host, Repository: u.image.Repository, Tag: u.image.Tag, Digest: u.image.Digest}
		isNew, err := f.isNew(ctx, u.image, e)
		if err != nil && ctx.Err() == nil {
			f.Logger.Error("It cannot be told whether what a pod uses is known; it is looked at when the hour is over", "cluster", u.cluster, "image", u.image.String(), "err", err)
		}
		if isNew {
			events = append(events, e)
		}
	}
	if len(events) > 0 {
		if err := f.Queue.Enqueue(ctx, events); err != nil && ctx.Err() == nil {
			f.Logger.Error("What pods use cannot be queued; it is when the hour is over", "images", len(events), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-f.Clock.After(pause):
		}
	}
	return len(taken) > 0 && ctx.Err() == nil
}

// take removes a batch of the references that wait.
func (f *Feeder) take() []use {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := make([]use, 0, min(len(f.waiting), batch))
	for u := range f.waiting {
		if len(taken) == batch {
			break
		}
		delete(f.waiting, u)
		taken = append(taken, u)
	}
	return taken
}

// isNew reports whether an image must be queued. One that was given up long enough ago is tried again.
func (f *Feeder) isNew(ctx context.Context, image reference.Reference, e push.Event) (bool, error) {
	known, err := f.Known(ctx, image)
	if known || err != nil {
		return false, err
	}
	job, err := f.Queue.Find(ctx, e.Receiver, e.Key())
	if job == nil || err != nil {
		return err == nil, err
	}
	if job.State == push.Dead && f.Clock.Since(job.Due) >= Again {
		if err := f.Queue.Retry(ctx, job.ID); err != nil {
			return false, fmt.Errorf("trying job %d again: %w", job.ID, err)
		}
	}
	return false, nil
}
