package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// maxPage bounds what List returns.
const maxPage = 500

// current runs fn with all changes that were reported to any server before the call.
func (s *Queue[S, E]) current(ctx context.Context, fn func()) error {
	if err := s.db.CatchUp(ctx, 0); err != nil {
		return err
	}
	return s.known(ctx, func() error { fn(); return nil })
}

// Depth counts the jobs by Source.
func (s *Queue[S, E]) Depth(ctx context.Context) (map[S]job.Depth, error) {
	depths := map[S]job.Depth{}
	err := s.known(ctx, func() error {
		for _, e := range s.jobs {
			d := depths[e.Source]
			switch e.State {
			case job.Waiting:
				d.Waiting++
			case job.Leased:
				d.Leased++
			case job.Dead:
				d.Dead++
			}
			if e.State != job.Dead && (d.Oldest.IsZero() || e.Enqueued.Before(d.Oldest)) {
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
func (s *Queue[S, E]) List(ctx context.Context, state job.State, after int64, limit int) (jobs []*job.Job[S, E], err error) {
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
	slices.SortFunc(jobs, func(a, b *job.Job[S, E]) int { return cmp.Compare(a.ID, b.ID) })
	return jobs[:min(len(jobs), limit)], err
}

// Find returns the newest job of a Source for a key, nil if there is none. Its events are not
// read.
func (s *Queue[S, E]) Find(ctx context.Context, source S, key string) (job *job.Job[S, E], err error) {
	err = s.known(ctx, func() error { // of what this server has: many ask
		if e := s.newest(source, key, func(*entry[S, E]) bool { return true }); e != nil {
			j := e.Job
			job = &j
		}
		return nil
	})
	return job, err
}

// retried makes a job due now.
func (s *Queue[S, E]) retried(r *record[S]) {
	r.State, r.Due, r.Lasts, r.Attempts = job.Waiting, s.now(), 0, 0
}

// Retry makes a job due now and forgets its attempts, dead or waiting. It fails
// with job.ErrNoSuchJob.
func (s *Queue[S, E]) Retry(ctx context.Context, id int64) error { return s.touch(ctx, id, s.retried) }

// Drop removes a job that is dead or waits; its work is not done. It fails with
// job.ErrNoSuchJob.
func (s *Queue[S, E]) Drop(ctx context.Context, id int64) error { return s.touch(ctx, id, nil) }

func (s *Queue[S, E]) touch(ctx context.Context, id int64, edit func(*record[S])) error {
	if err := s.db.CatchUp(ctx, 0); err != nil {
		return err
	}
	return s.change(ctx, func() (*entry[S, E], error) {
		if e := s.jobs[id]; e != nil && e.State != job.Leased {
			return e, nil
		}
		return nil, fmt.Errorf("job %d: %w", id, job.ErrNoSuchJob)
	}, edit)
}

// RetryDead is Retry for every dead job; it returns how many.
func (s *Queue[S, E]) RetryDead(ctx context.Context) (int64, error) {
	return s.eachDead(ctx, s.retried)
}

// DropDead removes every dead job; it returns how many.
func (s *Queue[S, E]) DropDead(ctx context.Context) (int64, error) { return s.eachDead(ctx, nil) }

// eachDead edits every dead job, or removes it.
func (s *Queue[S, E]) eachDead(ctx context.Context, edit func(*record[S])) (n int64, err error) {
	var dead []int64
	if err := s.current(ctx, func() {
		for id, e := range s.jobs {
			if e.State == job.Dead {
				dead = append(dead, id)
			}
		}
	}); err != nil {
		return 0, err
	}
	slices.Sort(dead)
	for _, id := range dead {
		err := s.change(ctx, func() (*entry[S, E], error) {
			if e := s.jobs[id]; e != nil && e.State == job.Dead {
				return e, nil
			}
			return nil, job.ErrNoSuchJob
		}, edit)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, job.ErrNoSuchJob):
			return n, err
		}
	}
	return n, nil
}
