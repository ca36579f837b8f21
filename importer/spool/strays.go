package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/notification"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// Earlier releases kept notifications among the pushes. They are moved to the outbox whenever the
// queue meets them: while servers are replaced one by one, an old one may still store some.

// errStrays ends a Claim that has found jobs of another kind which no worker is at.
var errStrays = errors.New("the queue has jobs of another kind")

// Claim is [Queue.Claim]. It moves notifications that an earlier release has stored to the Outbox.
func (p *Pushes) Claim(ctx context.Context, n int, lease time.Duration, room job.Room) ([]*push.Job, error) {
	for {
		jobs, err := p.Queue.Claim(ctx, n, lease, room)
		if !errors.Is(err, errStrays) {
			return jobs, err
		}
		if err := p.moveStrays(ctx); err != nil {
			return nil, err
		}
	}
}

// moveStrays moves the notifications that no worker is at, the oldest first.
func (p *Pushes) moveStrays(ctx context.Context) error {
	var found []*entry[push.Source, push.Event]
	if err := p.known(ctx, func() error {
		for _, e := range p.strays {
			if p.isFree(e, p.db.Now()) {
				found = append(found, e)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b *entry[push.Source, push.Event]) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range found {
		r, err := p.read(ctx, e)
		if err == nil {
			err = takeOver(ctx, p.Outbox, r)
		}
		if err == nil {
			err = p.remove(ctx, e)
		}
		if err != nil && !errors.Is(err, errGone) { // else another server was faster
			return err
		}
	}
	return nil
}

// takeOver stores the record of a job that was among the pushes, unless an interrupted call has
// stored it before.
func takeOver(ctx context.Context, o *Outbox, r record[push.Source]) error {
	moved := record[notification.To]{
		State: r.State, Due: r.Due, Lasts: r.Lasts, Enqueued: r.Enqueued, Latest: r.Latest, Attempts: r.Attempts, Leases: r.Leases, Error: r.Error, Unread: r.Unread, Failed: r.Failed,
	}
	if err := moved.Source.UnmarshalText([]byte(r.Source.Name)); err != nil {
		return err
	}
	if r.State == job.Leased { // its worker is gone
		moved.State, moved.Due, moved.Lasts = job.Waiting, o.now(), 0
	}
	var ids []byte
	for _, event := range r.Events {
		n, err := notification.DecodeFormer(event)
		if err != nil { // it cannot be read: the job will be dead, for users to look at
			moved.Key, moved.Events = r.Key, append(moved.Events, event)
			continue
		}
		n.To = moved.Source
		id := seenID(n.To, n.ID)
		moved.Key, ids, moved.Events = n.Key(), append(ids, id[:]...), append(moved.Events, n.Encode())
	}
	for {
		known := false
		if err := o.known(ctx, func() error {
			known = o.newest(moved.Source, moved.Key, func(*entry[notification.To, notification.Notification]) bool { return true }) != nil || len(ids) > 0 && o.seen[[16]byte(ids)] != nil
			return nil
		}); err != nil || known {
			return err
		}
		w, err := o.write(o.nextID(), 0, moved)
		if err != nil {
			return err
		}
		writes := []db.Write{w}
		if len(ids) > 0 {
			value, err := json.Marshal(delivery{At: o.now(), IDs: ids})
			if err != nil {
				return err
			}
			writes = append(writes, db.Write{Key: o.stored.delivery(o.now(), ids), Value: value, TTL: seenWindow})
		}
		if err := gone(o.db.PutAll(ctx, writes)); !errors.Is(err, errGone) {
			return err
		}
	}
}
