package queue

import (
	"cmp"
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
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// New checks the options.
func New(o Options) (*Worker, error) {
	if o.Importer == nil || o.Images == nil || o.Queue == nil {
		return nil, errors.New("a worker needs an importer, images and a queue")
	}
	o.Concurrency, o.HostConcurrency = cmp.Or(o.Concurrency, 16), cmp.Or(o.HostConcurrency, 8)
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.Settle = cmp.Or(o.Settle, time.Second)
	o.Grace = cmp.Or(o.Grace, 10*time.Second)
	if o.Concurrency < 0 || o.HostConcurrency < 0 || o.Lease < 0 || o.Settle < 0 || o.Grace < 0 {
		return nil, fmt.Errorf("concurrency %d, of a registry %d, lease %v, settling time %v and grace %v must not be negative", o.Concurrency, o.HostConcurrency, o.Lease, o.Settle, o.Grace)
	}
	if o.Receivers == nil {
		o.Receivers = func() []push.Source { return nil }
	}
	if o.OfScript == nil {
		o.OfScript = func(push.Source) bool { return false }
	}
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Logger = cmp.Or(o.Logger, slog.Default())
	plan, err := o.Sweep.parse()
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	worker := &Worker{
		Options: o, limiter: hostlimit.New(o.Concurrency, o.HostConcurrency, o.Clock), metrics: newQueueMetrics(o.RegisterMetrics),
		moved: make(chan struct{}, 1), replaced: make(chan struct{}, 1), back: make(chan string, maxBack), begun: map[string]bool{},
	}
	worker.away.Logger = o.Logger
	worker.plan.Store(plan)
	if o.Owners != nil {
		o.Owners.OnChange(func() {
			select {
			case worker.moved <- struct{}{}:
			default:
			}
		})
	}
	return worker, nil
}

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
func (w *Worker) Run(ctx context.Context) error {
	// Jobs outlive ctx by Grace.
	jobs, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { w.sweepEvery(ctx) })
	running.Go(func() {
		for {
			select {
			case host := <-w.back:
				w.hurry(ctx, host)
			case <-ctx.Done():
				return
			}
		}
	})

	slotFree := make(chan struct{}, 1)
	for ctx.Err() == nil {
		n := w.limiter.Free()
		if n == 0 {
			select {
			case <-slotFree:
			case <-ctx.Done():
			}
			continue
		}
		claimed, err := w.Queue.Claim(ctx, n, w.Lease, w.available)
		if err != nil && ctx.Err() == nil {
			w.Logger.Error("Claiming from the queue", "err", err)
			select {
			case <-w.Clock.After(claimPause):
			case <-ctx.Done():
			}
		}
		for _, j := range claimed {
			w.limiter.Start(j.Host())
			began := w.Clock.Now()
			running.Go(func() {
				w.runJob(jobs, j, began)
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
	case <-w.Clock.After(w.Grace):
		cancel()
		<-ended
	}
	return nil
}

// lookAgain is how often the worker checks whether a failed registry has answered other requests.
const lookAgain = time.Second

// available is [hostlimit.Limiter.Available]. A registry that has answered a request of others ends
// its back-off: an import that a stream asks for, say, or a sweep.
func (w *Worker) available(host string) (n int, again time.Time) {
	if n, again = w.limiter.Available(host); n > 0 || !w.limiter.Fails(host) {
		return n, again
	}
	if _, ok := push.NotifiedHost(host); ok {
		return n, again
	}
	w.sign(host, w.Importer().Answered(host))
	n, again = w.limiter.Available(host)
	if soon := w.Clock.Now().Add(lookAgain); n == 0 && (again.IsZero() || again.After(soon)) {
		again = soon
	}
	return n, again
}

// Sign records that a registry has just shown that it is up, for example by a notification. If the
// registry had failed, the next job probes it. Call Sign before the job is queued.
func (w *Worker) Sign(host string) { w.sign(host, w.Clock.Now()) }

func (w *Worker) sign(host string, at time.Time) {
	if w.limiter.Sign(host, at) {
		select {
		case w.back <- host:
		default:
		}
	}
}

// hurry makes all waiting jobs of a host that is back due now.
func (w *Worker) hurry(ctx context.Context, host string) {
	if err := w.Queue.Hurry(ctx, host); err != nil && ctx.Err() == nil {
		w.Logger.Error("Making the jobs of a host that is back due failed; they wait for their own time", "host", host, "err", err)
	}
}

// EndPauses has a registry, or all if it is "", asked at once, whatever it has asked for.
func (w *Worker) EndPauses(host string) {
	hosts := []string{host}
	if host == "" {
		hosts = w.limiter.BackingOff()
	}
	for _, host := range hosts {
		w.limiter.End(host)
		if _, ok := push.NotifiedHost(host); !ok {
			w.Importer().EndPause(host)
		}
	}
}

// PausedUntil returns until when a registry is left alone; zero if it is not.
func (w *Worker) PausedUntil(host string) time.Time { return w.limiter.Until(host) }

// runJob does a job, renews its lease meanwhile, and reports the outcome to the queue.
func (w *Worker) runJob(ctx context.Context, j *push.Job, began time.Time) {
	logger := w.Logger.With("job", j.ID, "receiver", j.Source, "reference", j.Key, "attempt", j.Attempts)
	work, lost := context.WithCancel(ctx)
	defer lost()
	traced, span := w.span(work, j)
	budgeted, spent := w.Importer().Job(importer.WithCause(traced, cause(j)))
	defer spent()
	var renewing sync.WaitGroup
	renewing.Go(func() { w.renew(work, logger, j, lost) })
	err := guard(logger, func() error { return w.ended(budgeted, j, w.do(budgeted, j)) })
	gone := errors.Is(err, errGone)
	if gone {
		err = nil
	}
	if span != nil {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
	words := wordsOf(j)
	// Before the end of the job is written, which may start the next claim.
	ended := w.limiter.DoneSince(j.Host(), began, err)
	if until := ended.PausedUntil; !until.IsZero() {
		w.away.Begin(j.Host(), words.away, words.host, j.Host(), "receiver", j.Source, "reference", j.Key, "err", err)
		logger.Info("Pausing requests to a host", "host", j.Host(), "until", until, "err", err)
	} else {
		w.away.End(j.Host(), words.back, words.host, j.Host())
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
		result, err = "gone", w.Queue.Done(ending, j)
	case err == nil:
		logger.Info(words.done)
		if err = w.Queue.Done(ending, j); words.imports && !isDeletion(j.Events[0]) {
			w.metrics.delay.WithLabelValues(j.Source.String()).Observe(w.Clock.Since(j.Enqueued).Seconds())
		}
	case ctx.Err() != nil || ended.HungBefore && leaseHeld:
		result, err = "released", w.Queue.Release(ending, j)
	case !leaseHeld:
		result = "lost"
	default:
		f := failure(err, j.Attempts)
		result = "failed"
		if f.Permanent {
			result = "dead"
		}
		logger.Info(words.failed, "err", f.Error, "permanent", f.Permanent)
		w.notifyFailure(ctx, j, f)
		err = w.Queue.Fail(ending, j, f)
	}
	w.metrics.jobs.WithLabelValues(j.Source.String(), result).Inc()
	if ended.IsBack {
		w.hurry(ending, j.Host())
	}
	if err != nil {
		// The lease will end by itself, and the job be done again: without effect, if it was done.
		logger.Error("Ending a job", "result", result, "err", err)
	}
}

// span begins the span of a job, in the trace of the delivery that made it; nil if nothing is
// traced.
func (w *Worker) span(ctx context.Context, j *push.Job) (context.Context, trace.Span) {
	if w.Tracer == nil {
		return ctx, nil
	}
	if in := j.Events[0].Trace; in != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": in})
	}
	return w.Tracer.Tracer("github.com/tidewaiter/tidewaiter/importer/queue").Start(ctx, "job", trace.WithAttributes(
		attribute.String("tidewaiter.reference", j.Key), attribute.String("tidewaiter.receiver", j.Source.String()), attribute.Int("tidewaiter.attempt", j.Attempts),
		attribute.Int64("tidewaiter.waited_ms", w.Clock.Since(j.Enqueued).Milliseconds()),
	))
}

// words are what the log says of a kind of jobs.
type words struct {
	imports                        bool
	host, away, back, done, failed string
}

func wordsOf(j *push.Job) *words {
	if j.Source.Kind == push.Notification {
		return &words{false, "receiver", "A receiver of notifications does not take them; they wait and are retried from time to time", "A receiver of notifications takes them again", "Notified", "A notification failed"}
	}
	return &words{true, "registry", "A registry does not answer; its pushes wait and are retried from time to time", "A registry answers again; importing its pushes", "Imported", "Import failed"}
}

// cause is why a job is done, for people.
func cause(j *push.Job) string {
	text := "webhook " + j.Source.Name
	switch j.Source.Kind {
	case push.Cluster:
		return "pods of cluster " + j.Source.Name
	case push.Streams:
		return "image streams that follow it"
	case push.Registry:
		return "push"
	case push.People:
		text = "asked for"
	}
	if by := actors(j.Events, ""); by != "" {
		text += ", by " + by
	}
	return text
}

// maxActors is how many actors are named.
const maxActors = 3

// actors names who did it, as the sender of events says: the actors of events about a digest, or
// of all events if digest is "".
func actors(events []push.Event, digest string) string {
	var all []string
	for _, e := range events {
		if e.Actor != "" && (digest == "" || e.Digest == digest) && !slices.Contains(all, e.Actor) {
			all = append(all, e.Actor)
		}
	}
	if len(all) > maxActors {
		all = append(all[:maxActors], "others")
	}
	return strings.Join(all, ", ")
}

// renew extends the lease until ctx is done, and calls lost when it cannot.
func (w *Worker) renew(ctx context.Context, logger *slog.Logger, j *push.Job, lost func()) {
	ticker := w.Clock.NewTicker(w.Lease / 3)
	defer ticker.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		switch err := w.Queue.Renew(ctx, j, w.Lease); {
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

// guard calls f, and returns a panic as an error: one registry's answer does not end the server.
func guard(logger *slog.Logger, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logger.Error("Panic in an import", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return f()
}

var errPanic = errors.New("the importer panicked; please report it with the server's log")

// longWait is how long a job may wait before [Worker.Check] fails.
const longWait = time.Hour

// Check returns an error while pushes do not become Images: it says which registries are paused,
// and whose job has waited for more than an hour. Jobs that were given up do not count: what comes
// after them is imported.
func (w *Worker) Check(ctx context.Context) error { return w.check(ctx, false) }

// CheckNotifications is Check for notifications.
func (w *Worker) CheckNotifications(ctx context.Context) error { return w.check(ctx, true) }

func (w *Worker) check(ctx context.Context, notifications bool) error {
	depth, err := w.Queue.Depth(ctx)
	if err != nil {
		return fmt.Errorf("the queue cannot be read: %w", err)
	}
	var troubles []string
	if hosts := w.backingOff(notifications); len(hosts) > 0 {
		const most = 5 // that are named
		more := ""
		if len(hosts) > most {
			more = fmt.Sprintf(" and %d more", len(hosts)-most)
		}
		troubles = append(troubles, "requests are paused to "+strings.Join(hosts[:min(len(hosts), most)], ", ")+more)
	}
	sources := slices.SortedFunc(maps.Keys(depth), func(a, b push.Source) int { return strings.Compare(a.String(), b.String()) })
	for _, source := range sources {
		if (source.Kind == push.Notification) != notifications {
			continue
		}
		if oldest := depth[source].Oldest; !oldest.IsZero() && w.Clock.Since(oldest) > longWait {
			troubles = append(troubles, fmt.Sprintf("a job of %s has waited since %s", source, oldest.UTC().Format(time.RFC3339)))
		}
	}
	if len(troubles) > 0 {
		return errors.New(strings.Join(troubles, "; "))
	}
	return nil
}

// backingOff returns the registries, or the receivers of notifications, that are backed off from.
func (w *Worker) backingOff(notifications bool) []string {
	return slices.DeleteFunc(w.limiter.BackingOff(), func(host string) bool {
		_, ok := push.NotifiedHost(host)
		return ok != notifications
	})
}

// WatchDepth keeps the metrics of the queue until ctx is done.
func (w *Worker) WatchDepth(ctx context.Context) error {
	ticker := w.Clock.NewTicker(depthInterval)
	defer ticker.Stop()
	for {
		w.metrics.parked.Set(float64(len(w.backingOff(false))))
		if depth, err := w.Queue.Depth(ctx); err == nil {
			w.metrics.setDepth(w.Receivers(), depth, w.Clock.Now())
		} else if ctx.Err() == nil {
			w.Logger.Error("Counting the jobs of the queue", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}
