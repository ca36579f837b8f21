package db

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// A commit costs as much as several writes in it. So it waits a moment for those that
// are known to be on their way, as PostgreSQL's does (commit_delay, commit_siblings),
// and for nobody when none are.
const (
	// commitDelay is how long a commit waits for announced writes, at most.
	commitDelay = 2 * time.Millisecond
	// enoughWrites do not wait for more.
	enoughWrites = 8
	// announcedFor is how long an announced write is waited for. Where a write takes
	// longer to come, others do not pay for it.
	announcedFor = 10 * time.Millisecond
)

// announcements are those that have not ended, the newest last.
type announcements struct {
	mu      sync.Mutex
	pending list.List // of *announcement, as many as there are requests under way
}

type announcement struct {
	at time.Time
	// element is its place among those that are pending, nil when it has ended.
	element *list.Element
}

type announcementKey struct{}

// Announce has commits wait for a write that will probably come in a moment, with the
// context that is returned, until it does or end is called. Calls of end after the
// first do nothing.
func (d *DB) Announce(ctx context.Context) (_ context.Context, end func()) {
	all := &d.announced
	all.mu.Lock()
	defer all.mu.Unlock()
	a := &announcement{at: d.clock.Now()}
	a.element = all.pending.PushBack(a)
	return context.WithValue(ctx, announcementKey{}, a), func() { all.end(a) }
}

func (all *announcements) end(a *announcement) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if a.element != nil {
		all.pending.Remove(a.element)
		a.element = nil
	}
}

// arrived ends the announcement of the write whose context is ctx, if it has one.
func (d *DB) arrived(ctx context.Context) {
	if a, ok := ctx.Value(announcementKey{}).(*announcement); ok {
		d.announced.end(a)
	}
}

// expectsWrite tells whether a write is on its way that is worth waiting for.
func (d *DB) expectsWrite() bool {
	d.announced.mu.Lock()
	defer d.announced.mu.Unlock()
	newest := d.announced.pending.Back()
	return newest != nil && d.clock.Now().Sub(newest.Value.(*announcement).at) < announcedFor
}

// gather returns a request that has come, or comes while it is waited for; nil when
// the commit need not wait for more. late is where a commit keeps when that is.
func (d *DB) gather(have int, late *<-chan time.Time) *request {
	select {
	case r := <-d.queue:
		return r
	default:
	}
	if have >= enoughWrites || !d.expectsWrite() {
		return nil
	}
	if *late == nil {
		*late = d.clock.After(commitDelay)
	}
	select {
	case r := <-d.queue:
		return r
	case <-*late:
		return nil
	}
}
