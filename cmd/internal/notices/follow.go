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

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// Options are all required, but RegisterMetrics.
type Options struct {
	DB *db.DB
	// Feed has the changes of images and imagetags after a revision.
	Feed func(rev int64) (*kubestore.Feed, error)
	// Jobs returns what is to be put into the queue for those who want to know of an event, and
	// Receivers who that may be.
	Jobs      func(notify.Event) []push.Event
	Receivers func() []string
	// Enqueue makes them durable. It leaves out those whose ID it knows.
	Enqueue func(context.Context, []push.Event) error
	Runs    Runs
	// Synced reports whether all stored pods are known.
	Synced          func() bool
	Clock           clock.Clock
	RegisterMetrics func(...metrics.Registerable)
}

// Follower makes events of changes for receivers. Of all servers with the same objects one runs it
// at a time.
type Follower struct {
	Options
	maker   maker
	wake    chan struct{}          // holds a token when the receivers may have changed
	drifted chan *imagev1.ImageTag // of which pods were found to differ
	running atomic.Bool
	failing warn.Trouble
	missed  *metrics.Counter
}

const (
	batch     = 100         // jobs that are enqueued at once
	saveEvery = time.Minute // the greatest age of the stored position while there are no events
	pause     = time.Second // before what failed is tried again
	maxDrifts = 1000        // tags that wait
)

// New returns a Follower that does nothing until it is run.
func New(o Options) *Follower {
	f := &Follower{
		Options: o, maker: maker{o.Runs, o.Clock.Now}, wake: make(chan struct{}, 1), drifted: make(chan *imagev1.ImageTag, maxDrifts),
		missed: metrics.NewCounter(&metrics.CounterOpts{
			Namespace: "tidewaiter", Subsystem: "notifications", Name: "missed_total", StabilityLevel: metrics.ALPHA,
			Help: "Changes, or stretches of changes, of which receivers of notifications could not be told.",
		}),
	}
	if o.RegisterMetrics != nil {
		o.RegisterMetrics(f.missed)
	}
	return f
}

// Wake has the Follower look at the receivers.
func (f *Follower) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Drifted says that pods were found to differ from where a tag leads. It does not wait, and does
// nothing while another server runs.
func (f *Follower) Drifted(tag *imagev1.ImageTag) {
	if !f.running.Load() || len(f.Receivers()) == 0 {
		return
	}
	select {
	case f.drifted <- tag:
	default:
		f.missed.Inc()
	}
}

// Run has receivers told until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	f.running.Store(true)
	defer f.running.Store(false)
	for ctx.Err() == nil {
		var err error
		switch {
		case len(f.Receivers()) == 0:
			if err = f.forget(ctx); err == nil {
				select {
				case <-f.wake:
				case <-ctx.Done():
				}
				continue
			}
		case f.Synced():
			err = f.follow(ctx)
		}
		if err != nil && ctx.Err() == nil {
			f.failing.Begin("", "Notifications wait: they cannot be put into the queue", "err", err)
		}
		select {
		case <-f.Clock.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// follow has receivers told until there are none, something fails or ctx is done.
func (f *Follower) follow(ctx context.Context) error {
	if err := f.DB.CatchUp(ctx, 0); err != nil {
		return err
	}
	at, known, err := f.position(ctx)
	if err == nil && !known { // nobody was told before
		at = f.DB.Revision()
		err = f.save(ctx, at)
	}
	if err != nil {
		return err
	}
	feed, err := f.Feed(at)
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
		// The position is a change itself, of which nobody need know.
		if told || rev > saved+1 && f.Clock.Since(last) >= saveEvery {
			if err := f.save(ctx, rev); err != nil {
				return err
			}
			feed.Hold(rev)
			saved, last = rev, f.Clock.Now()
		}
		f.failing.End("", "Notifications are put into the queue again")
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
		case <-f.wake:
			if len(f.Receivers()) == 0 {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// notify enqueues what changes mean, and reports whether that is anything.
func (f *Follower) notify(ctx context.Context, changes []kubestore.Change) (told bool, err error) {
	var jobs []push.Event
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
			jobs = append(jobs, f.Jobs(e)...)
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
func (f *Follower) enqueue(ctx context.Context, jobs []push.Event) error {
	for len(jobs) > 0 {
		n := min(len(jobs), batch)
		if err := f.Enqueue(ctx, jobs[:n]); err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return nil
}

// enqueueDrift enqueues that pods differ from where a tag leads, if they still do.
func (f *Follower) enqueueDrift(ctx context.Context, tag *imagev1.ImageTag) error {
	ref, ok := tags.Reference(tag)
	if !ok {
		return nil
	}
	message, image, pods, err := f.Runs.Drift(ctx, ref)
	if now, _ := tags.Now(tag); err != nil || pods == 0 || now != image {
		return err
	}
	return f.enqueue(ctx, f.Jobs(f.maker.drift(tag, ref, message, pods)))
}

// passOver continues at the present if the history since a revision is gone, and reports the gap.
func (f *Follower) passOver(ctx context.Context, from int64) error {
	to := f.DB.Revision()
	slog.Warn("Some changes are no longer in the history, so receivers of notifications only learn that they missed changes", "from", from, "to", to)
	f.missed.Inc()
	if err := f.enqueue(ctx, f.Jobs(f.missedEvent(from, to))); err != nil {
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
