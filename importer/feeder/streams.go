package feeder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

const firstRest, maxRest = time.Second, time.Minute // after a failure

// Followed are the image streams, each with the references that it still has to be imported.
type Followed interface {
	// Each calls use with the references of each stream, and returns the version at which all were
	// read.
	Each(ctx context.Context, use func([]reference.Reference) error) (version string, err error)
	// Watch calls use with the references of each stream that is written after a version, until ctx
	// is done or sooner. It returns the version to go on from.
	Watch(ctx context.Context, version string, use func([]reference.Reference) error) (string, error)
}

// Streams puts the references that tags of streams follow into a queue.
type Streams struct {
	Followed Followed
	Queue    Queue
	Logger   *slog.Logger // told what fails; nil is slog.Default()
}

// Run feeds the queue until ctx is done. It ends with no error.
func (f *Streams) Run(ctx context.Context) error {
	logger := cmp.Or(f.Logger, slog.Default())
	for wait := firstRest; ctx.Err() == nil; {
		err := f.round(ctx, func() { wait = firstRest })
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			logger.Warn("Importing what tags of image streams follow failed, will retry", "err", err)
		}
		sleep(ctx, wait)
		wait = min(2*wait, maxRest)
	}
	return nil
}

// round reads all streams, and follows them until the hour is over. It calls well once they could
// be read.
func (f *Streams) round(ctx context.Context, well func()) error {
	ctx, cancel := context.WithTimeout(ctx, Again)
	defer cancel()
	version, err := f.Followed.Each(ctx, func(refs []reference.Reference) error { return f.queueReferences(ctx, refs) })
	for err == nil && ctx.Err() == nil {
		well()
		version, err = f.Followed.Watch(ctx, version, func(refs []reference.Reference) error { return f.queueReferences(ctx, refs) })
		if err == nil { // a server ends a watch now and then
			sleep(ctx, firstRest)
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
		e := push.Event{Receiver: push.OfStreams, Action: push.Follows, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest}
		job, err := f.Queue.Find(ctx, e.Receiver, e.Key())
		if err != nil {
			return fmt.Errorf("looking for a job about %s: %w", ref, err)
		}
		switch {
		case job == nil || job.State == push.Leased:
			// a leased one may have asked the registry before the tag was written
			err = add(e)
		case job.State == push.Dead || job.Attempts > 0:
			// it failed before; now it is asked for again
			if err = f.Queue.Retry(ctx, job.ID); errors.Is(err, push.ErrNoSuchJob) {
				err = add(e) // it is being imported, or is done
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
