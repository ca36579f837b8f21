package feeder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const (
	maxWaiting = 10_000        // references that wait to be checked
	pace       = pause / batch // between two references that are queued
)

// Uses is what pods use.
type Uses interface {
	// Known reports whether an image is stored under a reference.
	Known(ctx context.Context, ref reference.Reference) (bool, error)
	// Each calls use with the images of each pod.
	Each(ctx context.Context, use func(cluster string, images []reference.Reference)) error
	// Wanted reports whether the images of a cluster's pods are imported.
	Wanted(cluster string) bool
}

// PodsOptions are the options of Pods. All but Clock are required.
type PodsOptions struct {
	Queue Queue
	Uses  Uses
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
}

// Pods puts the references that pods use into a queue. It is safe for concurrent use.
type Pods struct {
	PodsOptions
	queue *reconcile.Controller[use]
}

// use is a reference that pods of a cluster use. The zero use stands for all that pods use.
type use struct {
	cluster string
	image   reference.Reference
}

// String is for the log.
func (u use) String() string { return u.cluster + " " + u.image.String() }

// NewPods returns a Pods; Run starts it.
func NewPods(o PodsOptions) *Pods {
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	f := &Pods{PodsOptions: o}
	f.queue = reconcile.New(f, reconcile.Options[use]{Task: "queueing the images that pods use", Max: maxWaiting, Retry: time.Minute, MaxRetry: Again, Clock: o.Clock})
	return f
}

// Use adds the images of a pod. It returns at once.
func (f *Pods) Use(cluster string, images []reference.Reference) {
	for u := range f.wanted(cluster, images) {
		f.queue.Add(u)
	}
}

// wanted returns the images of a pod that name a registry and a repository, if the cluster's images
// are imported.
func (f *Pods) wanted(cluster string, images []reference.Reference) iter.Seq[use] {
	return func(yield func(use) bool) {
		for _, image := range images {
			if f.Uses.Wanted(cluster) && image.Host != "" && image.Repository != "" && !yield(use{cluster, image.Pulled()}) {
				return
			}
		}
	}
}

// Run feeds the queue until ctx is done. It begins with all that pods use.
func (f *Pods) Run(ctx context.Context) error {
	f.queue.Add(use{})
	return f.queue.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler]: it queues an image, or all images that pods use, if
// they are new.
func (f *Pods) Reconcile(ctx context.Context, u use) (time.Duration, error) {
	if u != (use{}) {
		return 0, f.feed(ctx, u)
	}
	var failed error
	fed := map[use]struct{}{} // at most maxWaiting
	err := f.Uses.Each(ctx, func(cluster string, images []reference.Reference) {
		for u := range f.wanted(cluster, images) {
			if _, ok := fed[u]; ok || ctx.Err() != nil {
				continue
			}
			if len(fed) < maxWaiting {
				fed[u] = struct{}{}
			}
			if err := f.feed(ctx, u); err != nil {
				failed = err
			}
		}
	})
	return Again, errors.Join(err, failed)
}

// feed queues an image if it is new.
func (f *Pods) feed(ctx context.Context, u use) error {
	e := push.Event{Source: push.OfCluster(u.cluster), Action: push.Runs, Host: u.image.Host, Repository: u.image.Repository, Tag: u.image.Tag, Digest: u.image.Digest}
	isNew, err := f.isNew(ctx, u.image, e)
	if err != nil || !isNew {
		return err
	}
	err = f.Queue.Enqueue(ctx, []push.Event{e})
	select {
	case <-ctx.Done():
	case <-f.Clock.After(pace):
	}
	return err
}

// isNew reports whether an image must be queued. It makes a job due again that was given up long
// enough ago.
func (f *Pods) isNew(ctx context.Context, image reference.Reference, e push.Event) (bool, error) {
	known, err := f.Uses.Known(ctx, image)
	if known || err != nil {
		return false, err
	}
	queued, err := f.Queue.Find(ctx, e.Source, e.Key())
	if queued == nil || err != nil {
		return err == nil, err
	}
	if queued.State == job.Dead && f.Clock.Since(queued.Due) >= Again {
		if err := f.Queue.Retry(ctx, queued.ID); err != nil {
			return false, fmt.Errorf("trying job %d again: %w", queued.ID, err)
		}
	}
	return false, nil
}
