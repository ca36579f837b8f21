package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Options are required, except Registerer.
type Options struct {
	DB *db.DB
	// Changes has the changes of images and imagetags: a kubestore.Getter.
	Changes Changes
	// Notifier has the receivers of notifications: a notify.Notifier.
	Notifier   Notifier
	Queue      Queue
	Runs       Runs
	Clock      clock.WithTicker
	Registerer meter.Registerer
}

// Changes are the changes of stored objects.
type Changes interface {
	// Feed returns the changes of some resources after a revision.
	Feed(rev int64, group string, resources ...string) (*kubestore.Feed, error)
}

// Notifier has the receivers of notifications.
type Notifier interface {
	// Jobs returns a job for each receiver that subscribes to an event.
	Jobs(e notify.Event) []notify.Notification
	// Receivers returns the receivers.
	Receivers() []notify.To
}

// Queue stores notifications until they are delivered.
type Queue interface {
	// Enqueue leaves out notifications whose ID it knows.
	Enqueue(ctx context.Context, all []notify.Notification) error
}

// Follower queues notifications about changes. Of all servers with the same objects, one runs it at
// a time.
type Follower struct {
	Options
	maker   maker
	wake    chan struct{}          // holds a token when the receivers may have changed
	drifted chan *imagev1.ImageTag // tags whose pods were found to differ
	turned  chan turned            // verdicts that turned although no image changed
	running atomic.Bool
	missed  *metrics.Counter
}

// turned are verdicts on an image that turned at a time.
type turned struct {
	image   *imagev1.Image
	changes []signatures.Change
	at      time.Time
}

const (
	batch     = 100         // jobs that are enqueued at once
	saveEvery = time.Minute // the greatest age of the stored position while there are no events
	maxDrifts = 1000        // tags that wait
	maxTurned = 1000        // images that wait
)

// New returns a Follower. It does nothing until Run.
func New(o Options) *Follower {
	f := &Follower{
		Options: o, maker: maker{o.Runs, o.Clock.Now}, wake: make(chan struct{}, 1), drifted: make(chan *imagev1.ImageTag, maxDrifts), turned: make(chan turned, maxTurned),
		missed: meter.Counter("notifications", "missed_total", "Changes, or stretches of changes, about which no notification could be sent."),
	}
	meter.Register(o.Registerer, f.missed)
	return f
}

// Wake makes the Follower read the receivers again.
func (f *Follower) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Drifted reports that pods were found to differ from their tag. It does not wait, and does nothing
// while another server runs the Follower.
func (f *Follower) Drifted(tag *imagev1.ImageTag) {
	if !f.running.Load() || len(f.Notifier.Receivers()) == 0 {
		return
	}
	select {
	case f.drifted <- tag:
	default:
		f.missed.Inc()
	}
}

// Turned reports verdicts on an image that turned although the image did not change, by the age or
// a move of a tag. Like Drifted it does not wait.
func (f *Follower) Turned(image *imagev1.Image, changes []signatures.Change) {
	if !f.running.Load() || len(f.Notifier.Receivers()) == 0 {
		return
	}
	select {
	case f.turned <- turned{image, changes, f.Clock.Now()}:
	default:
		f.missed.Inc()
	}
}

// Run queues notifications until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	f.running.Store(true)
	defer f.running.Store(false)
	reconcile.Keep(ctx, "putting notifications into the queue", f.Clock, func(ctx context.Context) error {
		for len(f.Notifier.Receivers()) == 0 {
			if err := f.forget(ctx); err != nil {
				return err
			}
			select {
			case <-f.wake:
			case <-ctx.Done():
				return nil
			}
		}
		if !f.Runs.Synced() {
			return nil
		}
		return f.follow(ctx)
	})
	return nil
}

// follow queues notifications until there are no receivers, something fails or ctx is done.
func (f *Follower) follow(ctx context.Context) error {
	if err := f.DB.CatchUp(ctx, 0); err != nil {
		return err
	}
	at, known, err := f.position(ctx)
	if err == nil && !known { // there were no receivers before
		at = f.DB.Revision()
		err = f.save(ctx, at)
	}
	if err != nil {
		return err
	}
	feed, err := f.Changes.Feed(at, imagev1.GroupName, "images", "imagetags")
	if errors.Is(err, db.ErrCompacted) {
		return f.passOver(ctx, at)
	}
	if err != nil {
		return err
	}
	defer feed.Close()
	saved, last := at, f.Clock.Now()
	for {
		changes, rev, err := feed.Next(ctx)
		if errors.Is(err, db.ErrCompacted) {
			return f.passOver(ctx, saved)
		}
		if err != nil {
			return err
		}
		told, err := f.notify(ctx, changes)
		if err != nil {
			return err
		}
		// Storing the position is a change, too, which needs no notification.
		if told || rev > saved+1 && f.Clock.Since(last) >= saveEvery {
			if err := f.save(ctx, rev); err != nil {
				return err
			}
			feed.Hold(rev)
			saved, last = rev, f.Clock.Now()
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-feed.Ready():
		case <-f.Clock.After(saveEvery):
		case tag := <-f.drifted:
			if err := f.enqueueDrift(ctx, tag); err != nil {
				return err
			}
		case t := <-f.turned:
			if err := f.enqueueTurned(ctx, t); err != nil {
				return err
			}
		case <-f.wake:
			if len(f.Notifier.Receivers()) == 0 {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// notify enqueues the notifications about changes, and reports whether there are any.
func (f *Follower) notify(ctx context.Context, changes []kubestore.Change) (told bool, err error) {
	var jobs []notify.Notification
	for _, c := range changes {
		events, err := f.maker.events(ctx, c)
		if c.Err != nil {
			slog.Error("A change cannot be read, so no notification is sent about it", "resource", c.Resource, "revision", c.Rev, "err", c.Err)
			f.missed.Inc()
			events, err = []notify.Event{f.missedEvent(c.Rev-1, c.Rev)}, nil
		}
		if err != nil {
			return false, err
		}
		for _, e := range events {
			jobs = append(jobs, f.Notifier.Jobs(e)...)
		}
		if len(jobs) >= batch {
			if err := f.enqueue(ctx, jobs); err != nil {
				return false, err
			}
			jobs, told = nil, true
		}
	}
	return told || len(jobs) > 0, f.enqueue(ctx, jobs)
}

// enqueue enqueues jobs, batch at a time.
func (f *Follower) enqueue(ctx context.Context, jobs []notify.Notification) error {
	for len(jobs) > 0 {
		n := min(len(jobs), batch)
		if err := f.Queue.Enqueue(ctx, jobs[:n]); err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return nil
}

// enqueueDrift enqueues the notification that pods differ from their tag, if they still do.
func (f *Follower) enqueueDrift(ctx context.Context, tag *imagev1.ImageTag) error {
	ref, ok := tags.Reference(tag)
	if !ok {
		return nil
	}
	message, image, pods, err := f.Runs.Drift(ctx, ref)
	if now, _ := tags.Now(tag); err != nil || pods == 0 || now != image {
		return err
	}
	return f.enqueue(ctx, f.Notifier.Jobs(f.maker.drift(tag, ref, message, pods)))
}

// enqueueTurned enqueues the notifications about verdicts that turned.
func (f *Follower) enqueueTurned(ctx context.Context, t turned) error {
	events, err := f.maker.turned(ctx, t.image, t.changes, causes{by: imageruns.ByTag}, t.at.Format(time.RFC3339Nano))
	var jobs []notify.Notification
	for _, e := range events {
		jobs = append(jobs, f.Notifier.Jobs(e)...)
	}
	return errors.Join(err, f.enqueue(ctx, jobs))
}

// passOver skips to the present if the history since a revision is gone, and notifies receivers of
// the gap.
func (f *Follower) passOver(ctx context.Context, from int64) error {
	to := f.DB.Revision()
	slog.Warn("Some changes are no longer in the history, so receivers of notifications only learn that they missed changes", "from", from, "to", to)
	f.missed.Inc()
	if err := f.enqueue(ctx, f.Notifier.Jobs(f.missedEvent(from, to))); err != nil {
		return err
	}
	return f.save(ctx, to)
}

func (f *Follower) missedEvent(from, to int64) notify.Event {
	return notify.Event{Kind: notify.Missed, ID: id(notify.Missed, "", strconv.FormatInt(from, 10), strconv.FormatInt(to, 10)), Time: f.Clock.Now(), Sequence: to, Subject: "changes", Data: notify.Data{
		Message: fmt.Sprintf("What changed between the revisions %d and %d is not known: compare what you have with lists", from, to), From: from, To: to,
	}}
}

// positionKey holds the revision up to which changes have become events.
const positionKey = "/tidewaiter.dev/notifications/position"

// stored is the value of positionKey.
type stored struct {
	Revision int64 `json:"revision"`
}

func (f *Follower) position(ctx context.Context) (rev int64, known bool, err error) {
	kv, ok, _, err := f.DB.Get(ctx, positionKey)
	if err == nil && ok {
		err = kv.Err
	}
	if err != nil || !ok {
		return 0, false, err
	}
	var s stored
	if err := json.Unmarshal(kv.Value, &s); err != nil {
		return 0, false, fmt.Errorf("%s: %w", positionKey, err)
	}
	return s.Revision, true, nil
}

func (f *Follower) save(ctx context.Context, rev int64) error {
	kv, _, _, err := f.DB.Get(ctx, positionKey)
	if err != nil {
		return err
	}
	value, _ := json.Marshal(stored{rev}) // a number
	_, err = f.DB.Put(ctx, positionKey, kv.Rev, value, db.PutOptions{})
	return err
}

// forget deletes the position: receivers that are added later get the events from then on.
func (f *Follower) forget(ctx context.Context) error {
	kv, ok, _, err := f.DB.Get(ctx, positionKey)
	if err == nil && ok {
		_, err = f.DB.Delete(ctx, positionKey, kv.Rev)
	}
	return err
}
