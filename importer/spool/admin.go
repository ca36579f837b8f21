package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// maxPage bounds what List returns.
const maxPage = 500

// current runs fn with all changes that were reported to any server before the call.
func (s *Spool) current(ctx context.Context, fn func()) error {
	if err := s.db.CatchUp(ctx, 0); err != nil {
		return err
	}
	return s.known(ctx, func() error { fn(); return nil })
}

// Depth counts the jobs by Source.
func (s *Spool) Depth(ctx context.Context) (map[push.Source]push.Depth, error) {
	depths := map[push.Source]push.Depth{}
	err := s.known(ctx, func() error {
		for _, e := range s.jobs {
			d := depths[e.Source]
			switch e.State {
			case push.Waiting:
				d.Waiting++
			case push.Leased:
				d.Leased++
			case push.Dead:
				d.Dead++
			}
			if e.State != push.Dead && (d.Oldest.IsZero() || e.Enqueued.Before(d.Oldest)) {
				d.Oldest = e.Enqueued
			}
			depths[e.Source] = d
		}
		return nil
	})
	return depths, err
}

// List returns the jobs of a state, or of every state when it is empty, in the
// order of their IDs from after on: up to limit, and at most 500. The ID of the
// last is the next call's after. Their events are not read.
func (s *Spool) List(ctx context.Context, state push.State, after int64, limit int) (jobs []*push.Job, err error) {
	if limit < 1 || limit > maxPage {
		limit = maxPage
	}
	err = s.current(ctx, func() {
		for _, e := range s.jobs {
			if e.ID > after && (state == "" || e.State == state) {
				j := e.Job
				jobs = append(jobs, &j)
			}
		}
	})
	slices.SortFunc(jobs, func(a, b *push.Job) int { return cmp.Compare(a.ID, b.ID) })
	return jobs[:min(len(jobs), limit)], err
}

// Find returns the newest job of a Source for a key, nil if there is none. Its events are not
// read.
func (s *Spool) Find(ctx context.Context, source push.Source, key string) (job *push.Job, err error) {
	err = s.known(ctx, func() error { // of what this server has: many ask
		if e := s.newest(source, key, func(*entry) bool { return true }); e != nil {
			j := e.Job
			job = &j
		}
		return nil
	})
	return job, err
}

// retried makes a job due now.
func (s *Spool) retried(r *record) {
	r.State, r.Due, r.Attempts = push.Waiting, s.now(), 0
}

// Retry makes a job due now and forgets its attempts, dead or waiting. It fails
// with push.ErrNoSuchJob.
func (s *Spool) Retry(ctx context.Context, id int64) error { return s.touch(ctx, id, s.retried) }

// Drop removes a job that is dead or waits; its work is not done. It fails with
// push.ErrNoSuchJob.
func (s *Spool) Drop(ctx context.Context, id int64) error { return s.touch(ctx, id, nil) }

func (s *Spool) touch(ctx context.Context, id int64, edit func(*record)) error {
	if err := s.db.CatchUp(ctx, 0); err != nil {
		return err
	}
	return s.change(ctx, func() (*entry, error) {
		if e := s.jobs[id]; e != nil && e.State != push.Leased {
			return e, nil
		}
		return nil, fmt.Errorf("job %d: %w", id, push.ErrNoSuchJob)
	}, edit)
}

// RetryDead is Retry for every dead job; it returns how many.
func (s *Spool) RetryDead(ctx context.Context) (int64, error) { return s.eachDead(ctx, s.retried) }

// DropDead removes every dead job; it returns how many.
func (s *Spool) DropDead(ctx context.Context) (int64, error) { return s.eachDead(ctx, nil) }

// eachDead edits every dead job, or removes it.
func (s *Spool) eachDead(ctx context.Context, edit func(*record)) (n int64, err error) {
	var dead []int64
	if err := s.current(ctx, func() {
		for id, e := range s.jobs {
			if e.State == push.Dead {
				dead = append(dead, id)
			}
		}
	}); err != nil {
		return 0, err
	}
	slices.Sort(dead)
	for _, id := range dead {
		err := s.change(ctx, func() (*entry, error) {
			if e := s.jobs[id]; e != nil && e.State == push.Dead {
				return e, nil
			}
			return nil, push.ErrNoSuchJob
		}, edit)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, push.ErrNoSuchJob):
			return n, err
		}
	}
	return n, nil
}
