package spool

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// Claim waits until a job is due, and leases up to n jobs to the caller until lease from
// now. The caller ends each with Done, Fail or Release, or keeps it with Renew. While a
// key is leased no other job of it is due. Claim returns ctx's error when ctx ends, and
// db.ErrClosed after Close.
//
// room says how many jobs of a host the caller has room for; nil is room for any. It is
// called within a transaction. Each host has a lane. Lanes take turns: the lane whose
// oldest job has been due for longest goes first, so a lane full of jobs costs the others
// nothing. A job that cannot be read, because another release wrote it, is dead at once.
func (s *Spool) Claim(ctx context.Context, n int, lease time.Duration, room push.Room) ([]*push.Job, error) {
	return claim(ctx, s.db, s.wake, n, lease, room, func(now time.Time, room push.Room) (jobs []*push.Job, due bool, next time.Time, err error) {
		if due, next, err = s.nextDue(ctx, now, room); due {
			// none if a lease had ended, and its job is dead or in a lane without room
			jobs, err = s.claim(ctx, n, lease, room)
		}
		return jobs, due, next, err
	})
}

// claim calls try until it returns jobs or an error. When no job is due it waits for wake, or until
// next if that is not zero.
func claim(ctx context.Context, d *db.DB, wake <-chan struct{}, n int, lease time.Duration, room push.Room, try func(now time.Time, room push.Room) (jobs []*push.Job, due bool, next time.Time, err error)) ([]*push.Job, error) {
	if n < 1 || lease <= 0 {
		return nil, fmt.Errorf("claim of %d jobs for %v: both must be positive", n, lease)
	}
	if room == nil {
		room = func(string) (int, time.Time) { return n, time.Time{} }
	}
	for {
		now := d.Now()
		jobs, due, next, err := try(now, room)
		if err != nil || len(jobs) > 0 {
			return jobs, err
		}
		if due {
			continue
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			// Up to a millisecond late, as too early would spin.
			timer = d.After(max(next.Sub(now), 0) + time.Millisecond)
		}
		select {
		case <-wake:
		case <-timer:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-d.Closing():
			return nil, db.ErrClosed
		}
	}
}

// takeTurns takes up to n jobs from lanes, whose jobs are in order: the first of each lane, then
// the second of each.
func takeTurns[J any](lanes [][]J, n int) (jobs []J) {
	for round := 0; ; round++ {
		took := false
		for _, lane := range lanes {
			if round < len(lane) && len(jobs) < n {
				jobs, took = append(jobs, lane[round]), true
			}
		}
		if !took {
			return jobs
		}
	}
}

// nextDue reports whether a job is due for which there is room, or a lease has ended. If
// not, next is when to look again; it is zero when only a signal can change anything.
func (s *Spool) nextDue(ctx context.Context, now time.Time, room push.Room) (due bool, next time.Time, err error) {
	err = s.db.Read(ctx, func(c db.Snapshot) error {
		end, leased, err := c.First("SELECT min(due) FROM spool_jobs WHERE state = 'leased'")
		if err != nil {
			return err
		}
		lanes, again, err := waitingLanes(c, room)
		next = again
		if leased {
			lanes = append(lanes, lane{due: end})
		}
		for _, l := range lanes {
			at := time.UnixMilli(l.due)
			due = due || !at.After(now)
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
		return err
	})
	return due, next, err
}

// lane is a lane that has jobs waiting and room for them.
type lane struct {
	name string
	due  int64 // of its first job, in milliseconds
	room int
}

// waitingLanes returns the lanes with jobs that can be claimed now or later. It reads a
// few rows of an index for each lane, however many jobs the lane has. again is when
// another lane may have room.
func waitingLanes(c db.Snapshot, room push.Room) (lanes []lane, again time.Time, err error) {
	name, after := "", ">="
	for ; ; after = ">" {
		found := false
		err := c.Each(func(row []driver.Value) error {
			name, found = row[0].(string), true
			return nil
		}, "SELECT lane FROM spool_jobs WHERE state = 'waiting' AND lane "+after+" ? ORDER BY lane LIMIT 1", name)
		if err != nil || !found {
			return lanes, again, err
		}
		n, at := room(name)
		if n <= 0 {
			if !at.IsZero() && (again.IsZero() || at.Before(again)) {
				again = at
			}
			continue
		}
		due, ok, err := c.First(`SELECT due FROM spool_jobs j WHERE state = 'waiting' AND lane = ?
			AND `+keyIsFree+` ORDER BY due, id LIMIT 1`, name)
		if err != nil {
			return nil, again, err
		}
		if ok {
			lanes = append(lanes, lane{name, due, n})
		}
	}
}

// keyIsFree holds for a job j whose key is not leased.
const keyIsFree = "NOT EXISTS (SELECT 1 FROM spool_jobs o WHERE o.key = j.key AND o.state = 'leased')"

func (s *Spool) claim(ctx context.Context, n int, lease time.Duration, room push.Room) (jobs []*push.Job, err error) {
	err = s.db.Transact(ctx, func(t db.Transaction) error {
		jobs = jobs[:0]
		if err := s.endLeases(t); err != nil {
			return err
		}
		lanes, _, err := waitingLanes(t.Snapshot, room)
		if err != nil {
			return err
		}
		slices.SortStableFunc(lanes, func(a, b lane) int { return cmp.Compare(a.due, b.due) })
		due := make([][]*push.Job, len(lanes))
		for i, l := range lanes {
			if due[i], err = dueJobs(t, l.name, min(l.room, n)); err != nil {
				return err
			}
		}
		until := t.Now() + lease.Milliseconds()
		for _, j := range takeTurns(due, n) {
			unreadable, err := loadEvents(t.Snapshot, j)
			if err != nil {
				return err
			}
			if unreadable != nil {
				f := push.Failure{Error: errorLine(unreadable.Error())}
				if _, err := t.Exec("UPDATE spool_jobs SET state = 'dead', due = ?, error = ? WHERE id = ?", t.Now(), f.Error, j.ID); err != nil {
					return err
				}
				t.After(func() { s.dead.report(j, f) })
				continue
			}
			if _, err := t.Exec(`UPDATE spool_jobs SET state = 'leased', due = ?, attempts = attempts + 1, leases = leases + 1
				WHERE id = ?`, until, j.ID); err != nil {
				return err
			}
			j.State, j.Due, j.Attempts, j.Lease = push.Leased, time.UnixMilli(until).UTC(), j.Attempts+1, j.Lease+1
			jobs = append(jobs, j)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

// dueJobs returns up to n jobs of a lane, each of a key of its own.
func dueJobs(t db.Transaction, lane string, n int) (jobs []*push.Job, err error) {
	keys := map[string]bool{}
	err = t.Each(func(row []driver.Value) error {
		if j := scanJob(row); !keys[j.Key] { // several of a key may be due
			keys[j.Key] = true
			jobs = append(jobs, j)
		}
		return nil
	}, `SELECT `+jobColumns+` FROM spool_jobs j WHERE state = 'waiting' AND lane = ? AND due <= ?
		AND `+keyIsFree+` ORDER BY due, id LIMIT ?`, lane, t.Now(), int64(n))
	return jobs, err
}

const leaseEnded = "the worker did not report before its lease ended"

// endLeases takes back the jobs of workers that said nothing in time. A job that ends its
// worker each time is dead at last.
func (s *Spool) endLeases(t db.Transaction) error {
	var dead []*push.Job
	err := t.Each(func(row []driver.Value) error {
		dead = append(dead, scanJob(row))
		return nil
	}, `SELECT `+jobColumns+` FROM spool_jobs WHERE state = 'leased' AND due <= ? AND attempts >= ? LIMIT ?`, t.Now(), s.opts.MaxAttempts, int64(warn.MaxKeys))
	if err != nil {
		return err
	}
	n, err := t.Exec(`UPDATE spool_jobs SET state = iif(attempts < ?1, 'waiting', 'dead'), due = ?2, error = ?3
		WHERE state = 'leased' AND due <= ?2`, s.opts.MaxAttempts, t.Now(), leaseEnded)
	if err == nil && n > 0 {
		t.After(func() {
			for _, j := range dead {
				s.dead.report(j, push.Failure{Error: leaseEnded})
			}
		})
	}
	return err
}

// withLease runs an update that touches the job only while j's lease holds. It returns
// ErrLeaseLost if the update touched nothing.
func (s *Spool) withLease(ctx context.Context, j *push.Job, fn func(db.Transaction) (int64, error)) error {
	err := s.db.Transact(ctx, func(t db.Transaction) error {
		n, err := fn(t)
		if err == nil && n == 0 {
			err = ErrLeaseLost
		}
		t.After(s.signal)
		return err
	})
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("job %d: %w", j.ID, err)
	}
	return err
}

// Renew extends the lease until lease from now.
func (s *Spool) Renew(ctx context.Context, j *push.Job, lease time.Duration) error {
	return s.withLease(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET due = ? WHERE id = ? AND leases = ? AND state = 'leased'", t.Now()+lease.Milliseconds(), j.ID, j.Lease)
	})
}

// Done removes the job. If it returns ErrLeaseLost, the job is done a second time.
func (s *Spool) Done(ctx context.Context, j *push.Job) error {
	return s.withLease(ctx, j, func(t db.Transaction) (int64, error) {
		return remove(t, "id = ? AND leases = ? AND state = 'leased'", j.ID, j.Lease)
	})
}

// Fail gives the job back to be tried again after a while, or makes it dead. The
// error is kept with it as one line of at most 1 KiB.
func (s *Spool) Fail(ctx context.Context, j *push.Job, f push.Failure) error {
	f.Error = errorLine(f.Error)
	state, wait := s.opts.after(j, f)
	err := s.withLease(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = ?, due = ?, error = ? WHERE id = ? AND leases = ? AND state = 'leased'",
			string(state), t.Now()+wait.Milliseconds(), f.Error, j.ID, j.Lease)
	})
	if err == nil && state == push.Dead {
		s.dead.report(j, f)
	}
	return err
}

// errorLine is the error that is kept with a job.
func errorLine(err string) string { return printable.Line(err, maxErrorBytes) }

// deadJobs reports jobs that were given up.
type deadJobs struct{ warn.Limiter }

func (d *deadJobs) report(j *push.Job, f push.Failure) {
	message := "a push was given up: its job is dead"
	if _, ok := push.Notified(j.Receiver); ok {
		message = "a notification was given up: its job is dead"
	}
	d.Warn(j.Receiver, message, "job", j.ID, "receiver", j.Receiver, "about", j.Key, "attempts", j.Attempts,
		"err", f.Error, "do", "tidewaiter spool list --state dead shows it, tidewaiter spool retry tries it again")
}

// after is what becomes of a job that failed, and how long it waits.
func (o *Options) after(j *push.Job, f push.Failure) (push.State, time.Duration) {
	if f.Permanent || int64(j.Attempts) >= o.MaxAttempts {
		return push.Dead, 0
	}
	return push.Waiting, max(o.delay(j.Attempts), f.After)
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

// Release gives the job back at once, as if it had not been claimed. It is for a worker
// that stops.
func (s *Spool) Release(ctx context.Context, j *push.Job) error {
	return s.withLease(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = 'waiting', due = ?, attempts = attempts - 1 WHERE id = ? AND leases = ? AND state = 'leased'",
			t.Now(), j.ID, j.Lease)
	})
}
