// Package bulk imports many references. It lists registries and repositories, selects references,
// imports them with a limit for each registry, waits for registries that refuse requests and for an
// API server that does not answer, and reports the result of each reference.
package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// batch imports many references at a time, and lists registries and repositories to find more. No
// registry delays another: see package hostlimit.
type batch struct {
	importer   *importer.Importer
	images     func() importer.Images
	prefetcher *importer.Prefetcher // images returns it if the API keeps tags; otherwise nil
	limiter    *hostlimit.Limiter
	Events     events
	report     *report
	progress   *progress
	selection  *Selection
	clock      clock.Clock
	jobs       int

	hosts   map[string]*host
	turn    []*host // hosts with waiting jobs, the next one first
	running int
	workers int // goroutines
	planned int // references
	ended   chan ended
	next    chan ended    // a job for a goroutine that has done another
	left    chan struct{} // signalled when an import has left its slot
	// known tags that no list has, which are requested one by one
	unlisted map[reference.Reference]bool

	foreseeing sync.WaitGroup // running reads for waiting references
}

// name is the job in reports, as -f reads it.
func (j Job) name() string {
	switch {
	case j.Kind == dateJob: // the tag is only one of the candidates
		return j.Ref.Bare().String() + allTagsSuffix
	case j.Kind == ImportJob:
		return j.Ref.String()
	case j.Ref.Repository == "":
		return j.Ref.Host + wholeRegistrySuffix
	}
	return j.Ref.String() + allTagsSuffix
}

// drop reports whether the report should name a job that will not be done. If one date of a choice
// is missing, no tag is chosen, so the report names only the first dropped date of each choice.
func (j Job) drop() bool {
	if j.Kind != dateJob {
		return true
	}
	dropped := j.of.dropped
	j.of.dropped = true
	return !dropped
}

// events records Events about what was imported.
type events interface {
	// Imported records the result of importing a reference.
	Imported(reference string, result *importer.Result, err error)
}

// noEvents records none.
type noEvents struct{}

// Imported is part of events.
func (noEvents) Imported(string, *importer.Result, error) {}

// New returns a batch that runs at most jobs jobs at a time for each registry; hostlimit.New has
// the limit for all registries. The selection chooses among the listed references.
func New(im *importer.Importer, images func() importer.Images, jobs int, s *Selection, report *report, progress *progress) *batch {
	var ahead *importer.Prefetcher
	if tagged, ok := images().(importer.Tagged); ok {
		ahead = importer.NewPrefetcher(tagged, clock.RealClock{})
		images = func() importer.Images { return ahead }
	}
	return &batch{
		importer: im, images: images, prefetcher: ahead, limiter: hostlimit.New(2*jobs, jobs, clock.RealClock{}), clock: clock.RealClock{}, jobs: jobs,
		Events: noEvents{}, report: report, progress: progress, selection: s, hosts: map[string]*host{}, unlisted: map[reference.Reference]bool{}, ended: make(chan ended), next: make(chan ended), left: make(chan struct{}, 1),
	}
}

// Run does all jobs, and the jobs that they lead to, even if others fail. It returns an error only
// if the batch itself cannot continue.
func (b *batch) Run(ctx context.Context, jobs []Job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.report.isBrief {
		ctx = importer.WithBrief(ctx)
	}
	defer b.foreseeing.Wait()
	for _, j := range jobs {
		b.plan(j)
	}
	err := interruption(ctx)
	for err == nil && (len(b.turn) > 0 || b.running > 0) {
		var probe <-chan time.Time
		if again := b.start(ctx); !again.IsZero() {
			probe = b.clock.After(again.Sub(b.clock.Now()))
		}
		select {
		case e := <-b.ended:
			if ctx.Err() != nil {
				b.leave(e)
			} else if b.finishJob(e); b.planned > MaxReferences {
				err = fmt.Errorf("there are more than %d tags: import them in parts, with --include", MaxReferences)
			}
		case <-probe:
		case <-b.left:
		case <-ctx.Done():
		}
		if err == nil {
			err = interruption(ctx)
		}
	}
	if err != nil {
		cancel()
		b.abandon()
	}
	if b.prefetcher != nil {
		if refused := b.prefetcher.Flush(ctx); apierrors.IsForbidden(refused) {
			b.report.warn([]string{unnoted + refused.Error()})
		}
	}
	return err
}

// unnoted begins the warning of an import that may read images and not write them: what is stored
// already is unchanged, so nothing else fails.
const unnoted = "the server did not record that the registry was asked; an import needs the role tidewaiter:importer: "

func interruption(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("interrupted: %w", context.Cause(ctx))
}

// abandon waits for running jobs, and reports the jobs that were not tried.
func (b *batch) abandon() {
	for b.running > 0 {
		b.leave(<-b.ended)
	}
	for _, h := range b.turn {
		for h.waiting() > 0 {
			b.skip(h.next())
		}
	}
}

// leave reports the result of a job that ends while the batch ends.
func (b *batch) leave(e ended) {
	if b.running--; e.Kind == ImportJob {
		b.imported(e)
	} else {
		b.skip(e.Job)
	}
}

// skip reports a job that was not done.
func (b *batch) skip(j Job) {
	if j.drop() {
		b.report.skip(j.name())
	}
}

// plan queues a job for the first time.
func (b *batch) plan(j Job) {
	if j.Kind == ImportJob {
		b.planned++
		b.progress.Planned(1)
	}
	b.wait(j)
}

// wait queues a job behind the others of its registry.
func (b *batch) wait(j Job) {
	h := b.hosts[j.Ref.Host]
	if h == nil {
		h = &host{name: j.Ref.Host, tried: map[Job]trials{}}
		b.hosts[h.name] = h
	}
	if h.waiting() == 0 {
		b.turn = append(b.turn, h)
	}
	if j.Kind != ImportJob {
		h.lists = append(h.lists, j)
		return
	}
	h.imports = append(h.imports, j.Ref)
	if b.prefetcher != nil {
		b.prefetcher.Expect(j.Ref)
	}
}

// start starts as many jobs as there is room for, one of each registry in turn. It returns when to
// probe the next registry; zero when none is paused.
func (b *batch) start(ctx context.Context) (again time.Time) {
	for full := 0; full < len(b.turn) && b.limiter.Free() > 0; {
		h := b.turn[0]
		b.turn = b.turn[1:]
		n, at := b.limiter.Available(h.name)
		if n == 0 {
			full++
			b.turn = append(b.turn, h)
			if !at.IsZero() && (again.IsZero() || at.Before(again)) {
				again = at
			}
			continue
		}
		full = 0
		j := h.next()
		if h.waiting() > 0 {
			b.turn = append(b.turn, h)
		}
		// Skip the next references: they may begin meanwhile, and would be read twice.
		if n, before := len(h.imports), max(b.jobs, importer.PrefetchImages); b.prefetcher != nil && j.Kind == ImportJob && n > before && n%importer.PrefetchImages == 0 {
			coming := h.imports[before:]
			b.foreseeing.Go(func() { b.prefetcher.Prefetch(ctx, coming) })
		}
		if b.prefetcher != nil && j.Kind == ImportJob {
			if ask := b.prefetcher.Foresee(ctx, j.Ref, h.imports); ask != nil {
				b.foreseeing.Go(ask)
			}
		}
		b.limiter.Start(h.name)
		b.running++
		b.progress.Started(j)
		b.hand(ctx, ended{Job: j, round: h.round})
	}
	return again
}

// hand gives a running job to a goroutine that has done another or, if there is none, to a new one.
// So there are at most as many goroutines as jobs have run at a time.
func (b *batch) hand(ctx context.Context, e ended) {
	if b.running > b.workers {
		b.workers++
		go b.work(ctx, e)
		return
	}
	select {
	case b.next <- e:
	case <-ctx.Done(): // the others have left, or are about to
		go b.work(ctx, e)
	}
}

// work does a job, and then others until ctx is done. A goroutine that does many jobs grows its
// stack once.
func (b *batch) work(ctx context.Context, e ended) {
	for {
		b.do(ctx, &e)
		b.ended <- e
		e = ended{} // its images are large
		select {
		case e = <-b.next:
		case <-ctx.Done():
			return
		}
	}
}

// do does a job and puts its result into e.
func (b *batch) do(ctx context.Context, e *ended) {
	switch {
	case e.Kind == ImportJob:
		e.result, e.err = b.importer.Import(context.WithValue(ctx, slotKey{}, &slot{b, e.Ref}), e.Ref, b.images())
	case e.Kind == dateJob:
		e.created, e.err = b.importer.Created(ctx, e.Ref, b.images())
	case e.Ref.Repository == "":
		e.found, e.warnings, e.err = b.importer.Repositories(ctx, e.Ref.Host)
	default:
		var tags []string
		tags, e.warnings, e.err = b.importer.Tags(ctx, e.Ref)
		listed := map[string]bool{}
		for _, tag := range tags {
			e.found = append(e.found, e.Ref.WithTag(tag))
			listed[tag] = true
		}
		if tagged, ok := b.images().(importer.Tagged); ok && e.err == nil {
			err := importer.EachUnlisted(ctx, tagged, e.Ref, func(tag reference.Reference) bool { return listed[tag.Tag] }, func(tag reference.Reference, _ string) error {
				e.unlisted = append(e.unlisted, tag)
				return nil
			})
			if err != nil && ctx.Err() == nil {
				e.warnings = append(e.warnings, fmt.Sprintf("%s: tags that were imported before and are no longer listed are not requested: %v", e.Ref.Name(), err))
			}
		}
	}
}

// slot is an import's place in the limiter while it sends requests to its registry.
type slot struct {
	batch *batch
	ref   reference.Reference
}

type slotKey struct{}

// leave frees the slot for another import while the server records an item, so that one request can
// record the items of many imports. It does so only if the importer has already read everything for
// the reference.
func (s *slot) leave(item *record.Item) (back func()) {
	isLast := item.Tag != nil || item.Image != nil && slices.Contains(annotation.Known(item.Image.Annotations), s.ref.Pulled())
	if !isLast || !s.batch.limiter.Leave(s.ref.Host) {
		return func() {}
	}
	select {
	case s.batch.left <- struct{}{}:
	default: // the channel holds a signal already
	}
	return func() { s.batch.limiter.Return(s.ref.Host) }
}

// finishJob handles the result of a job. If the registry failed and may recover, it queues the job
// again.
func (b *batch) finishJob(e ended) {
	b.running--
	h := b.hosts[e.Ref.Host]
	until := b.limiter.Done(h.name, e.err)
	var failed *pull.Error
	if !errors.As(e.err, &failed) || !hostlimit.BacksOff(failed) {
		if pull.ReasonOf(e.err) != pull.Canceled {
			h.answers(e)
		}
		if h.searchAgain(e) {
			b.wait(e.Job)
			b.progress.postponed(e.Job, "")
			return
		}
		b.finish(e)
		return
	}
	again, hopeless := h.fail(e, failed, until, b.clock.Now())
	if again {
		b.wait(e.Job)
		b.progress.postponed(e.Job, h.notice(failed, until, b.clock.Now()))
		return
	}
	if hopeless == "" {
		b.finish(e)
		return
	}
	b.refuse(e)
	for h.waiting() > 0 {
		j := h.next()
		b.progress.Started(j)
		b.refuse(ended{Job: j, err: &pull.Error{
			Reason: failed.Reason, Host: j.Ref.Host, Repository: j.Ref.Repository, Reference: nameOf(j.Ref), RetryAfter: failed.RetryAfter,
			Message: fmt.Sprintf("not tried, since the registry %s: %s", hopeless, failed.Message),
		}})
	}
	b.turn = slices.DeleteFunc(b.turn, func(other *host) bool { return other == h })
}

// refuse reports a job of a registry that is given up.
func (b *batch) refuse(e ended) {
	switch {
	case e.Kind != dateJob:
		b.finish(e)
	case e.drop():
		b.progress.listed(true)
		b.report.Add(e.name(), nil, e.err)
	default:
		b.progress.listed(false)
	}
}

// nameOf returns the name of ref for errors, "" for a registry.
func nameOf(ref reference.Reference) string {
	if ref.Repository == "" {
		return ""
	}
	return ref.String()
}

// finish reports a job that will not be tried again, or continues with the images that it found.
func (b *batch) finish(e ended) {
	delete(b.hosts[e.Ref.Host].tried, e.Job)
	switch {
	case e.Kind == ImportJob:
		b.imported(e)
	case e.Kind == dateJob && e.of.dropped:
		b.progress.listed(false)
	case e.Kind == dateJob:
		if b.progress.listed(e.err != nil); e.err != nil {
			b.report.Add(e.Ref.String(), nil, e.err)
		}
		for _, ref := range b.selection.dated(e.of, e.Ref, e.created, e.err == nil) {
			b.plan(Job{Ref: ref})
		}
	case e.err != nil:
		b.progress.listed(true)
		b.report.Add(e.name(), nil, e.err)
	default:
		b.progress.listed(false)
		b.report.warn(e.warnings)
		b.report.listed += len(e.found)
		for _, j := range b.selection.among(e.Ref, e.found) {
			b.plan(j)
		}
		for _, ref := range e.unlisted {
			if b.selection.Has(ref) {
				b.unlisted[ref] = true
				b.plan(Job{Ref: ref})
			}
		}
	}
}

func (b *batch) imported(e ended) {
	if b.unlisted[e.Ref] && pull.ReasonOf(e.err) == pull.NotFound {
		b.report.gone(e.Ref.String(), e.result, e.err)
		return
	}
	b.Events.Imported(e.Ref.String(), e.result, e.err)
	b.report.Add(e.Ref.String(), e.result, e.err)
}
