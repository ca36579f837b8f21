package db

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// A commit costs as much as several of the writes in it. So it waits a moment for announced writes,
// as PostgreSQL does (commit_delay, commit_siblings). If no write is announced, it does not wait.
// Without this mechanism, creations over 16 connections take 1.09 to 1.13 times as long.
const (
	// commitDelay is how long a commit waits for announced writes, at most.
	commitDelay = 2 * time.Millisecond
	// enoughWrites is how many writes a commit needs to stop waiting for more.
	enoughWrites = 8
	// announcedFor is how long commits wait for an announced write. After that, the announcement
	// delays no commit.
	announcedFor = 10 * time.Millisecond
)

// announcements holds the announcements that have not ended, newest last.
type announcements struct {
	mu      sync.Mutex
	pending list.List // of *announcement, one for each running request
}

type announcement struct {
	at time.Time
	// element is its place in pending, nil when it has ended.
	element *list.Element
}

type announcementKey struct{}

// Announce announces that a write with the returned context will probably come in a moment. Commits
// wait for it until it comes or end is called. Later calls of end do nothing. In a copy it has no
// effect, because writes go to the store.
func (d *DB) Announce(ctx context.Context) (_ context.Context, end func()) {
	if _, copies := d.authority.(*mirror); copies {
		return ctx, func() {}
	}
	all := &d.announced
	all.mu.Lock()
	defer all.mu.Unlock()
	a := &announcement{at: d.clock.Now()}
	a.element = all.pending.PushBack(a)
	return context.WithValue(ctx, announcementKey{}, a), func() { all.endOne(a) }
}

func (all *announcements) endOne(a *announcement) {
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
		d.announced.endOne(a)
	}
}

// expectsWrite reports whether a write was announced less than announcedFor ago.
func (d *DB) expectsWrite() bool {
	d.announced.mu.Lock()
	defer d.announced.mu.Unlock()
	newest := d.announced.pending.Back()
	return newest != nil && d.clock.Now().Sub(newest.Value.(*announcement).at) < announcedFor
}

// gather returns the next request, from the queue or after waiting for an announced write. It
// returns nil if the commit should not wait any more. late holds the commit's deadline between
// calls.
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
