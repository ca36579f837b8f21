package spool

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// maxPage bounds what List returns.
const maxPage = 500

// List returns the jobs of a state, or of every state when it is empty, in the
// order of their IDs from after on: up to limit, and at most 500. The ID of the
// last is the next call's after. Their events are not read.
func (s *Spool) List(ctx context.Context, state push.State, after int64, limit int) (jobs []*push.Job, err error) {
	if limit < 1 || limit > maxPage {
		limit = maxPage
	}
	err = s.db.Read(ctx, func(c db.Snapshot) error {
		return c.Each(func(row []driver.Value) error {
			jobs = append(jobs, scanJob(row))
			return nil
		}, "SELECT "+jobColumns+" FROM spool_jobs WHERE id > ?1 AND (?2 = '' OR state = ?2) ORDER BY id LIMIT ?3", after, string(state), int64(limit))
	})
	return jobs, err
}

// Find returns the newest job of a receiver for a key, nil if there is none. Its events are not
// read.
func (s *Spool) Find(ctx context.Context, receiver, key string) (job *push.Job, err error) {
	err = s.db.Read(ctx, func(c db.Snapshot) error {
		return c.Each(func(row []driver.Value) error {
			job = scanJob(row)
			return nil
		}, "SELECT "+jobColumns+" FROM spool_jobs WHERE key = ? AND source = ? ORDER BY id DESC LIMIT 1", key, receiver)
	})
	return job, err
}

// Retry makes a job due now and forgets its attempts, dead or waiting. It fails
// with push.ErrNoSuchJob.
func (s *Spool) Retry(ctx context.Context, id int64) error {
	return s.touch(ctx, id, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = 'waiting', due = ?, attempts = 0 WHERE id = ? AND state <> 'leased'", t.Now(), id)
	})
}

// RetryDead is Retry for every dead job; it returns how many.
func (s *Spool) RetryDead(ctx context.Context) (int64, error) {
	return s.eachDead(ctx, func(t db.Transaction) (int64, error) {
		return t.Exec("UPDATE spool_jobs SET state = 'waiting', due = ?, attempts = 0 WHERE id IN ("+someDead+")", t.Now())
	})
}

// Drop removes a job that is dead or waits; its work is not done. It fails with
// push.ErrNoSuchJob.
func (s *Spool) Drop(ctx context.Context, id int64) error {
	return s.touch(ctx, id, func(t db.Transaction) (int64, error) {
		return remove(t, "id = ? AND state <> 'leased'", id)
	})
}

// DropDead removes every dead job; it returns how many.
func (s *Spool) DropDead(ctx context.Context) (int64, error) {
	return s.eachDead(ctx, func(t db.Transaction) (int64, error) {
		return remove(t, "id IN ("+someDead+")")
	})
}

// someDead selects as many dead jobs as one transaction takes.
const someDead = "SELECT id FROM spool_jobs WHERE state = 'dead' ORDER BY due, id LIMIT 500"

// eachDead runs fn until no job is dead. Each run of fn removes or revives someDead.
func (s *Spool) eachDead(ctx context.Context, fn func(db.Transaction) (int64, error)) (total int64, err error) {
	for {
		n := int64(0)
		err := s.db.Transact(ctx, func(t db.Transaction) error {
			var err error
			n, err = fn(t)
			t.After(s.signal)
			return err
		})
		if err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}

func (s *Spool) touch(ctx context.Context, id int64, fn func(db.Transaction) (int64, error)) error {
	return s.db.Transact(ctx, func(t db.Transaction) error {
		n, err := fn(t)
		if err == nil && n == 0 {
			err = fmt.Errorf("job %d: %w", id, push.ErrNoSuchJob)
		}
		t.After(s.signal)
		return err
	})
}
