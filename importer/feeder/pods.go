package feeder

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// maxWaiting is how many references wait to be looked at. Others are found when all pods are gone
// through.
const maxWaiting = 10_000

// PodsOptions are the options of Pods. All but Clock and Logger are required.
type PodsOptions struct {
	Queue Queue
	// Known reports whether an image is known by a reference.
	Known func(ctx context.Context, ref reference.Reference) (bool, error)
	// Each calls use with the images of each pod.
	Each func(ctx context.Context, use func(cluster string, images []reference.Reference)) error
	// Wanted reports whether the images of a cluster's pods are imported.
	Wanted func(cluster string) bool
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
	// Logger gets failures. Default slog.Default().
	Logger *slog.Logger
}

// Pods puts the references that pods use into a queue. It is safe for concurrent use.
type Pods struct {
	PodsOptions
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

// NewPods returns a Pods; Run starts it.
func NewPods(o PodsOptions) *Pods {
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return &Pods{PodsOptions: o, wake: make(chan struct{}, 1), waiting: map[use]struct{}{}}
}

// Use takes the images of a pod. It returns at once.
func (f *Pods) Use(cluster string, images []reference.Reference) {
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
func (f *Pods) add(u use) bool {
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
func (f *Pods) Run(ctx context.Context) error {
	again := f.Clock.NewTicker(Again)
	defer again.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-again.C():
			f.all(ctx)
		case <-f.wake:
		}
		for f.queueBatch(ctx) {
		}
		if f.hasMissed() {
			f.all(ctx)
		}
	}
	return nil
}

// all goes through all pods. When there is no room for one, it feeds what waits first.
func (f *Pods) all(ctx context.Context) {
	err := f.Each(ctx, func(cluster string, images []reference.Reference) {
		f.Use(cluster, images)
		for f.hasMissed() && f.queueBatch(ctx) {
			f.Use(cluster, images)
		}
	})
	if err != nil && ctx.Err() == nil {
		f.Logger.Error("Reading the images that pods use failed; the next try is in an hour at most", "err", err)
	}
}

// hasMissed reports whether a reference found no room since the last call.
func (f *Pods) hasMissed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	missed := f.missed
	f.missed = false
	return missed
}

// queueBatch looks at a batch of references. It returns false when there are none or ctx is done.
func (f *Pods) queueBatch(ctx context.Context) bool {
	taken := f.takeBatch()
	var events []push.Event
	for _, u := range taken {
		e := push.Event{Receiver: push.OfCluster(u.cluster), Action: push.Runs, Host: u.image.Host, Repository: u.image.Repository, Tag: u.image.Tag, Digest: u.image.Digest}
		isNew, err := f.isNew(ctx, u.image, e)
		if err != nil && ctx.Err() == nil {
			f.Logger.Error("It is unknown whether an image that a pod uses is imported; the next check is in an hour at most", "cluster", u.cluster, "image", u.image.String(), "err", err)
		}
		if isNew {
			events = append(events, e)
		}
	}
	if len(events) > 0 {
		if err := f.Queue.Enqueue(ctx, events); err != nil && ctx.Err() == nil {
			f.Logger.Error("Queueing the images that pods use failed; the next try is in an hour at most", "images", len(events), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-f.Clock.After(pause):
		}
	}
	return len(taken) > 0 && ctx.Err() == nil
}

// takeBatch removes a batch of the references that wait.
func (f *Pods) takeBatch() []use {
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

// isNew reports whether an image must be queued. One that was given up long enough ago is tried
// again.
func (f *Pods) isNew(ctx context.Context, image reference.Reference, e push.Event) (bool, error) {
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
