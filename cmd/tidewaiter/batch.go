package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/lanes"
)

// batch imports many references at a time. No registry holds up another's: see
// package lanes.
type batch struct {
	importer *importer.Importer
	images   func() importer.Images
	lanes    *lanes.Lanes
	events   *eventRecorder
	report   *report
	progress *progress
	clock    clock.Clock

	waiting map[string][]reference.Reference // by host
	hosts   []string                         // of waiting, the next to be looked at first
	parked  map[string]time.Time             // until when, as told
	running int
	ended   chan ended
}

// ended is an import that has ended.
type ended struct {
	ref    reference.Reference
	result *importer.Result
	err    error
}

const (
	// maxParked is how long a registry is waited for that asks to be left alone.
	maxParked = time.Hour
	// maxSilent is how often in a row a registry may not answer. What waits for it
	// then is not tried.
	maxSilent = 3
)

// newBatch imports up to jobs references at a time from one registry, and one at a time
// from each of many others beside it.
func newBatch(im *importer.Importer, images func() importer.Images, jobs int, report *report, progress *progress) *batch {
	return &batch{
		importer: im, images: images, lanes: lanes.New(2*jobs+32, jobs, clock.RealClock{}), clock: clock.RealClock{},
		events: &eventRecorder{}, report: report, progress: progress,
		waiting: map[string][]reference.Reference{}, parked: map[string]time.Time{}, ended: make(chan ended),
	}
}

// importAll imports each reference, whatever becomes of the others. It returns
// an error only if the batch itself could not go on.
func (b *batch) importAll(ctx context.Context, references iter.Seq[reference.Reference]) error {
	for ref := range references {
		b.wait(ref)
	}
	silent := map[string]int{} // times in a row, by host
	for len(b.hosts) > 0 || b.running > 0 {
		again := b.start(ctx)
		var probe <-chan time.Time
		if !again.IsZero() {
			probe = b.clock.After(again.Sub(b.clock.Now()))
		}
		select {
		case e := <-b.ended:
			b.end(ctx, e, silent)
		case <-probe:
		case <-ctx.Done():
			for ; b.running > 0; b.running-- {
				e := <-b.ended
				b.tell(ctx, e)
			}
			for _, host := range b.hosts {
				b.report.skip(b.waiting[host])
			}
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
	}
	return nil
}

// wait puts a reference behind the others of its registry.
func (b *batch) wait(ref reference.Reference) {
	if len(b.waiting[ref.Host]) == 0 {
		b.hosts = append(b.hosts, ref.Host)
	}
	b.waiting[ref.Host] = append(b.waiting[ref.Host], ref)
}

// start begins what there is room for, one reference of each registry in turn. It
// returns when the next registry is to be probed; zero when none is parked.
func (b *batch) start(ctx context.Context) (again time.Time) {
	for full := 0; full < len(b.hosts) && b.lanes.Free() > 0; {
		host := b.hosts[0]
		b.hosts = b.hosts[1:]
		n, at := b.lanes.Room(host)
		if n == 0 {
			full++
			b.hosts = append(b.hosts, host)
			if !at.IsZero() && (again.IsZero() || at.Before(again)) {
				again = at
			}
			continue
		}
		full = 0
		ref := b.waiting[host][0]
		if b.waiting[host] = b.waiting[host][1:]; len(b.waiting[host]) > 0 {
			b.hosts = append(b.hosts, host)
		} else {
			delete(b.waiting, host)
		}
		b.lanes.Start(host)
		b.running++
		b.progress.started(ref.String())
		go func() {
			result, err := b.importer.Import(ctx, ref, b.images())
			b.ended <- ended{ref, result, err}
		}()
	}
	return again
}

// end tells what became of an import, or has it wait again for a registry that asked to
// be left alone.
func (b *batch) end(ctx context.Context, e ended, silent map[string]int) {
	b.running--
	host := e.ref.Host
	until := b.lanes.End(host, e.err)
	switch importer.ReasonOf(e.err) {
	case importer.RateLimited:
		if b.clock.Since(b.lanes.FailingSince(host)) < maxParked && until.Sub(b.clock.Now()) <= maxParked {
			b.wait(e.ref)
			why := ""
			if until.After(b.parked[host]) { // else it is known
				b.parked[host] = until
				why = fmt.Sprintf("%s asks to be left alone for %s; %d references wait for it", host, until.Sub(b.clock.Now()).Round(time.Second), len(b.waiting[host]))
			}
			b.progress.postponed(why)
			return
		}
	case importer.Unreachable, importer.Timeout:
		silent[host]++
	default:
		silent[host] = 0
	}
	b.tell(ctx, e)
	if silent[host] < maxSilent {
		return
	}
	for i, h := range b.hosts {
		if h == host {
			b.hosts = append(b.hosts[:i:i], b.hosts[i+1:]...)
			break
		}
	}
	var why *importer.Error
	errors.As(e.err, &why)
	for _, ref := range b.waiting[host] {
		b.progress.started(ref.String())
		b.report.add(ref.String(), nil, &importer.Error{
			Reason: why.Reason, Host: ref.Host, Repository: ref.Repository, Reference: ref.String(),
			Message: fmt.Sprintf("not tried, since the registry did not answer %d times in a row: %s", maxSilent, why.Message),
		})
	}
	delete(b.waiting, host)
}

func (b *batch) tell(ctx context.Context, e ended) {
	b.events.imported(ctx, e.ref.String(), e.result, e.err)
	b.report.add(e.ref.String(), e.result, e.err)
}

// importTags imports every tag of each repository.
func (b *batch) importTags(ctx context.Context, repositories []reference.Reference) error {
	for _, repository := range repositories {
		tags, err := b.importer.Tags(ctx, repository)
		if err != nil {
			b.report.add(repository.String(), nil, err)
			continue
		}
		if err := b.importAll(ctx, func(yield func(reference.Reference) bool) {
			for _, tag := range tags {
				if !yield(repository.WithTag(tag)) {
					return
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
