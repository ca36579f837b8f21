package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/lanes"
)

// batch imports many references at a time, and lists registries and repositories for more of them. No registry holds
// up another: see package lanes.
type batch struct {
	importer  *importer.Importer
	images    func() importer.Images
	ahead     *importer.Ahead // what images returns, if that keeps tags
	lanes     *lanes.Lanes
	events    *eventRecorder
	report    *report
	progress  *progress
	selection *selection
	clock     clock.Clock
	jobs      int

	hosts   map[string]*host
	turn    []*host // those with something that waits, the next to be looked at first
	running int
	planned int // references
	ended   chan ended

	foreseeing sync.WaitGroup // reads of what waiting references need
}

// job is one thing that a registry is asked for.
type job struct {
	kind jobKind
	// ref is the image that is imported or dated, or the repository that is listed. To list a registry it has only a Host.
	ref reference.Reference
	of  *choice // of a dateJob
}

type jobKind int8

const (
	importJob jobKind = iota
	listJob
	dateJob
)

// name is the job in reports, as -f reads it.
func (j job) name() string {
	switch {
	case j.kind == dateJob: // the tag is but one of those that are chosen from
		return j.ref.Bare().String() + allTagsSuffix
	case j.kind == importJob:
		return j.ref.String()
	case j.ref.Repository == "":
		return j.ref.Host + wholeRegistrySuffix
	}
	return j.ref.String() + allTagsSuffix
}

// drop reports whether a job that will not be done is to be reported. Of the dates among which tags are chosen only the
// first is: then none is chosen.
func (j job) drop() bool {
	if j.kind != dateJob {
		return true
	}
	dropped := j.of.dropped
	j.of.dropped = true
	return !dropped
}

// ended is the result of a job: an import's result, what a list has, or a date.
type ended struct {
	job
	round    int // of the host, when the job began
	result   *importer.Result
	found    []reference.Reference
	warnings []string
	created  time.Time
	err      error
}

// newBatch returns a batch that has up to jobs jobs at a time of one registry and, beside it, one at a time of each of
// many others. The selection chooses among what is listed.
func newBatch(im *importer.Importer, images func() importer.Images, jobs int, s *selection, report *report, progress *progress) *batch {
	var ahead *importer.Ahead
	if tagged, ok := images().(importer.Tagged); ok {
		ahead = importer.NewAhead(tagged, clock.RealClock{})
		images = func() importer.Images { return ahead }
	}
	return &batch{
		importer: im, images: images, ahead: ahead, lanes: lanes.New(2*jobs, jobs, clock.RealClock{}), clock: clock.RealClock{}, jobs: jobs,
		events: &eventRecorder{}, report: report, progress: progress, selection: s, hosts: map[string]*host{}, ended: make(chan ended),
	}
}

// run does all jobs, and those that they lead to, whatever happens to the others. It returns an error only if the batch
// itself could not go on.
func (b *batch) run(ctx context.Context, jobs []job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
			} else if b.end(e); b.planned > maxReferences {
				err = fmt.Errorf("these are more than %d tags: import them in parts, with --include", maxReferences)
			}
		case <-probe:
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
	return err
}

func interruption(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("interrupted: %w", context.Cause(ctx))
}

// abandon waits for the jobs that run, and reports what was not tried.
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

// leave takes the result of a job while the batch ends.
func (b *batch) leave(e ended) {
	if b.running--; e.kind == importJob {
		b.imported(e)
	} else {
		b.skip(e.job)
	}
}

// skip reports a job that was not done.
func (b *batch) skip(j job) {
	if j.drop() {
		b.report.skip(j.name())
	}
}

// plan queues a job for the first time.
func (b *batch) plan(j job) {
	if j.kind == importJob {
		b.planned++
		b.progress.planned(1)
	}
	b.wait(j)
}

// wait queues a job behind the others of its registry.
func (b *batch) wait(j job) {
	h := b.hosts[j.ref.Host]
	if h == nil {
		h = &host{name: j.ref.Host, tried: map[job]trials{}}
		b.hosts[h.name] = h
	}
	if h.waiting() == 0 {
		b.turn = append(b.turn, h)
	}
	if j.kind != importJob {
		h.lists = append(h.lists, j)
		return
	}
	h.imports = append(h.imports, j.ref)
	if b.ahead != nil {
		b.ahead.Expect(j.ref)
	}
}

// start starts as many jobs as there is room for, one of each registry in turn. It returns when to probe the next
// registry; zero when none is parked.
func (b *batch) start(ctx context.Context) (again time.Time) {
	for full := 0; full < len(b.turn) && b.lanes.Free() > 0; {
		h := b.turn[0]
		b.turn = b.turn[1:]
		n, at := b.lanes.Room(h.name)
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
		if n := len(h.imports); b.ahead != nil && j.kind == importJob && n > b.jobs && n%importer.AheadImages == 0 {
			coming := h.imports[b.jobs:] // those before them begin at once
			b.foreseeing.Go(func() { b.ahead.Foresee(ctx, coming) })
		}
		b.lanes.Start(h.name)
		b.running++
		b.progress.started(j)
		round := h.round
		go func() {
			e := ended{job: j, round: round}
			b.do(ctx, &e)
			b.ended <- e
		}()
	}
	return again
}

// do does a job and puts its result into e.
func (b *batch) do(ctx context.Context, e *ended) {
	switch {
	case e.kind == importJob:
		e.result, e.err = b.importer.Import(ctx, e.ref, b.images())
	case e.kind == dateJob:
		e.created, e.err = b.importer.Created(ctx, e.ref, b.images())
	case e.ref.Repository == "":
		e.found, e.warnings, e.err = b.importer.Repositories(ctx, e.ref.Host)
	default:
		var tags []string
		tags, e.err = b.importer.Tags(ctx, e.ref)
		for _, tag := range tags {
			e.found = append(e.found, e.ref.WithTag(tag))
		}
	}
}

// end takes the result of a job. It queues the job again if it was the registry that failed, and there is hope.
func (b *batch) end(e ended) {
	b.running--
	h := b.hosts[e.ref.Host]
	until := b.lanes.End(h.name, e.err)
	var failed *importer.Error
	if !errors.As(e.err, &failed) || !lanes.Parks(failed) {
		if importer.ReasonOf(e.err) != importer.Canceled {
			h.answers()
		}
		b.tell(e)
		return
	}
	again, hopeless := h.fail(e, failed, until, b.clock.Now())
	if again {
		b.wait(e.job)
		b.progress.postponed(e.job, h.notice(failed, until, b.clock.Now()))
		return
	}
	if hopeless == "" {
		b.tell(e)
		return
	}
	b.refuse(e.job, e.err)
	for h.waiting() > 0 {
		j := h.next()
		b.progress.started(j)
		b.refuse(j, &importer.Error{
			Reason: failed.Reason, Host: j.ref.Host, Repository: j.ref.Repository, Reference: nameOf(j.ref), RetryAfter: failed.RetryAfter,
			Message: fmt.Sprintf("not tried, since the registry %s: %s", hopeless, failed.Message),
		})
	}
	b.turn = slices.DeleteFunc(b.turn, func(other *host) bool { return other == h })
}

// refuse reports a job of a registry that is given up.
func (b *batch) refuse(j job, err error) {
	switch {
	case j.kind != dateJob:
		b.tell(ended{job: j, err: err})
	case j.drop():
		b.progress.listed(true)
		b.report.add(j.name(), nil, err)
	default:
		b.progress.listed(false)
	}
}

// nameOf is ref in errors; "" for a registry.
func nameOf(ref reference.Reference) string {
	if ref.Repository == "" {
		return ""
	}
	return ref.String()
}

// tell reports a job that will not be tried again, or goes on with what it found.
func (b *batch) tell(e ended) {
	delete(b.hosts[e.ref.Host].tried, e.job)
	switch {
	case e.kind == importJob:
		b.imported(e)
	case e.kind == dateJob && e.of.dropped:
		b.progress.listed(false)
	case e.kind == dateJob:
		if b.progress.listed(e.err != nil); e.err != nil {
			b.report.add(e.ref.String(), nil, e.err)
		}
		for _, ref := range b.selection.dated(e.of, e.ref, e.created, e.err == nil) {
			b.plan(job{ref: ref})
		}
	case e.err != nil:
		b.progress.listed(true)
		b.report.add(e.name(), nil, e.err)
	default:
		b.progress.listed(false)
		b.report.warn(e.warnings)
		for _, j := range b.selection.among(e.ref, e.found) {
			b.plan(j)
		}
	}
}

func (b *batch) imported(e ended) {
	b.events.imported(e.ref.String(), e.result, e.err)
	b.report.add(e.ref.String(), e.result, e.err)
}
