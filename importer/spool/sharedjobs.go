package spool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// maxWrites is how many keys one call writes at a time.
const maxWrites = 16

// group is events of one delivery that become one job.
type group struct {
	receiver, key string
	events        [][]byte
	traced        []byte // the first event with its trace, as a new job has it
	id            int64  // of a job to be made; 0 if one is there
}

// Enqueue is [Spool.Enqueue]. If it fails, and not with ErrFull, some of the events may have been
// stored.
func (s *Shared) Enqueue(ctx context.Context, events []push.Event) error {
	items, err := itemsOf(ctx, events)
	if err != nil {
		return err
	}
	var p *plan
	if err := s.known(ctx, func() (err error) { p, err = s.plan(items); return err }); err != nil {
		return err
	}
	defer s.forget(p)
	writing, wctx := errgroup.WithContext(ctx)
	writing.SetLimit(maxWrites)
	for _, g := range p.groups {
		writing.Go(func() error { return s.add(wctx, g) })
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	// A job that is remembered before it is stored would be lost if this server vanished in
	// between.
	if err := s.remember(ctx, p.ids); err != nil {
		return err
	}
	for _, e := range p.victims {
		switch err := s.remove(ctx, e); {
		case err == nil && e.State == push.Waiting:
			s.dropped.add(e.Receiver, int64(len(e.events)), s.db.Now())
		case err != nil && !errors.Is(err, errGone): // else another server was faster
			return err
		}
	}
	return nil
}

// plan is what a call of Enqueue does.
type plan struct {
	groups   []*group
	ids      []byte           // of the deliveries, 16 bytes each
	victims  []*entry         // they give way
	reserved map[string]int64 // events that are added, less those that give way, by receiver
}

// plan decides what becomes of events. mu is held. end is to be called with the plan.
func (s *Shared) plan(items []item) (*plan, error) {
	p := &plan{reserved: map[string]int64{}}
	type job struct{ receiver, key string }
	groups, taken := map[job]*group{}, map[[16]byte]bool{}
	since := s.now() - seenWindow.Milliseconds()
	for _, i := range items {
		if i.ID != "" {
			id := seenID(i.Receiver, i.ID)
			if d := s.seen[id]; taken[id] || d != nil && d.At > since {
				continue
			}
			taken[id] = true
			p.ids = append(p.ids, id[:]...)
		}
		g := groups[job{i.Receiver, i.key}]
		if g == nil {
			g = &group{receiver: i.Receiver, key: i.key, traced: i.traced}
			groups[job{i.Receiver, i.key}] = g
			p.groups = append(p.groups, g)
		}
		if !slices.ContainsFunc(g.events, func(e []byte) bool { return bytes.Equal(e, i.stored) }) {
			g.events = append(g.events, i.stored)
		}
	}
	keep := map[int64]bool{}
	for _, g := range p.groups {
		have := s.waiting(g.receiver, g.key)
		if have == nil {
			p.reserved[g.receiver] += int64(len(g.events))
			continue
		}
		keep[have.ID] = true
		for _, e := range g.events {
			if !slices.Contains(have.events, maphash.Bytes(s.seed, e)) {
				p.reserved[g.receiver]++
			}
		}
	}
	for receiver := range p.reserved {
		over := s.events[receiver] + s.reserved[receiver] + p.reserved[receiver] - s.opts.Quota
		for over > 0 && p.reserved[receiver] > 0 {
			victim := s.victim(receiver, keep)
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
		p.reserved[e.Receiver] -= int64(len(e.events))
	}
	for receiver, n := range p.reserved {
		s.reserved[receiver] += n
	}
	for _, g := range p.groups {
		if s.waiting(g.receiver, g.key) == nil {
			g.id = s.nextID()
		}
	}
	return p, nil
}

// forget undoes what plan has noted.
func (s *Shared) forget(p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for receiver, n := range p.reserved {
		if s.reserved[receiver] -= n; s.reserved[receiver] == 0 {
			delete(s.reserved, receiver)
		}
	}
	for _, e := range p.victims {
		delete(s.leaving, e.ID)
	}
}

func (s *Shared) nextID() int64 {
	s.lastID++
	return s.lastID
}

// newest returns the newest job of a receiver for a key that want holds for; nil if there is none.
func (s *Shared) newest(receiver, key string, want func(*entry) bool) (found *entry) {
	for _, e := range s.keys[key] {
		if e.Receiver == receiver && (found == nil || e.ID > found.ID) && want(e) {
			found = e
		}
	}
	return found
}

// waiting returns the newest job of a receiver that waits for the key, if it has room for more.
func (s *Shared) waiting(receiver, key string) *entry {
	e := s.newest(receiver, key, func(e *entry) bool { return e.State == push.Waiting && !s.leaving[e.ID] })
	if e == nil || len(e.events) >= maxJobEvents || e.size+maxEventBytes > maxJobBytes {
		return nil
	}
	return e
}

// victim is the job of a receiver that gives way first.
func (s *Shared) victim(receiver string, keep map[int64]bool) (first *entry) {
	for _, e := range s.jobs {
		if e.Receiver != receiver || e.State == push.Leased || keep[e.ID] || s.leaving[e.ID] {
			continue
		}
		if first == nil || cmp.Or(cmp.Compare(e.State, first.State), e.Latest.Compare(first.Latest), cmp.Compare(e.ID, first.ID)) < 0 {
			// "dead" is before "waiting"
			first = e
		}
	}
	return first
}

// add stores the events of a group.
func (s *Shared) add(ctx context.Context, g *group) error {
	for left := g.events; len(left) > 0; {
		var have *entry
		id, rev, now := g.id, int64(0), s.now()
		err := s.known(ctx, func() error {
			if have = s.waiting(g.receiver, g.key); have == nil && id == 0 {
				id = s.nextID()
			}
			return nil
		})
		if err != nil {
			return err
		}
		g.id = 0
		r := record{Key: g.key, Receiver: g.receiver, State: push.Waiting, Due: now, Enqueued: now}
		if have != nil {
			if r, err = s.read(ctx, have); err != nil && !errors.Is(err, errGone) {
				return err
			}
			id, rev = have.ID, have.rev
		}
		r.Latest = now
		n, size := 0, 0
		for _, e := range r.Events {
			size += len(e)
		}
		for ; n < len(left) && len(r.Events) < maxJobEvents && size+len(left[n]) <= maxJobBytes; n++ {
			if !slices.ContainsFunc(r.Events, func(e json.RawMessage) bool { return bytes.Equal(e, left[n]) }) {
				stored := left[n]
				if len(r.Events) == 0 && len(left) == len(g.events) {
					stored = g.traced
				}
				r.Events = append(r.Events, stored)
				size += len(stored)
			}
		}
		if err == nil {
			err = s.put(ctx, id, rev, r)
		}
		switch {
		case err == nil:
			left = left[n:]
		case !errors.Is(err, errGone) || ctx.Err() != nil:
			return err
		}
	}
	return nil
}

// remember notes the IDs of a delivery, and forgets the oldest past MaxSeen.
func (s *Shared) remember(ctx context.Context, ids []byte) error {
	if len(ids) == 0 {
		return nil
	}
	now := s.now()
	value, err := json.Marshal(delivery{At: now, IDs: ids})
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s%013d-%s", seenPrefix, now, hex.EncodeToString(ids[:16]))
	if _, err := s.db.Put(ctx, key, 0, value, db.PutOptions{TTL: seenWindow}); err != nil && !errors.Is(err, db.ErrConflict) {
		return err
	}
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

// Claim is [Spool.Claim], for the registries that this server owns, and that no other server still
// asks.
func (s *Shared) Claim(ctx context.Context, n int, lease time.Duration, room push.Room) ([]*push.Job, error) {
	return claim(ctx, s.db, s.wake, n, lease, room, func(now time.Time, room push.Room) (jobs []*push.Job, found bool, next time.Time, err error) {
		due, next, err := s.findDue(ctx, now, n, room)
		if err == nil {
			jobs, err = s.lease(ctx, due, lease)
		}
		return jobs, len(due) > 0, next, err
	})
}

// findDue is due for all registries that this server owns. Those that it has come to own are asked
// about once it has all that their former owners have leased.
func (s *Shared) findDue(ctx context.Context, now time.Time, n int, room push.Room) (due []*entry, next time.Time, err error) {
	for {
		moves := s.moves.Load()
		var came []string
		err := s.known(ctx, func() error { due, came, next = s.due(now, n, room, moves); return nil })
		if err != nil || len(came) == 0 {
			return due, next, err
		}
		if err := s.db.CatchUp(ctx, 0); err != nil {
			return nil, next, err
		}
		s.mu.Lock()
		if len(s.settled)+len(came) > maxSettled {
			clear(s.settled)
		}
		for _, lane := range came {
			s.settled[lane] = moves
		}
		s.mu.Unlock()
	}
}

// abandoned reports whether a job's worker is gone, or has said nothing in time.
func (s *Shared) abandoned(e *entry, now time.Time) bool {
	return e.State == push.Leased && (!e.Due.After(now) || e.holder != s.holder && !s.opts.Servers.Lives(e.holder))
}

// due returns up to n jobs to be leased, each of a key of its own. If there is none, next is when
// to look again, zero if only a change makes a difference. came are registries that are to be
// settled first. mu is held.
func (s *Shared) due(now time.Time, n int, room push.Room, moves int64) (_ []*entry, came []string, next time.Time) {
	soon := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	busy := map[string]bool{} // keys
	rooms := map[string]int{} // for jobs of a lane
	for _, e := range s.jobs {
		if e.State == push.Leased && !s.abandoned(e, now) {
			busy[e.Key] = true
			soon(e.Due)
			if e.holder != s.holder {
				rooms[e.lane()] = 0 // another server asks the registry until then
			}
		}
	}
	lanes := map[string][]*entry{}
	for _, e := range s.jobs {
		at := e.Due
		switch {
		case e.State == push.Dead || e.State == push.Leased && !s.abandoned(e, now) || busy[e.Key] || s.leaving[e.ID]:
			continue
		case e.State == push.Leased:
			at = now
		}
		lane := e.lane()
		if _, asked := rooms[lane]; !asked {
			rooms[lane] = 0
			if s.opts.Servers.Owns(lane) {
				var again time.Time
				if asOf, settled := s.settled[lane]; !settled || asOf != moves {
					came = append(came, lane)
				} else if rooms[lane], again = room(lane); rooms[lane] <= 0 {
					soon(again)
				}
			}
		}
		if rooms[lane] <= 0 {
			continue
		}
		if at.After(now) {
			soon(at)
			continue
		}
		lanes[lane] = append(lanes[lane], e)
	}
	byDue := func(a, b *entry) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID)) }
	turns := make([][]*entry, 0, len(lanes))
	for lane, all := range lanes {
		slices.SortFunc(all, byDue)
		keys := map[string]bool{}
		all = slices.DeleteFunc(all, func(e *entry) bool {
			again := keys[e.Key] // several of a key may be due
			keys[e.Key] = true
			return again
		})
		turns = append(turns, all[:min(len(all), rooms[lane])])
	}
	slices.SortFunc(turns, func(a, b []*entry) int { return byDue(a[0], b[0]) })
	return takeTurns(turns, n), came, next
}

// lease leases jobs to this process. Those that somebody else changes meanwhile are left out.
func (s *Shared) lease(ctx context.Context, due []*entry, lease time.Duration) ([]*push.Job, error) {
	leased := make([]*push.Job, len(due))
	var writing errgroup.Group
	writing.SetLimit(maxWrites)
	for i, e := range due {
		writing.Go(func() (err error) {
			if leased[i], err = s.leaseOne(ctx, e, lease); errors.Is(err, errGone) {
				err = nil
			}
			return err
		})
	}
	err := writing.Wait()
	leased = slices.DeleteFunc(leased, func(j *push.Job) bool { return j == nil })
	if len(leased) > 0 {
		err = nil // the next claim meets it again
	}
	return leased, err
}

// leaseOne leases a job. The job is nil if it is dead instead.
func (s *Shared) leaseOne(ctx context.Context, e *entry, lease time.Duration) (*push.Job, error) {
	r, err := s.read(ctx, e)
	if err != nil {
		return nil, err
	}
	j := e.Job
	var f push.Failure
	if e.State == push.Leased {
		r.Error = leaseEnded
		if int64(r.Attempts) >= s.opts.MaxAttempts {
			f = push.Failure{Error: leaseEnded}
		}
	}
	var unreadable error
	for _, stored := range r.Events {
		event, err := push.Decode(stored)
		j.Events, unreadable = append(j.Events, event), errors.Join(unreadable, err)
	}
	if len(r.Events) == 0 {
		unreadable = errors.New("stored job: it has no events")
	}
	if unreadable != nil {
		f = push.Failure{Error: errorLine(unreadable.Error())}
	}
	now := s.now()
	if f.Error != "" {
		r.State, r.Due, r.Error, r.Holder = push.Dead, now, f.Error, ""
		if err := s.put(ctx, e.ID, e.rev, r); err != nil {
			return nil, err
		}
		s.dead.report(&j, f)
		return nil, nil
	}
	r.State, r.Due, r.Holder = push.Leased, now+lease.Milliseconds(), s.holder
	r.Attempts++
	r.Leases++
	if err := s.put(ctx, e.ID, e.rev, r); err != nil {
		return nil, err
	}
	j.State, j.Due, j.Attempts, j.Lease, j.Error = push.Leased, time.UnixMilli(r.Due).UTC(), r.Attempts, r.Leases, r.Error
	return &j, nil
}

// withLease is change for a job whose lease holds. It fails with ErrLeaseLost if it does not.
func (s *Shared) withLease(ctx context.Context, j *push.Job, edit func(*record)) error {
	err := s.change(ctx, func() (*entry, error) {
		e := s.jobs[j.ID]
		if e == nil || e.State != push.Leased || e.holder != s.holder || e.Lease != j.Lease {
			return nil, ErrLeaseLost
		}
		return e, nil
	}, edit)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("job %d: %w", j.ID, err)
	}
	return err
}

// Renew is [Spool.Renew].
func (s *Shared) Renew(ctx context.Context, j *push.Job, lease time.Duration) error {
	return s.withLease(ctx, j, func(r *record) { r.Due = s.now() + lease.Milliseconds() })
}

// Done is [Spool.Done].
func (s *Shared) Done(ctx context.Context, j *push.Job) error { return s.withLease(ctx, j, nil) }

// Fail is [Spool.Fail].
func (s *Shared) Fail(ctx context.Context, j *push.Job, f push.Failure) error {
	f.Error = errorLine(f.Error)
	state, wait := s.opts.after(j, f)
	err := s.withLease(ctx, j, func(r *record) {
		r.State, r.Due, r.Error, r.Holder = state, s.now()+wait.Milliseconds(), f.Error, ""
	})
	if err == nil && state == push.Dead {
		s.dead.report(j, f)
	}
	return err
}

// Release is [Spool.Release].
func (s *Shared) Release(ctx context.Context, j *push.Job) error {
	return s.withLease(ctx, j, func(r *record) {
		r.State, r.Due, r.Holder = push.Waiting, s.now(), ""
		r.Attempts--
	})
}
