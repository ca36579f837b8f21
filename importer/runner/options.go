package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// Queue keeps jobs until they are done, across restarts.
type Queue[S job.Source, E any] interface {
	// Claim waits for jobs and leases up to n of them for a time. room returns for how many jobs of
	// a host there is room. Hosts take turns.
	Claim(ctx context.Context, n int, lease time.Duration, room job.Room) ([]*job.Job[S, E], error)
	// Renew extends the lease of a job. It and the methods below fail when the lease has ended.
	Renew(ctx context.Context, j *job.Job[S, E], lease time.Duration) error
	// Done removes the job.
	Done(ctx context.Context, j *job.Job[S, E]) error
	// Fail has the job tried again later, or never.
	Fail(ctx context.Context, j *job.Job[S, E], f job.Failure) error
	// Release gives the job back as if it had not been claimed.
	Release(ctx context.Context, j *job.Job[S, E]) error
	// Hurry makes all jobs of a host that wait for another attempt due now.
	Hurry(ctx context.Context, host string) error
	// Depth counts the jobs by Source. One without jobs may be left out.
	Depth(ctx context.Context) (map[S]job.Depth, error)
}

// Work is what a Runner does with the jobs of a queue.
type Work[S job.Source, E any] interface {
	// Do does a job, once more if it was done before. The error of a host has a *pull.Error in its
	// tree: the host is left alone for a while. ErrGone ends a job that no longer matters.
	Do(ctx context.Context, j *job.Job[S, E]) error
	// Done and Failed are called after an attempt.
	Done(j *job.Job[S, E])
	Failed(ctx context.Context, j *job.Job[S, E], f job.Failure)
	// Trace is the trace that a job belongs to, as W3C Trace Context's traceparent; "" for none.
	Trace(j *job.Job[S, E]) string
	// Answered returns when a host last answered a request; zero if only jobs show that.
	Answered(host string) time.Time
	// EndPause has a host asked at once, although it has asked for a pause.
	EndPause(host string)
	// Receivers are the sources that the metrics show also when they have no jobs.
	Receivers() []S
	// Words are the words for the log.
	Words() job.Words
}

// ErrGone ends a job about something that is no longer there: the job is removed.
var ErrGone = errors.New("it is no longer in the registry")

// Options configure a Runner. Queue and Work are required.
type Options[S job.Source, E any] struct {
	Queue Queue[S, E]
	Work  Work[S, E]
	// Concurrency is how many jobs are done at a time beside the first one of each host (16),
	// HostConcurrency how many of one host (8); see package hostlimit.
	Concurrency, HostConcurrency int
	// Lease is how long a job stays with a Runner that does not renew it (1 min).
	Lease time.Duration
	// Grace is how long running jobs may take to end once Run is to stop (10 s).
	Grace time.Duration
	// Metrics are shared by all Runners; nil makes metrics for this Runner alone.
	Metrics *Metrics
	// Parked counts the hosts that are left alone; may be nil.
	Parked *metrics.Gauge
	// Tracer records a span for each job, in the trace of the request that created it; nil records
	// none.
	Tracer trace.TracerProvider
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
	// Logger gets failures. Default slog.Default().
	Logger *slog.Logger
}

// complete sets the defaults, and checks the rest.
func (o *Options[S, E]) complete() error {
	if o.Queue == nil || o.Work == nil {
		return errors.New("a runner needs a queue and work")
	}
	o.Concurrency, o.HostConcurrency = cmp.Or(o.Concurrency, 16), cmp.Or(o.HostConcurrency, 8)
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.Grace = cmp.Or(o.Grace, 10*time.Second)
	if o.Concurrency < 0 || o.HostConcurrency < 0 || o.Lease < 0 || o.Grace < 0 {
		return fmt.Errorf("concurrency %d, of a host %d, lease %v and grace %v must not be negative", o.Concurrency, o.HostConcurrency, o.Lease, o.Grace)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return nil
}

// Runner does the jobs of a queue.
type Runner[S job.Source, E any] struct {
	o       Options[S, E]
	limiter *hostlimit.Limiter
	away    warn.Trouble // of hosts
	depths  depths[S]
	back    chan string // hosts that are back after failures
}

// New checks the options.
func New[S job.Source, E any](o Options[S, E]) (*Runner[S, E], error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &Runner[S, E]{o: o, limiter: hostlimit.New(o.Concurrency, o.HostConcurrency, o.Clock), back: make(chan string, maxBack)}
	r.away.Logger = o.Logger
	r.depths.metrics = o.Metrics
	return r, nil
}
