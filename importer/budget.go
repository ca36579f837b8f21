package importer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// jobBudget bounds what one job asks of registries, wherever they lead it. A job is one
// call of Import or Find, or everything that is done with the context of [Importer.Job].
type jobBudget struct {
	limits                     Limits
	began                      time.Time
	manifests, requests, bytes atomic.Int64
	layers                     unpacked
}

type jobKey struct{}

// Job gives a job its budget: see Limits.JobManifests and the fields after it. The
// context ends with an *[Error] as its cause when the time is up. Call done when the job
// is done.
func (im *Importer) Job(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, jobKey{}, &jobBudget{limits: im.limits, began: im.clock.Now(), layers: unpacked{free: im.limits.JobContent}}))
	limit := im.limits.JobTime
	timer := im.clock.AfterFunc(limit, func() {
		cancel(&Error{Reason: Timeout, Message: fmt.Sprintf("the job took more than its budget of %s", limit)})
	})
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// job is Job for a call that may be part of a job.
func (im *Importer) job(ctx context.Context) (_ context.Context, done func()) {
	if jobOf(ctx) != nil {
		return ctx, func() {}
	}
	return im.Job(ctx)
}

// jobOf returns nil for a call that is not part of a job, such as a list of tags.
func jobOf(ctx context.Context) *jobBudget {
	job, _ := ctx.Value(jobKey{}).(*jobBudget)
	return job
}

// What a job spends. A nil *jobBudget has no bounds.

func (b *jobBudget) manifest() error {
	if b == nil {
		return nil
	}
	return spend(&b.manifests, 1, b.limits.JobManifests, "manifests")
}

func (b *jobBudget) request() error {
	if b == nil {
		return nil
	}
	return spend(&b.requests, 1, b.limits.JobRequests, "requests")
}

func (b *jobBudget) read(n int) error {
	if b == nil {
		return nil
	}
	return spend(&b.bytes, int64(n), b.limits.JobBytes, "bytes")
}

func spend(spent *atomic.Int64, n, limit int64, what string) error {
	if spent.Add(n) <= limit {
		return nil
	}
	return &Error{Reason: OverBudget, Message: fmt.Sprintf("the job needs more than its budget of %d %s", limit, what)}
}

// overdue returns why a job's context ended, if that is its budget of time; else err.
func overdue(ctx context.Context, err error) error {
	var cause *Error
	if err != nil && errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}
