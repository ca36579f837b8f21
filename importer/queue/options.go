package queue

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/listing"
	"github.com/tidewaiter/tidewaiter/importer/pull"
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

	moved    chan struct{} // holds a token when Owners may answer otherwise than before
	replaced chan struct{} // holds a token when plan is another one
	turns    pull.KeyLocks // by registry: one sweep at a time
	sweeping sync.Map      // sweepKey of the registries that a sweep is at, or waits for

	mu    sync.Mutex
	begun map[sweepKey]bool // registries whose sweep has begun since the last regular time
	// what sweeps have found by patterns, by registry, in the order of byName
	found map[string][]reference.Reference
	// registries that show little of what they had, and when others last showed what they have
	losses   map[sweepKey]*Loss
	shown    map[sweepKey]time.Time
	recalled map[sweepKey]bool // registries whose stored tags were read for found
	// what registries' own lists said of repositories before sweeps that asked for all there
	settled map[sweepKey]map[reference.Reference]settled
}

// sweepKey is a registry as an entry of the plan sweeps it.
type sweepKey struct {
	entry *sweepEntry
	host  string
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
// A pattern sweeps the repositories that the registry lists when the sweep begins, and those that
// an earlier sweep found there: so new ones are found, and vanished ones are noticed.
type SweepOptions struct {
	// Repositories, host/path, at most 1,000. A path with * or ? is a pattern, see
	// [reference.MatchPath], for the registry's catalog.
	Repositories []string
	// Every is the time from the beginning of one sweep to the next (6 h), at least a
	// minute. The first begins with Run. A registry that a sweep is still at is left out of
	// the next. One that Owners give to this Worker is swept at once.
	Every time.Duration
	// Entries are further repositories, at most 100 times.
	Entries []SweepEntry
}

// SweepEntry is a part of what is swept, with a time of its own.
type SweepEntry struct {
	// Repositories are as those of sweep.
	Repositories []string `yaml:"repositories" example:"[\"harbor.example.com/prod/**\"]"`
	// Every is by default that of sweep; at least a minute.
	Every time.Duration `yaml:"every" example:"30m"`
	// Listing is the list from which patterns select: catalog, harbor, gitlab, gitea, quay or zot;
	// see webhooks.md.
	Listing string `yaml:"listing" example:"harbor"`
	// Most is how many repositories of a registry the patterns may select; by default 10000, and at
	// most 100000.
	Most int `yaml:"most" example:"10000"`
}

// sweepPlan is SweepOptions in the form that a sweep uses.
type sweepPlan struct {
	// the first one is that of SweepOptions itself
	entries []*sweepEntry
}

// sweepEntry is a part of a plan.
type sweepEntry struct {
	repositories []reference.Reference
	patterns     []sweepPattern
	every        time.Duration
	listing      listing.Kind
	most         int
	// it also sweeps what image streams follow and pods run
	isBase bool
}

// SweepError is a mistake in SweepOptions.
type SweepError struct {
	// Key is where it is, such as entries[0].listing.
	Key string
	Err error
}

func (e *SweepError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *SweepError) Unwrap() error { return e.Err }

// parse checks the options. Errors are a *SweepError.
func (o SweepOptions) parse() (*sweepPlan, error) {
	base, err := (SweepEntry{Repositories: o.Repositories, Every: o.Every}).parse("")
	if err != nil {
		return nil, err
	}
	base.every, base.isBase = cmp.Or(base.every, 6*time.Hour), true
	if len(o.Entries) > maxSweepEntries {
		return nil, &SweepError{"entries", fmt.Errorf("there are %d, at most %d are allowed", len(o.Entries), maxSweepEntries)}
	}
	p := &sweepPlan{entries: []*sweepEntry{base}}
	for i, e := range o.Entries {
		at := fmt.Sprintf("entries[%d].", i)
		entry, err := e.parse(at)
		if err != nil {
			return nil, err
		}
		if len(e.Repositories) == 0 {
			return nil, &SweepError{at + "repositories", errors.New("an entry names repositories or patterns")}
		}
		entry.every = cmp.Or(entry.every, base.every)
		p.entries = append(p.entries, entry)
	}
	return p, nil
}

// parse checks an entry, whose keys are below at.
func (o SweepEntry) parse(at string) (*sweepEntry, error) {
	e := &sweepEntry{every: o.Every, most: cmp.Or(o.Most, maxFound)}
	if o.Every != 0 && o.Every < minSweepEvery {
		return nil, &SweepError{at + "every", fmt.Errorf("%v is less than %v", o.Every, minSweepEvery)}
	}
	if len(o.Repositories) > maxSwept {
		return nil, &SweepError{at + "repositories", fmt.Errorf("there are %d repositories, at most %d are allowed", len(o.Repositories), maxSwept)}
	}
	if o.Most < 0 || o.Most > maxMost {
		return nil, &SweepError{at + "most", fmt.Errorf("%d is not between 1 and %d", o.Most, maxMost)}
	}
	var err error
	if e.listing, err = listing.Parse(o.Listing); err != nil {
		return nil, &SweepError{at + "listing", err}
	}
	for i, s := range o.Repositories {
		key := fmt.Sprintf("%srepositories[%d]", at, i)
		if isSweepPattern(s) {
			pattern, err := parseSweepPattern(s)
			if err == nil && e.listing != listing.Catalog {
				_, err = e.listing.Lists([]string{pattern.path})
			}
			if err != nil {
				return nil, &SweepError{key, err}
			}
			e.patterns = append(e.patterns, pattern)
			continue
		}
		ref, err := reference.ParseRepository(s)
		if err != nil {
			return nil, &SweepError{key, err}
		}
		e.repositories = append(e.repositories, ref)
	}
	if o.Listing != "" && len(e.patterns) == 0 {
		return nil, &SweepError{at + "listing", errors.New("it is for patterns, and the entry has none")}
	}
	return e, nil
}

// Bounds of SweepOptions.
const (
	maxSwept        = 1000
	maxSweepEntries = 100
	minSweepEvery   = time.Minute
	maxFound        = 10_000  // repositories of a registry that patterns select, if SweepEntry.Most is 0
	maxMost         = 100_000 // what SweepEntry.Most may be
)
