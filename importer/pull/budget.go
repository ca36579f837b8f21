package pull

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// jobBudget bounds the requests and bytes of one job at all registries together. A job is one call
// of Import or Find, or everything that is done with the context of [Client.Job].
type jobBudget struct {
	limits                     Limits
	Began                      time.Time
	manifests, requests, bytes atomic.Int64
	Layers                     *Unpacked
}

type jobKey struct{}

// Job gives a job its budget: see Limits.JobManifests and the fields after it. The
// context ends with an *[Error] as its cause when the time is up. Call done when the job
// is done.
func (c *Client) Job(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, jobKey{}, &jobBudget{limits: c.Limits, Began: c.Clock.Now(), Layers: NewUnpacked(c.Limits.JobContent)}))
	limit := c.Limits.JobTime
	timer := c.Clock.AfterFunc(limit, func() {
		cancel(&Error{Reason: Timeout, Message: fmt.Sprintf("the job took more than its budget of %s", limit)})
	})
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// InJob is Job, unless ctx is part of a job already.
func (c *Client) InJob(ctx context.Context) (_ context.Context, done func()) {
	if JobOf(ctx) != nil {
		return ctx, func() {}
	}
	return c.Job(ctx)
}

// JobOf returns the budget of ctx's job, nil if ctx is not part of a job, as for a list of tags.
func JobOf(ctx context.Context) *jobBudget {
	job, _ := ctx.Value(jobKey{}).(*jobBudget)
	return job
}

// These methods count what a job uses. A nil *jobBudget has no bounds.

func (b *jobBudget) Manifest() error {
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

// Overdue returns the cause of the context's end if the job's time is up, otherwise err.
func Overdue(ctx context.Context, err error) error {
	var cause *Error
	if err != nil && errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}

// maxPacking is how many times larger than a layer its content may be, on average over a job and
// beyond Limits.JobContent. Programs shrink to a third and text to a tenth; at most, gzip reaches
// 1,000 and zstd 30,000.
const maxPacking = 50

// Unpacked counts the unpacked bytes of the layers of one job.
type Unpacked struct {
	free            int64 // Limits.JobContent
	packed, content atomic.Int64
}

// NewUnpacked returns a counter that allows maxPacking times the bytes read, and free bytes more.
func NewUnpacked(free int64) *Unpacked { return &Unpacked{free: free} }

// Read counts packed bytes that were read from a layer.
func (u *Unpacked) Read(n int) { u.packed.Add(int64(n)) }

// Add counts unpacked bytes, and fails when there are more than allowed.
func (u *Unpacked) Add(content int64) error {
	if u.content.Add(content) <= u.free+maxPacking*u.packed.Load() {
		return nil
	}
	return &Error{Reason: OverBudget, Message: fmt.Sprintf(
		"the layers unpack to more than the job's budget, %d bytes and %d times what was read of them", u.free, maxPacking)}
}
