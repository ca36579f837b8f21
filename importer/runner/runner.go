// Package runner does the jobs of a queue: a Runner claims them, renews their leases while its Work
// does them, and reports the result. It leaves hosts alone that do not answer (package hostlimit),
// and has their jobs tried as soon as they are back. Pushes and notifications each have a Runner.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// Intervals of Run.
const (
	depthInterval = 5 * time.Second // between two looks at the queue's depth
	claimPause    = time.Second     // after a claim that failed
)

// maxBack bounds the hosts in Worker.back. If it is full, the jobs of further hosts are tried when
// their own delay ends.
const maxBack = 128

// Run does jobs until ctx is done. Then running jobs get Grace to end, and it gives those that
// have not ended back to the queue. It returns nil after a stop, and leaves no goroutine behind.
func (r *Runner[S, E]) Run(ctx context.Context) error {
	// Jobs outlive ctx by Grace.
	jobs, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case host := <-r.back:
				r.hurry(ctx, host)
			case <-ctx.Done():
				return
			}
		}
	})

	slotFree := make(chan struct{}, 1)
	for ctx.Err() == nil {
		n := r.limiter.Free()
		if n == 0 {
			select {
			case <-slotFree:
			case <-ctx.Done():
			}
			continue
		}
		claimed, err := r.o.Queue.Claim(ctx, n, r.o.Lease, r.available)
		if err != nil && ctx.Err() == nil {
			r.o.Logger.Error("Claiming from the queue", "err", err)
			select {
			case <-r.o.Clock.After(claimPause):
			case <-ctx.Done():
			}
		}
		for _, j := range claimed {
			r.limiter.Start(j.Host())
			began := r.o.Clock.Now()
			running.Go(func() {
				r.runJob(jobs, j, began)
				select {
				case slotFree <- struct{}{}:
				default:
				}
			})
		}
	}

	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-r.o.Clock.After(r.o.Grace):
		cancel()
		<-ended
	}
	return nil
}

// lookAgain is how often the Runner checks whether a failed registry has answered other requests.
const lookAgain = time.Second

// available is [hostlimit.Limiter.Available]. A registry that has answered a request of others ends
// its back-off: an import that a stream asks for, say, or a sweep.
func (r *Runner[S, E]) available(host string) (n int, again time.Time) {
	if n, again = r.limiter.Available(host); n > 0 || !r.limiter.Fails(host) {
		return n, again
	}
	at := r.o.Work.Answered(host)
	if at.IsZero() {
		return n, again
	}
	r.sign(host, at)
	n, again = r.limiter.Available(host)
	if soon := r.o.Clock.Now().Add(lookAgain); n == 0 && (again.IsZero() || again.After(soon)) {
		again = soon
	}
	return n, again
}

// Sign records that a registry has just shown that it is up, for example by a notification. If the
// registry had failed, the next job probes it. Call Sign before the job is queued.
func (r *Runner[S, E]) Sign(host string) { r.sign(host, r.o.Clock.Now()) }

func (r *Runner[S, E]) sign(host string, at time.Time) {
	if r.limiter.Sign(host, at) {
		select {
		case r.back <- host:
		default:
		}
	}
}

// hurry makes all waiting jobs of a host that is back due now.
func (r *Runner[S, E]) hurry(ctx context.Context, host string) {
	if err := r.o.Queue.Hurry(ctx, host); err != nil && ctx.Err() == nil {
		r.o.Logger.Error("Making the jobs of a host that is back due failed; they wait for their own time", "host", host, "err", err)
	}
}

// EndPauses has a registry, or all if it is "", asked at once, whatever it has asked for.
func (r *Runner[S, E]) EndPauses(host string) {
	hosts := []string{host}
	if host == "" {
		hosts = r.limiter.BackingOff()
	}
	for _, host := range hosts {
		r.limiter.End(host)
		r.o.Work.EndPause(host)
	}
}

// PausedUntil returns until when a registry is left alone; zero if it is not.
func (r *Runner[S, E]) PausedUntil(host string) time.Time { return r.limiter.Until(host) }

// runJob does a job, renews its lease meanwhile, and reports the outcome to the queue.
func (r *Runner[S, E]) runJob(ctx context.Context, j *job.Job[S, E], began time.Time) {
	logger := r.o.Logger.With("job", j.ID, "receiver", j.Source, "reference", j.Key, "attempt", j.Attempts)
	work, lost := context.WithCancel(ctx)
	defer lost()
	traced, span := r.span(work, j)
	var renewing sync.WaitGroup
	renewing.Go(func() { r.renew(work, logger, j, lost) })
	err := Guard(logger, func() error { return r.o.Work.Do(traced, j) })
	gone := errors.Is(err, ErrGone)
	if gone {
		err = nil
	}
	if span != nil {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
	words := r.o.Work.Words()
	// Before the end of the job is written, which may start the next claim.
	ended := r.limiter.DoneSince(j.Host(), began, err)
	if until := ended.PausedUntil; !until.IsZero() {
		r.away.Begin(j.Host(), words.Away, words.Host, j.Host(), "receiver", j.Source, "reference", j.Key, "err", err)
		logger.Info("Pausing requests to a host", "host", j.Host(), "until", until, "err", err)
	} else {
		r.away.End(j.Host(), words.Back, words.Host, j.Host())
	}
	leaseHeld := work.Err() == nil
	lost()
	renewing.Wait()

	// The end of a job is written even while the server stops.
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer done()
	result := "done"
	switch {
	case gone:
		result, err = "gone", r.o.Queue.Done(ending, j)
	case err == nil:
		logger.Info(words.Done)
		err = r.o.Queue.Done(ending, j)
		r.o.Work.Done(j)
	case ctx.Err() != nil || ended.HungBefore && leaseHeld:
		result, err = "released", r.o.Queue.Release(ending, j)
	case !leaseHeld:
		result = "lost"
	default:
		f := failure(err, j.Attempts)
		result = "failed"
		if f.Permanent {
			result = "dead"
		}
		logger.Info(words.Failed, "err", f.Error, "permanent", f.Permanent)
		r.o.Work.Failed(ctx, j, f)
		err = r.o.Queue.Fail(ending, j, f)
	}
	r.o.Metrics.jobs.WithLabelValues(j.Source.String(), result).Inc()
	if ended.IsBack {
		r.hurry(ending, j.Host())
	}
	if err != nil {
		// The lease will end by itself, and the job be done again: without effect, if it was done.
		logger.Error("Ending a job", "result", result, "err", err)
	}
}

// span begins the span of a job, in the trace of the delivery that made it; nil if nothing is
// traced.
func (r *Runner[S, E]) span(ctx context.Context, j *job.Job[S, E]) (context.Context, trace.Span) {
	if r.o.Tracer == nil {
		return ctx, nil
	}
	if in := r.o.Work.Trace(j); in != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": in})
	}
	return r.o.Tracer.Tracer("github.com/tidewaiter/tidewaiter/importer/runner").Start(ctx, "job", trace.WithAttributes(
		attribute.String("tidewaiter.reference", j.Key), attribute.String("tidewaiter.receiver", j.Source.String()), attribute.Int("tidewaiter.attempt", j.Attempts),
		attribute.Int64("tidewaiter.waited_ms", r.o.Clock.Since(j.Enqueued).Milliseconds()),
	))
}

// renew extends the lease until ctx is done, and calls lost when it cannot.
func (r *Runner[S, E]) renew(ctx context.Context, logger *slog.Logger, j *job.Job[S, E], lost func()) {
	ticker := r.o.Clock.NewTicker(r.o.Lease / 3)
	defer ticker.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		switch err := r.o.Queue.Renew(ctx, j, r.o.Lease); {
		case err == nil:
			failed = 0
		case ctx.Err() != nil:
			return
		default:
			logger.Error("Renewing the lease of a job", "err", err)
			if failed++; failed == 3 {
				lost()
				return
			}
		}
	}
}

// Guard calls f, and returns a panic as an error: one registry's answer does not end the server.
func Guard(logger *slog.Logger, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logger.Error("Panic in an import", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return f()
}

var errPanic = errors.New("the importer panicked; please report it with the server's log")

// longWait is how long a job may wait before [Runner.Check] fails.
const longWait = time.Hour

// Check returns an error while jobs are not done: it says which hosts are paused, and whose job has
// waited for more than an hour. Jobs that were given up do not count: what comes after them is
// done.
func (r *Runner[S, E]) Check(ctx context.Context) error {
	depth, err := r.o.Queue.Depth(ctx)
	if err != nil {
		return fmt.Errorf("the queue cannot be read: %w", err)
	}
	var troubles []string
	if hosts := r.limiter.BackingOff(); len(hosts) > 0 {
		const most = 5 // that are named
		more := ""
		if len(hosts) > most {
			more = fmt.Sprintf(" and %d more", len(hosts)-most)
		}
		troubles = append(troubles, "requests are paused to "+strings.Join(hosts[:min(len(hosts), most)], ", ")+more)
	}
	sources := slices.SortedFunc(maps.Keys(depth), func(a, b S) int { return strings.Compare(a.String(), b.String()) })
	for _, source := range sources {
		if oldest := depth[source].Oldest; !oldest.IsZero() && r.o.Clock.Since(oldest) > longWait {
			troubles = append(troubles, fmt.Sprintf("a job of %s has waited since %s", source, oldest.UTC().Format(time.RFC3339)))
		}
	}
	if len(troubles) > 0 {
		return errors.New(strings.Join(troubles, "; "))
	}
	return nil
}

// WatchDepth keeps the metrics of the queue until ctx is done.
func (r *Runner[S, E]) WatchDepth(ctx context.Context) error {
	ticker := r.o.Clock.NewTicker(depthInterval)
	defer ticker.Stop()
	for {
		if r.o.Parked != nil {
			r.o.Parked.Set(float64(len(r.limiter.BackingOff())))
		}
		if depth, err := r.o.Queue.Depth(ctx); err == nil {
			r.depths.set(r.o.Work.Receivers(), depth, r.o.Clock.Now())
		} else if ctx.Err() == nil {
			r.o.Logger.Error("Counting the jobs of the queue", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}
