package feeder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Followed reads image streams, each with the references that are still to be imported.
type Followed interface {
	// Each calls use with the references of each stream, and returns the resourceVersion of the list.
	Each(ctx context.Context, use func([]reference.Reference) error) (version string, err error)
	// Watch calls use with the references of each stream that is written after a version, until ctx is
	// done or the watch ends. It returns the version from which to continue.
	Watch(ctx context.Context, version string, use func([]reference.Reference) error) (string, error)
}

// Streams puts the references that tags of streams follow into a queue.
type Streams struct {
	Followed Followed
	Queue    Queue
}

// Run feeds the queue until ctx is done. It ends with no error.
func (f *Streams) Run(ctx context.Context) error {
	reconcile.Keep(ctx, "importing what tags of image streams follow", nil, f.round)
	return nil
}

// round reads all streams, and follows them until the hour is over.
func (f *Streams) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Again)
	defer cancel()
	version, err := f.Followed.Each(ctx, func(refs []reference.Reference) error { return f.queueReferences(ctx, refs) })
	for err == nil && ctx.Err() == nil {
		version, err = f.Followed.Watch(ctx, version, func(refs []reference.Reference) error { return f.queueReferences(ctx, refs) })
		if err == nil { // a server ends a watch now and then
			sleep(ctx, pause)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// queueReferences queues references to import.
func (f *Streams) queueReferences(ctx context.Context, refs []reference.Reference) error {
	var events []push.Event
	flush := func() error {
		if len(events) == 0 {
			return nil
		}
		err := f.Queue.Enqueue(ctx, events)
		if len(events) == batch {
			sleep(ctx, pause)
		}
		events = events[:0]
		return err
	}
	add := func(e push.Event) error {
		if events = append(events, e); len(events) == batch {
			return flush()
		}
		return nil
	}
	for _, ref := range refs {
		e := push.Event{Source: push.OfStreams, Action: push.Follows, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest}
		queued, err := f.Queue.Find(ctx, e.Source, e.Key())
		if err != nil {
			return fmt.Errorf("looking for a job about %s: %w", ref, err)
		}
		switch {
		case queued == nil || queued.State == job.Leased:
			// a running job may have asked the registry before the tag was written
			err = add(e)
		case queued.State == job.Dead || queued.Attempts > 0:
			// the job failed before, and is now requested again
			if err = f.Queue.Retry(ctx, queued.ID); errors.Is(err, job.ErrNoSuchJob) {
				err = add(e) // the job is running, or done
			}
		}
		if err != nil {
			return fmt.Errorf("queueing %s: %w", ref, err)
		}
	}
	return flush()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
