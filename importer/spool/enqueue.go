package spool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/job"
)

// group is events of one delivery that are about one key.
type group[S job.Source, E any] struct {
	source S
	key    string
	events [][]byte
	traced []byte       // the first event with its trace, as a new job has it
	joins  *entry[S, E] // the job that they join; nil if they make one
}

// Enqueue makes the events durable. An event whose (Source, ID) was taken in the last 24 hours is
// acknowledged and left out. An event that waits for its key already is not added again. Enqueue
// fails with ErrFull, *datafile.UnavailableError or another error of DB; a database of its own then
// has none of the events, a copy of a store may have some. Jobs that give way to a receiver's quota
// are dropped without an error.
func (s *Queue[S, E]) Enqueue(ctx context.Context, events []E) error {
	items, err := s.itemsOf(ctx, events)
	if err != nil {
		return err
	}
	for {
		var p *plan[S, E]
		if err := s.known(ctx, func() (err error) { p, err = s.plan(items); return err }); err != nil {
			return err
		}
		if err := s.carryOut(ctx, p); !errors.Is(err, errGone) || ctx.Err() != nil {
			return err
		}
	}
}

// carryOut does what plan has decided. It fails with errGone if a job has changed since.
func (s *Queue[S, E]) carryOut(ctx context.Context, p *plan[S, E]) error {
	defer s.forget(p)
	writes, err := s.writes(ctx, p)
	if err != nil {
		return err
	}
	if err := gone(s.db.PutAll(ctx, writes)); err != nil {
		return err
	}
	if err := s.forgetOldest(ctx); err != nil {
		return err
	}
	for _, e := range p.victims {
		switch err := s.remove(ctx, e); {
		case err == nil && e.State == job.Waiting:
			s.dropped.add(e.Source, int64(len(e.events)), s.db.Now())
		case err != nil && !errors.Is(err, errGone): // else another server was faster
			return err
		}
	}
	return nil
}

// plan is what a call of Enqueue does.
type plan[S job.Source, E any] struct {
	groups   []*group[S, E]
	ids      []byte         // of the deliveries, 16 bytes each
	victims  []*entry[S, E] // they give way
	reserved map[S]int64    // events that are added, less those that give way
}

// plan decides what becomes of events. The caller holds mu and must call forget with the plan.
func (s *Queue[S, E]) plan(items []item[S]) (*plan[S, E], error) {
	p := &plan[S, E]{reserved: map[S]int64{}}
	type about struct {
		source S
		key    string
	}
	groups, taken := map[about]*group[S, E]{}, map[[16]byte]bool{}
	since := s.now() - seenWindow.Milliseconds()
	for _, i := range items {
		if i.id != "" {
			id := seenID(i.source, i.id)
			if d := s.seen[id]; taken[id] || d != nil && d.At > since {
				continue
			}
			taken[id] = true
			p.ids = append(p.ids, id[:]...)
		}
		g := groups[about{i.source, i.key}]
		if g == nil {
			g = &group[S, E]{source: i.source, key: i.key, traced: i.traced}
			groups[about{i.source, i.key}] = g
			p.groups = append(p.groups, g)
		}
		if !slices.ContainsFunc(g.events, func(e []byte) bool { return bytes.Equal(e, i.stored) }) {
			g.events = append(g.events, i.stored)
		}
	}
	keep := map[int64]bool{}
	for _, g := range p.groups {
		have := s.waiting(g.source, g.key)
		if g.joins = have; have == nil {
			p.reserved[g.source] += int64(len(g.events))
			continue
		}
		keep[have.ID] = true
		for _, e := range g.events {
			if !slices.Contains(have.events, maphash.Bytes(s.seed, e)) {
				p.reserved[g.source]++
			}
		}
	}
	for source := range p.reserved {
		over := s.events[source] + s.reserved[source] + p.reserved[source] - s.opts.Quota
		for over > 0 && p.reserved[source] > 0 {
			victim := s.victim(source, keep)
			if victim == nil {
				return nil, ErrFull
			}
			keep[victim.ID] = true
			p.victims = append(p.victims, victim)
			over -= int64(len(victim.events))
		}
	}
	for _, e := range p.victims {
		s.leaving[e.ID] = true
		p.reserved[e.Source] -= int64(len(e.events))
	}
	for source, n := range p.reserved {
		s.reserved[source] += n
	}
	return p, nil
}

// forget undoes what plan has noted.
func (s *Queue[S, E]) forget(p *plan[S, E]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source, n := range p.reserved {
		if s.reserved[source] -= n; s.reserved[source] == 0 {
			delete(s.reserved, source)
		}
	}
	for _, e := range p.victims {
		delete(s.leaving, e.ID)
	}
}

// nextID returns an ID that no job has had.
func (s *Queue[S, E]) nextID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	return s.lastID
}

// newest returns the newest job of a receiver for a key that want holds for; nil if there is none.
func (s *Queue[S, E]) newest(source S, key string, want func(*entry[S, E]) bool) (found *entry[S, E]) {
	for _, e := range s.keys[key] {
		if e.Source == source && (found == nil || e.ID > found.ID) && want(e) {
			found = e
		}
	}
	return found
}

// waiting returns the newest job of a receiver that waits for the key, if it has room for more.
func (s *Queue[S, E]) waiting(source S, key string) *entry[S, E] {
	e := s.newest(source, key, func(e *entry[S, E]) bool { return e.State == job.Waiting && !s.leaving[e.ID] })
	if e == nil || len(e.events) >= maxJobEvents || e.size+maxEventBytes > maxJobBytes {
		return nil
	}
	return e
}

// victim is the job of a receiver that gives way first.
func (s *Queue[S, E]) victim(source S, keep map[int64]bool) *entry[S, E] {
	for _, e := range s.idle[source] {
		if !keep[e.ID] && !s.leaving[e.ID] {
			return e
		}
	}
	return nil
}

// writes returns the jobs of a plan, and after them the IDs of the delivery: one that was
// remembered before its jobs are stored would be lost if this server vanished in between.
func (s *Queue[S, E]) writes(ctx context.Context, p *plan[S, E]) (all []db.Write, err error) {
	now := s.now()
	for _, g := range p.groups {
		var r record[S]
		var id, rev int64
		if g.joins != nil {
			if r, err = s.read(ctx, g.joins); err != nil {
				return nil, err
			}
			id, rev = g.joins.ID, g.joins.rev
		} else {
			g.events[0] = g.traced
		}
		for left := g.events; len(left) > 0; id, rev = 0, 0 {
			if id == 0 {
				id = s.nextID()
				r = record[S]{Key: g.key, Source: g.source, State: job.Waiting, Due: now, Enqueued: now}
			}
			r.Latest = now
			left = r.add(left)
			w, err := s.write(id, rev, r)
			if err != nil {
				return nil, err
			}
			all = append(all, w)
		}
	}
	if len(p.ids) > 0 {
		value, err := json.Marshal(delivery{At: now, IDs: p.ids})
		if err != nil {
			return nil, err
		}
		all = append(all, db.Write{Key: s.stored.delivery(now, p.ids), Value: value, TTL: seenWindow})
	}
	return all, nil
}

// add adds the events that are not there yet, as far as there is room, and returns the others.
func (r *record[S]) add(events [][]byte) (left [][]byte) {
	size := 0
	for _, e := range r.Events {
		size += len(e)
	}
	for ; len(events) > 0 && len(r.Events) < maxJobEvents && size+len(events[0]) <= maxJobBytes; events = events[1:] {
		if !slices.ContainsFunc(r.Events, func(e json.RawMessage) bool { return bytes.Equal(e, events[0]) }) {
			r.Events = append(r.Events, events[0])
			size += len(events[0])
		}
	}
	return events
}

// forgetOldest forgets the oldest IDs past MaxSeen.
func (s *Queue[S, E]) forgetOldest(ctx context.Context) error {
	for {
		var oldest *delivery
		err := s.known(ctx, func() error {
			if int64(len(s.seen)) > s.opts.MaxSeen && len(s.order) > 0 {
				oldest = s.order[0]
			}
			return nil
		})
		if err != nil || oldest == nil {
			return err
		}
		if _, err := s.db.Delete(ctx, oldest.key, oldest.rev); err != nil && !errors.Is(err, db.ErrConflict) {
			return err
		}
	}
}

// item is an event as it is written.
type item[S job.Source] struct {
	source  S
	id, key string
	stored  []byte
	traced  []byte // with the trace, for the first event of a job
}

// itemsOf checks the size of events. They belong to the trace of ctx, unless they have one already.
func (s *Queue[S, E]) itemsOf(ctx context.Context, events []E) ([]item[S], error) {
	trace := propagation.MapCarrier{}
	if oteltrace.SpanContextFromContext(ctx).IsSampled() {
		propagation.TraceContext{}.Inject(ctx, trace)
	}
	items := make([]item[S], len(events))
	for i, e := range events {
		items[i] = s.kind.item(e, trace.Get("traceparent"))
		if n := len(items[i].key); n > maxKeyBytes {
			return nil, fmt.Errorf("spool key of %d bytes: a key has at most %d", n, maxKeyBytes)
		}
		if n := len(items[i].traced); n > maxEventBytes {
			return nil, fmt.Errorf("event of %d bytes: an event has at most %d", n, maxEventBytes)
		}
	}
	return items, nil
}

// seenID is the stored form of a delivery's ID.
func seenID(source fmt.Stringer, eventID string) (id [16]byte) {
	sum := sha256.Sum256([]byte(source.String() + "\x00" + eventID))
	copy(id[:], sum[:])
	return id
}
