package spool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxWrites is how many keys one call writes at a time.
const maxWrites = 16

// Claim waits until a job is due, and leases up to n jobs to the caller until lease from
// now. The caller ends each with Done, Fail or Release, or keeps it with Renew. While a
// key is leased no other job of it is due. Claim returns ctx's error when ctx ends, and
// db.ErrClosed after Close.
//
// room says how many jobs of a host the caller has room for; nil is room for any. It is
// called with a lock held. Each host has a lane for each receiver. Receivers take turns, and so do
// the lanes of a receiver: the lane whose oldest job has been due for longest goes first. So a full
// lane does not delay other lanes, and a receiver with many jobs does not delay other receivers,
// whether its jobs are about many hosts or about theirs. If a job cannot be read, because another
// release wrote it, it is dead at once.
//
// Claim leases jobs of the registries that this server owns, once no other server sends requests to
// them.
func (s *Queue[S, E]) Claim(ctx context.Context, n int, lease time.Duration, room job.Room) ([]*job.Job[S, E], error) {
	if n < 1 || lease <= 0 {
		return nil, fmt.Errorf("claim of %d jobs for %v: both must be positive", n, lease)
	}
	if room == nil {
		room = func(string) (int, time.Time) { return n, time.Time{} }
	}
	for {
		now := s.db.Now()
		due, next, err := s.findDue(ctx, now, n, room)
		if err != nil {
			return nil, err
		}
		jobs, err := s.lease(ctx, due, lease)
		if err != nil || len(jobs) > 0 {
			return jobs, err
		}
		if len(due) > 0 {
			continue // others were faster, or the jobs are dead
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			// Up to a millisecond late, as too early would spin.
			timer = s.db.After(max(next.Sub(now), 0) + time.Millisecond)
		}
		select {
		case <-s.wake:
		case <-timer:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.db.Closing():
			return nil, db.ErrClosed
		}
	}
}

// findDue is due for all registries that this server owns. A registry that it has come to own waits
// until this server knows all jobs that the former owner has leased.
func (s *Queue[S, E]) findDue(ctx context.Context, now time.Time, n int, room job.Room) (due []*entry[S, E], next time.Time, err error) {
	for {
		moves := s.moves.Load()
		var came []string
		err := s.known(ctx, func() error {
			for _, e := range s.strays {
				if s.isFree(e, now) {
					return errStrays
				}
			}
			due, came, next = s.due(now, n, room, moves)
			return nil
		})
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

// abandoned reports whether a job's worker is gone, or has not renewed its lease in time.
func (s *Queue[S, E]) abandoned(e *entry[S, E], now time.Time) bool {
	return e.State == job.Leased && (!e.Due.After(now) || e.holder != s.holder && !s.opts.Servers.Lives(e.holder))
}

// isFree reports whether no worker is at a job.
func (s *Queue[S, E]) isFree(e *entry[S, E], now time.Time) bool {
	return e.State != job.Leased || s.abandoned(e, now)
}

// busy reports whether a worker is at a job about key.
func (s *Queue[S, E]) busy(key string, now time.Time) bool {
	return slices.ContainsFunc(s.keys[key], func(e *entry[S, E]) bool { return !s.isFree(e, now) })
}

// due returns up to n jobs that can be leased, each with another key. If there is none, next is
// when the caller should look again, zero if only a change can make a job due. came are registries
// that the caller must settle first. The caller holds mu.
func (s *Queue[S, E]) due(now time.Time, n int, room job.Room, moves int64) (_ []*entry[S, E], came []string, next time.Time) {
	soon := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	rooms := map[string]int{} // for jobs of a host
	hasRoom := func(host string) bool {
		if _, asked := rooms[host]; !asked {
			rooms[host] = 0
			if s.opts.Servers.Owns(host) {
				var again time.Time
				if asOf, settled := s.settled[host]; !settled || asOf != moves {
					came = append(came, host)
				} else if rooms[host], again = room(host); rooms[host] <= 0 {
					soon(again)
				}
			}
		}
		return rooms[host] > 0
	}
	for _, e := range s.strays {
		soon(e.Due)
	}
	lanes := map[lane][]*entry[S, E]{} // the first that are due, by receiver
	for l, all := range s.leased {
		for _, e := range all {
			if !s.abandoned(e, now) {
				if soon(e.Due); l.who != s.holder {
					rooms[l.host] = 0 // another server sends requests to the registry until then
				}
				break // the others are due later
			}
			if l := (lane{l.host, e.Source.String()}); len(lanes[l]) < n && !s.busy(e.Key, now) {
				lanes[l] = append(lanes[l], e)
			}
		}
	}
	for l, all := range s.index.waiting {
		if !hasRoom(l.host) {
			continue
		}
		for end, i := len(lanes[l])+n, 0; i < len(all) && len(lanes[l]) < end; i++ {
			e := all[i]
			if s.leaving[e.ID] || s.busy(e.Key, now) {
				continue
			}
			if left := e.Due.Sub(now); left > 0 && left <= e.waits { // more is left after this clock was set back
				soon(e.Due)
				break
			}
			lanes[l] = append(lanes[l], e)
		}
	}
	ready := make([][]*entry[S, E], 0, len(lanes))
	for l, all := range lanes {
		if hasRoom(l.host) {
			slices.SortFunc(all, byDue)
			ready = append(ready, all)
		}
	}
	slices.SortFunc(ready, func(a, b []*entry[S, E]) int { return byDue(a[0], b[0]) })
	inTurns(&s.turns, ready)
	return takeTurns(ready, n, rooms), came, next
}

// lease leases jobs to this process. It leaves out jobs that another process changes meanwhile, and
// makes those dead that cannot be leased any more.
func (s *Queue[S, E]) lease(ctx context.Context, due []*entry[S, E], lease time.Duration) (leased []*job.Job[S, E], err error) {
	var jobs []*job.Job[S, E]
	var failures []job.Failure
	var writes []db.Write
	for _, e := range due {
		r, err := s.read(ctx, e)
		if errors.Is(err, errGone) {
			continue
		} else if err != nil {
			return nil, err
		}
		j := e.Job
		f := s.leaseOne(&j, &r, lease)
		w, err := s.write(e.ID, e.rev, r)
		if err != nil {
			return nil, err
		}
		jobs, failures, writes = append(jobs, &j), append(failures, f), append(writes, w)
	}
	for i, failed := range s.db.PutEach(ctx, writes) {
		switch failed := gone(failed); {
		case errors.Is(failed, errGone):
		case failed != nil:
			err = failed
		case failures[i].Error != "":
			s.reportDead(jobs[i], failures[i])
		default:
			leased = append(leased, jobs[i])
			s.turns.taken(jobs[i].Source)
		}
	}
	if len(leased) > 0 {
		err = nil // the next claim meets it again
	}
	return leased, err
}

// leaseOne makes a stored job one that this process has leased, or a dead one, and returns why.
func (s *Queue[S, E]) leaseOne(j *job.Job[S, E], r *record[S], lease time.Duration) (f job.Failure) {
	if r.State == job.Leased {
		r.Error, r.Unread = leaseEnded, false
		if int64(r.Attempts) >= s.opts.MaxAttempts {
			f.Error = leaseEnded
		}
	}
	var unreadable error
	for _, stored := range r.Events {
		event, err := s.kind.decode(stored)
		j.Events, unreadable = append(j.Events, event), errors.Join(unreadable, err)
	}
	if len(r.Events) == 0 {
		unreadable = errors.New("stored job: it has no events")
	}
	if unreadable != nil {
		f.Error = errorLine(unreadable.Error())
	}
	now := s.now()
	if f.Error != "" {
		r.State, r.Due, r.Error, r.Holder = job.Dead, now, f.Error, ""
		return f
	}
	r.State, r.Due, r.Lasts, r.Holder = job.Leased, now+lease.Milliseconds(), lease.Milliseconds(), s.holder
	r.Attempts++
	r.Leases++
	j.State, j.Due, j.Attempts, j.Lease, j.Error = job.Leased, time.UnixMilli(r.Due).UTC(), r.Attempts, r.Leases, r.Error
	return f
}

// withLease is change for a job whose lease holds. It fails with ErrLeaseLost if it does not.
func (s *Queue[S, E]) withLease(ctx context.Context, j *job.Job[S, E], edit func(*record[S])) error {
	err := s.change(ctx, func() (*entry[S, E], error) {
		e := s.jobs[j.ID]
		if e == nil || e.State != job.Leased || e.holder != s.holder || e.Lease != j.Lease {
			return nil, ErrLeaseLost
		}
		return e, nil
	}, edit)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("job %d: %w", j.ID, err)
	}
	return err
}

// Renew extends the lease until lease from now.
func (s *Queue[S, E]) Renew(ctx context.Context, j *job.Job[S, E], lease time.Duration) error {
	return s.withLease(ctx, j, func(r *record[S]) { r.Due, r.Lasts = s.now()+lease.Milliseconds(), lease.Milliseconds() })
}

// Done removes the job. If it returns ErrLeaseLost, the job is done a second time.
func (s *Queue[S, E]) Done(ctx context.Context, j *job.Job[S, E]) error {
	return s.withLease(ctx, j, nil)
}

// Fail gives the job back to be tried again after a while, or makes it dead. The
// error is kept with it as one line of at most 1 KiB.
func (s *Queue[S, E]) Fail(ctx context.Context, j *job.Job[S, E], f job.Failure) error {
	f.Error = errorLine(f.Error)
	state, wait := s.opts.after(j.Attempts, f)
	err := s.withLease(ctx, j, func(r *record[S]) {
		r.State, r.Due, r.Lasts, r.Failed, r.Error, r.Unread, r.Holder = state, s.now()+wait.Milliseconds(), wait.Milliseconds(), s.now(), f.Error, f.Unread, ""
	})
	if err == nil && state == job.Dead {
		s.reportDead(j, f)
	}
	return err
}

// Release gives the job back at once, as if it had not been claimed. It is for a worker
// that stops.
func (s *Queue[S, E]) Release(ctx context.Context, j *job.Job[S, E]) error {
	return s.withLease(ctx, j, func(r *record[S]) {
		r.State, r.Due, r.Lasts, r.Holder = job.Waiting, s.now(), 0, ""
		r.Attempts--
	})
}

// Hurry makes all jobs of a host that wait for another attempt due now.
func (s *Queue[S, E]) Hurry(ctx context.Context, host string) error {
	var late []int64
	isLate := func(e *entry[S, E]) bool {
		return e != nil && e.State == job.Waiting && e.Host() == host && e.Due.After(s.db.Now())
	}
	if err := s.known(ctx, func() error {
		for l, all := range s.index.waiting {
			for i := len(all) - 1; l.host == host && i >= 0 && isLate(all[i]); i-- {
				late = append(late, all[i].ID)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	var writing errgroup.Group
	writing.SetLimit(maxWrites)
	for _, id := range late {
		writing.Go(func() error {
			err := s.change(ctx, func() (*entry[S, E], error) {
				if e := s.jobs[id]; isLate(e) {
					return e, nil
				}
				return nil, job.ErrNoSuchJob
			}, func(r *record[S]) { r.Due, r.Lasts = s.now(), 0 })
			if errors.Is(err, job.ErrNoSuchJob) {
				return nil // another server has changed the job
			}
			return err
		})
	}
	return writing.Wait()
}

const leaseEnded = "the worker did not report before its lease ended"

// errorLine is the error that is kept with a job.
func errorLine(err string) string { return printable.Line(err, maxErrorBytes) }

// reportDead reports a job that was given up.
func (s *Queue[S, E]) reportDead(j *job.Job[S, E], f job.Failure) {
	s.dead.Warn(j.Source.String(), s.kind.words().dead, "job", j.ID, "receiver", j.Source, "about", j.Key, "attempts", j.Attempts,
		"err", f.Error, "do", "tidewaiter spool list --state dead shows it, tidewaiter spool retry tries it again")
}

// after is what becomes of a job that failed, and how long it waits.
func (o *Options) after(attempts int, f job.Failure) (job.State, time.Duration) {
	if f.Permanent || int64(attempts) >= o.MaxAttempts {
		return job.Dead, 0
	}
	return job.Waiting, max(o.delay(attempts), f.After)
}

// delay is the wait after a number of attempts: BaseDelay, doubled with each attempt
// after the first, at most MaxDelay, and shortened by up to a half.
func (o *Options) delay(attempts int) time.Duration {
	d := o.BaseDelay
	for i := 1; i < attempts && d < o.MaxDelay; i++ {
		d *= 2
	}
	d = min(d, o.MaxDelay)
	return d - rand.N(d/2+1)
}
