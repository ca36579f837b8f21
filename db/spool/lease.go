package spool

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
)

// Claim waits until a job is due and leases up to n to the caller until lease
// from now: each is then to be ended with Done, Fail or Release, or kept with
// Renew. Of a key that is leased nothing more is due. It returns ctx's error when
// that ends, and db.ErrClosed after Close.
func (s *Spool) Claim(ctx context.Context, n int, lease time.Duration) ([]*Job, error) {
	if n < 1 || lease <= 0 {
		return nil, fmt.Errorf("claim of %d jobs for %v: both must be positive", n, lease)
	}
	for {
		next, err := s.nextDue(ctx)
		if err != nil {
			return nil, err
		}
		now := s.db.Now()
		if !next.IsZero() && !next.After(now) {
			jobs, err := s.claim(ctx, n, lease)
			if err != nil || len(jobs) > 0 {
				return jobs, err
			}
			// What is due waits for its key's lease: Done, Fail, Release and the
			// end of the lease will tell.
			if next, err = s.nextLeaseEnd(ctx); err != nil {
				return nil, err
			}
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			// Up to a millisecond late rather than early and in a circle.
			timer = s.db.After(next.Sub(now) + time.Millisecond)
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

// nextDue returns when the next job is due, leased ones included; zero when
// there is none.
func (s *Spool) nextDue(ctx context.Context) (time.Time, error) {
	return s.earliest(ctx, `SELECT min(due) FROM (
		SELECT min(due) AS due FROM spool_jobs WHERE state = 'waiting' UNION ALL
		SELECT min(due) AS due FROM spool_jobs WHERE state = 'leased')`)
}

func (s *Spool) nextLeaseEnd(ctx context.Context) (time.Time, error) {
	return s.earliest(ctx, "SELECT min(due) FROM spool_jobs WHERE state = 'leased'")
}

func (s *Spool) earliest(ctx context.Context, sql string) (at time.Time, err error) {
	err = s.db.Read(ctx, func(c db.Snapshot) error {
		ms, ok, err := c.First(sql)
		if ok {
			at = time.UnixMilli(ms)
		}
		return err
	})
	return at, err
}

func (s *Spool) claim(ctx context.Context, n int, lease time.Duration) (jobs []*Job, err error) {
	err = s.db.Transact(ctx, func(t db.Transaction) error {
		jobs = jobs[:0]
		if err := endLeases(t, s.opts.MaxAttempts); err != nil {
			return err
		}
		keys := map[string]bool{}
		err := t.Each(func(row []driver.Value) error {
			if j := scanJob(row); !keys[j.Key] { // several of a key may be due
				keys[j.Key] = true
				jobs = append(jobs, j)
			}
			return nil
		}, `SELECT `+jobColumns+` FROM spool_jobs j WHERE state = 'waiting' AND due <= ?
			AND NOT EXISTS (SELECT 1 FROM spool_jobs o WHERE o.key = j.key AND o.state = 'leased')
			ORDER BY due, id LIMIT ?`, t.Now(), int64(n))
		if err != nil {
			return err
		}
		until := t.Now() + lease.Milliseconds()
		for _, j := range jobs {
			if _, err := t.Exec(`UPDATE spool_jobs SET state = 'leased', due = ?, attempts = attempts + 1, leases = leases + 1
				WHERE id = ?`, until, j.ID); err != nil {
				return err
			}
			j.State, j.Due, j.Attempts, j.lease = Leased, time.UnixMilli(until).UTC(), j.Attempts+1, j.lease+1
		}
		return loadPayloads(t.Snapshot, jobs)
	})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

// endLeases takes back the jobs of workers that said nothing in time. A job that
// ends its workers each time is dead at last.
func endLeases(t db.Transaction, maxAttempts int64) error {
	_, err := t.Exec(`UPDATE spool_jobs SET state = iif(attempts < ?1, 'waiting', 'dead'), due = ?2,
		error = 'the worker was not heard of until its lease ended' WHERE state = 'leased' AND due <= ?2`, maxAttempts, t.Now())
	return err
}

// held runs an update that touches the job only while j's lease holds, and says
// ErrLeaseLost when it touched nothing.
func (s *Spool) held(ctx context.Context, j *Job, fn func(db.Transaction) (int64, error)) error {
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
func (s *Spool) Renew(ctx context.Context, j *Job, lease time.Duration) error {
	return s.held(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET due = ? WHERE id = ? AND leases = ? AND state = 'leased'", t.Now()+lease.Milliseconds(), j.ID, j.lease)
	})
}

// Done removes the job. When it returns ErrLeaseLost the job will be, or was,
// done again.
func (s *Spool) Done(ctx context.Context, j *Job) error {
	return s.held(ctx, j, func(t db.Transaction) (int64, error) {
		return remove(t, "id = ? AND leases = ? AND state = 'leased'", j.ID, j.lease)
	})
}

// Failure says why an attempt failed and what is to come of the job.
type Failure struct {
	// Error is kept with the job, up to 1 KiB of it.
	Error string
	// Permanent makes the job dead at once: trying again cannot help.
	Permanent bool
	// After is the least time to wait, when that is known.
	After time.Duration
}

// Fail gives the job back to be tried again after a while, or makes it dead.
func (s *Spool) Fail(ctx context.Context, j *Job, f Failure) error {
	if len(f.Error) > maxErrorBytes {
		f.Error = strings.ToValidUTF8(f.Error[:maxErrorBytes], "") + "…"
	}
	state, wait := Waiting, max(s.delay(j.Attempts), f.After)
	if f.Permanent || int64(j.Attempts) >= s.opts.MaxAttempts {
		state, wait = Dead, 0
	}
	return s.held(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = ?, due = ?, error = ? WHERE id = ? AND leases = ? AND state = 'leased'",
			string(state), t.Now()+wait.Milliseconds(), f.Error, j.ID, j.lease)
	})
}

// delay is the wait after so many attempts: BaseDelay doubled with each but the
// first, at most MaxDelay, less up to a half of it.
func (s *Spool) delay(attempts int) time.Duration {
	d := s.opts.BaseDelay
	for i := 1; i < attempts && d < s.opts.MaxDelay; i++ {
		d *= 2
	}
	d = min(d, s.opts.MaxDelay)
	return d - rand.N(d/2+1)
}

// Release gives the job back at once and as if it had not been claimed, for a
// worker that stops.
func (s *Spool) Release(ctx context.Context, j *Job) error {
	return s.held(ctx, j, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = 'waiting', due = ?, attempts = attempts - 1 WHERE id = ? AND leases = ? AND state = 'leased'",
			t.Now(), j.ID, j.lease)
	})
}
