package server

import (
	"context"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// administered is a queue as administrators see it, with the pauses of its hosts.
type administered[S job.Source, E any] struct {
	*spool.Queue[S, E]
	runs *atomic.Pointer[runner.Runner[S, E]]
}

// List lists jobs, each waiting job with the time of its next try.
func (q administered[S, E]) List(ctx context.Context, state job.State, after int64, limit int) (all []*job.Shown, err error) {
	jobs, err := q.Queue.List(ctx, state, after, limit)
	r := q.runs.Load()
	for _, j := range jobs {
		if j.State == job.Waiting {
			next := j.Due
			if r != nil {
				if until := r.PausedUntil(j.Host()); until.After(next) {
					next = until
				}
			}
			j.NextTry = &next
		}
		all = append(all, j.Shown())
	}
	return all, err
}

// Retry has the job's host asked at once, too.
func (q administered[S, E]) Retry(ctx context.Context, id int64) error {
	if jobs, err := q.Queue.List(ctx, "", id-1, 1); err == nil && len(jobs) == 1 && jobs[0].ID == id {
		q.endPauses(jobs[0].Host())
	}
	return q.Queue.Retry(ctx, id)
}

// RetryDead has all hosts asked at once, too.
func (q administered[S, E]) RetryDead(ctx context.Context) (int64, error) {
	q.endPauses("")
	return q.Queue.RetryDead(ctx)
}

func (q administered[S, E]) endPauses(host string) {
	if r := q.runs.Load(); r != nil {
		r.EndPauses(host)
	}
}

// administeredQueues are the queues of pushes and of notifications as administrators see them: as
// one, since no two jobs have the same ID.
type administeredQueues struct{ pushes, notifications admin.SpoolStore }

func (p *pushes) administered() administeredQueues {
	return administeredQueues{pushes: administered[push.Source, push.Event]{p.spool.Queue, &p.runs}, notifications: administered[notify.To, notify.Notification]{p.spool.Outbox, &p.sends}}
}

// of returns the queue that a job is in.
func (q administeredQueues) of(id int64) admin.SpoolStore {
	if id >= job.FirstNotification {
		return q.notifications
	}
	return q.pushes
}

// List is part of [admin.SpoolStore].
func (q administeredQueues) List(ctx context.Context, state job.State, after int64, limit int) (all []*job.Shown, err error) {
	if after < job.FirstNotification {
		if all, err = q.pushes.List(ctx, state, after, limit); err != nil || len(all) == limit {
			return all, err
		}
	}
	notifications, err := q.notifications.List(ctx, state, after, limit-len(all))
	return append(all, notifications...), err
}

// Retry is part of [admin.SpoolStore].
func (q administeredQueues) Retry(ctx context.Context, id int64) error {
	return q.of(id).Retry(ctx, id)
}

// Drop is part of [admin.SpoolStore].
func (q administeredQueues) Drop(ctx context.Context, id int64) error { return q.of(id).Drop(ctx, id) }

// RetryDead is part of [admin.SpoolStore].
func (q administeredQueues) RetryDead(ctx context.Context) (n int64, err error) {
	if n, err = q.pushes.RetryDead(ctx); err != nil {
		return n, err
	}
	more, err := q.notifications.RetryDead(ctx)
	return n + more, err
}

// DropDead is part of [admin.SpoolStore].
func (q administeredQueues) DropDead(ctx context.Context) (n int64, err error) {
	if n, err = q.pushes.DropDead(ctx); err != nil {
		return n, err
	}
	more, err := q.notifications.DropDead(ctx)
	return n + more, err
}

// sweeps are the sweeper, and what its sweeps do not reach.
type sweeps struct {
	*reverify.Sweeper
	server *Server
}

// Progress is how far a sweep has come, and how many images run that no sweep can judge.
func (v sweeps) Progress() reverify.Progress {
	p := v.Sweeper.Progress()
	p.Unimported = int64(v.server.answerer.Use.Unimported())
	return p
}
