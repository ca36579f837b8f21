package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// New checks the options.
func New(o Options) (*Worker, error) {
	if o.Config == nil || o.Images == nil || o.Queue == nil {
		return nil, errors.New("a worker needs a configuration, images and a queue")
	}
	o.Concurrency, o.HostConcurrency = cmp.Or(o.Concurrency, 16), cmp.Or(o.HostConcurrency, 8)
	o.Settle = cmp.Or(o.Settle, time.Second)
	if o.Settle < 0 {
		return nil, fmt.Errorf("settling time %v must not be negative", o.Settle)
	}
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Logger = cmp.Or(o.Logger, slog.Default())
	plan, err := o.Sweep.parse()
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	worker := &Worker{
		Options: o, metrics: newQueueMetrics(o.Registerer), moved: make(chan struct{}, 1), replaced: make(chan struct{}, 1), begun: map[sweepKey]bool{}, losses: map[sweepKey]*Loss{}, shown: map[sweepKey]time.Time{}, recalled: map[sweepKey]bool{}, settled: map[sweepKey]map[reference.Reference]settled{},
	}
	if o.Metrics == nil {
		o.Metrics = runner.NewMetrics(o.Registerer)
	}
	worker.Runner, err = runner.New(runner.Options[push.Source, push.Event]{
		Queue: o.Queue, Work: work{worker}, Concurrency: o.Concurrency, HostConcurrency: o.HostConcurrency, Lease: o.Lease, Grace: o.Grace,
		Metrics: o.Metrics, Parked: worker.metrics.parked, Tracer: o.Tracer, Clock: o.Clock, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
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

// Run does jobs and sweeps until ctx is done; see [runner.Runner.Run].
func (w *Worker) Run(ctx context.Context) error {
	var sweeping sync.WaitGroup
	sweeping.Go(func() { w.sweepEvery(ctx) })
	defer sweeping.Wait()
	return w.Runner.Run(ctx)
}

// work is what a Worker does with jobs.
type work struct{ *Worker }

// Do imports what a job is about, within a budget.
func (w work) Do(ctx context.Context, j *push.Job) error {
	ctx, spent := w.Importer().Job(importer.WithCause(ctx, cause(j)))
	defer spent()
	return w.ended(ctx, j, w.do(ctx, j))
}

// Done measures how long it took from the push to the Image.
func (w work) Done(j *push.Job) {
	if !isDeletion(j.Events[0]) {
		w.metrics.delay.WithLabelValues(j.Source.String()).Observe(w.Clock.Since(j.Enqueued).Seconds())
	}
}

func (w work) Failed(ctx context.Context, j *push.Job, f job.Failure) { w.notifyFailure(ctx, j, f) }

func (w work) Trace(j *push.Job) string { return j.Events[0].Trace }

// Answered is when a registry last answered any import: one that a stream asks for, say, or a
// sweep.
func (w work) Answered(host string) time.Time { return w.Importer().Answered(host) }

func (w work) EndPause(host string) { w.Importer().EndPause(host) }

func (w work) Words() job.Words {
	return job.Words{
		Host: "registry", Away: "A registry does not answer; its pushes wait and are retried from time to time",
		Back: "A registry answers again; importing its pushes", Done: "Imported", Failed: "Import failed",
	}
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
