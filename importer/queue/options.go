package queue

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// Config is the configuration in force, which may be replaced at any time.
type Config interface {
	// Importer imports: what a job has begun with, it may end with.
	Importer() *importer.Importer
	// Receivers are those that the metrics show also when they have no jobs.
	Receivers() []push.Source
	// OfScript reports whether a Source is a receiver for scripts, and not for a registry. If a script
	// reports an image that the registry lacks, the image may never have been pushed, or its name is
	// misspelled: the job stays until a user retries or drops it.
	OfScript(source push.Source) bool
}

// Options configure a Worker. Config, Images and Queue are required.
type Options struct {
	Config
	Images importer.Tagged
	Queue  Queue
	// Finder finds the Images on which a deleted tag or repository is recorded, for registries
	// that do not say which digest it had. If it is nil, those are not marked.
	Finder Finder
	// Pods have the credentials for what they use; may be nil.
	Pods Pods
	// Streams gets the results of imports for tags of streams; may be nil.
	Streams Streams
	// Running knows what every sweep must ask about, whether a tag leads to it or not; may be nil.
	Running Running
	// Sweep finds what lost notifications did not report, until ReplaceSweep.
	Sweep SweepOptions
	// Owners choose the registries that this Worker sweeps, if several Workers have the same
	// repositories; nil for all.
	Owners Owners
	// Notifier gets what happens; may be nil.
	Notifier Notifier
	// Concurrency is how many jobs are done at a time beside the first one of each registry (16),
	// HostConcurrency how many of one registry (8); see package hostlimit.
	Concurrency, HostConcurrency int
	// Lease is how long a job stays with a worker that does not renew it (1 min).
	Lease time.Duration
	// Settle is how long after Job.Latest a tag is resolved again if it does not lead to the pushed
	// image yet, because some registries report a push before they move the tag (1 s).
	Settle time.Duration
	// Grace is how long running jobs may take to end once Run is to stop (10 s).
	Grace time.Duration
	// Metrics are shared by all runners; nil makes metrics for this one alone.
	Metrics *runner.Metrics
	// Registerer gets the Worker's metrics; may be nil.
	Registerer meter.Registerer
	// Tracer records a span for each job, in the trace of the delivery that made it; nil records
	// none.
	Tracer trace.TracerProvider
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
	// Logger gets failures. Default slog.Default().
	Logger *slog.Logger
}

// Worker does the jobs of a Queue: it turns notifications of registries into Images.
type Worker struct {
	Options
	*runner.Runner[push.Source, push.Event]
	plan    atomic.Pointer[sweepPlan]
	failing warn.Limiter // of sweeps
	metrics *queueMetrics

	sweeping sync.Map      // names of registries that a sweep is at
	moved    chan struct{} // holds a token when Owners may answer otherwise than before
	replaced chan struct{} // holds a token when plan is another one

	mu    sync.Mutex
	begun map[string]bool // registries whose sweep has begun since the last regular time
	// what the last sweep has found by patterns, by registry, in the order of byName
	found map[string][]reference.Reference
}

// SweepOptions say which repositories are swept for changes that no notification
// reported: some registries drop notifications (zot, GitHub), and some send none for a
// tag that was added or removed (Harbor).
//
// A sweep also imports the references that tags of image streams want imported regularly
// (Streams.Scheduled), and asks about each stored image that pods run (Running).
//
// A sweep imports every tag of a repository, which costs one small request for a known
// image, and then asks about known references that it has not met. It does not find what
// has no tag, as that is not listed, unless pods run it.
//
// A pattern sweeps the repositories that the registry's catalog lists when the sweep begins, and
// those that an earlier sweep found there: so new ones are found, and vanished ones are noticed.
type SweepOptions struct {
	// Repositories, host/path, at most 1,000. A path with * or ? is a pattern, see
	// [reference.MatchPath].
	Repositories []string
	// Every is the time from the beginning of one sweep to the next (6 h), at least a
	// minute. The first begins with Run. A registry that a sweep is still at is left out of
	// the next. One that Owners give to this Worker is swept at once.
	Every time.Duration
}

// sweepPlan is SweepOptions in the form that a sweep uses.
type sweepPlan struct {
	repositories []reference.Reference
	patterns     []sweepPattern
	every        time.Duration
}

// parse checks the options.
func (o SweepOptions) parse() (*sweepPlan, error) {
	if o.Every != 0 && o.Every < minSweepEvery {
		return nil, fmt.Errorf("every %v is less than %v", o.Every, minSweepEvery)
	}
	if len(o.Repositories) > maxSwept {
		return nil, fmt.Errorf("there are %d repositories, at most %d are allowed", len(o.Repositories), maxSwept)
	}
	p := &sweepPlan{every: cmp.Or(o.Every, 6*time.Hour)}
	for _, s := range o.Repositories {
		if isSweepPattern(s) {
			pattern, err := parseSweepPattern(s)
			if err != nil {
				return nil, err
			}
			p.patterns = append(p.patterns, pattern)
			continue
		}
		ref, err := reference.ParseRepository(s)
		if err != nil {
			return nil, err
		}
		p.repositories = append(p.repositories, ref)
	}
	return p, nil
}

// Bounds of SweepOptions.
const (
	maxSwept      = 1000
	minSweepEvery = time.Minute
)
