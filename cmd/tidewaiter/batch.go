package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/lanes"
)

// batch imports many references at a time. No registry holds up another: see package lanes.
type batch struct {
	importer *importer.Importer
	images   func() importer.Images
	ahead    *importer.Ahead // what images returns, if that keeps tags
	lanes    *lanes.Lanes
	events   *eventRecorder
	report   *report
	progress *progress
	clock    clock.Clock
	jobs     int

	waiting map[string][]reference.Reference // by host
	hosts   []string                         // of waiting, the next to be looked at first
	parked  map[string]time.Time             // until when, as the registry asked
	running int
	ended   chan ended

	foreseeing sync.WaitGroup // reads of what waiting references need
}

// ended is the result of an import.
type ended struct {
	ref    reference.Reference
	result *importer.Result
	err    error
}

const (
	// maxParked is how long a registry is waited for that asks to be left alone.
	maxParked = time.Hour
	// maxSilent is how often in a row a registry may fail to answer. After that its other
	// references are not tried.
	maxSilent = 3
)

// newBatch returns a batch that imports up to jobs references at a time from one registry and,
// beside it, one at a time from each of many others.
func newBatch(im *importer.Importer, images func() importer.Images, jobs int, report *report, progress *progress) *batch {
	var ahead *importer.Ahead
	if tagged, ok := images().(importer.Tagged); ok {
		ahead = importer.NewAhead(tagged, clock.RealClock{})
		images = func() importer.Images { return ahead }
	}
	return &batch{
		importer: im, images: images, ahead: ahead, lanes: lanes.New(2*jobs+32, jobs, clock.RealClock{}), clock: clock.RealClock{}, jobs: jobs,
		events: &eventRecorder{}, report: report, progress: progress,
		waiting: map[string][]reference.Reference{}, parked: map[string]time.Time{}, ended: make(chan ended),
	}
}

// importAll imports each reference, whatever happens to the others. It returns an error only if
// the batch itself could not go on.
func (b *batch) importAll(ctx context.Context, references iter.Seq[reference.Reference]) error {
	for ref := range references {
		b.wait(ref)
		b.progress.planned(1)
	}
	defer b.foreseeing.Wait()
	silent := map[string]int{} // times in a row, by host
	for len(b.hosts) > 0 || b.running > 0 {
		again := b.start(ctx)
		var probe <-chan time.Time
		if !again.IsZero() {
			probe = b.clock.After(again.Sub(b.clock.Now()))
		}
		select {
		case e := <-b.ended:
			b.end(e, silent)
		case <-probe:
		case <-ctx.Done():
			for ; b.running > 0; b.running-- {
				e := <-b.ended
				b.tell(e)
			}
			for _, host := range b.hosts {
				b.report.skip(b.waiting[host])
			}
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
	}
	return nil
}

// wait queues a reference behind the others of its registry.
func (b *batch) wait(ref reference.Reference) {
	if len(b.waiting[ref.Host]) == 0 {
		b.hosts = append(b.hosts, ref.Host)
	}
	b.waiting[ref.Host] = append(b.waiting[ref.Host], ref)
	if b.ahead != nil {
		b.ahead.Expect(ref)
	}
}

// start starts as many imports as there is room for, one reference of each registry in turn. It
// returns when to probe the next registry; zero when none is parked.
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
		if n := len(b.waiting[host]); b.ahead != nil && n > b.jobs && n%importer.AheadImages == 0 {
			coming := b.waiting[host][b.jobs:] // those before them begin at once
			b.foreseeing.Go(func() { b.ahead.Foresee(ctx, coming) })
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

// end reports the result of an import, or queues it again if its registry asked to be left
// alone.
func (b *batch) end(e ended, silent map[string]int) {
	b.running--
	host := e.ref.Host
	until := b.lanes.End(host, e.err)
	switch importer.ReasonOf(e.err) {
	case importer.RateLimited:
		if b.clock.Since(b.lanes.FailingSince(host)) < maxParked && until.Sub(b.clock.Now()) <= maxParked {
			b.wait(e.ref)
			why := ""
			if until.After(b.parked[host]) { // else it is known already
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
	b.tell(e)
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

func (b *batch) tell(e ended) {
	b.events.imported(e.ref.String(), e.result, e.err)
	b.report.add(e.ref.String(), e.result, e.err)
}

// importCatalogs imports the tags that s chooses from all repositories of some registries.
func (b *batch) importCatalogs(ctx context.Context, registries []reference.Reference, s *selection) error {
	var all []reference.Reference
	for _, registry := range registries {
		host := registry.Host
		var repositories []reference.Reference
		var warnings []string
		err := b.patiently(ctx, host, func() (err error) {
			repositories, warnings, err = b.importer.Repositories(ctx, host)
			return err
		})
		if err != nil {
			b.report.add(host+"/", nil, err)
			continue
		}
		b.report.warn(warnings)
		all = append(all, repositories...)
	}
	return b.importTags(ctx, all, s)
}

// importTags imports the tags that s chooses from some repositories.
func (b *batch) importTags(ctx context.Context, repositories []reference.Reference, s *selection) error {
	found := make([][]reference.Reference, len(repositories))
	var group errgroup.Group
	group.SetLimit(b.jobs)
	for i, repository := range repositories {
		if !s.hasRepository(repository.Repository) {
			continue
		}
		group.Go(func() error {
			var tags []string
			err := b.patiently(ctx, repository.Host, func() (err error) {
				tags, err = b.importer.Tags(ctx, repository)
				return err
			})
			if err != nil {
				b.report.add(repository.String(), nil, err)
				return nil
			}
			var chosen []reference.Reference
			for _, tag := range tags {
				if ref := repository.WithTag(tag); s.has(ref) {
					chosen = append(chosen, ref)
				}
			}
			found[i] = b.byDate(ctx, s, chosen)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	all := slices.Concat(found...)
	if len(all) > maxReferences {
		return fmt.Errorf("these are more than %d tags: import them in parts, with --include", maxReferences)
	}
	return b.importAll(ctx, slices.Values(all))
}

// patiently calls ask, and again for up to an hour while the host asks to be left alone.
func (b *batch) patiently(ctx context.Context, host string, ask func() error) error {
	for begun := b.clock.Now(); ; {
		err := ask()
		var e *importer.Error
		if !errors.As(err, &e) || e.Reason != importer.RateLimited {
			return err
		}
		wait := max(e.RetryAfter, time.Second)
		if b.clock.Since(begun)+wait > maxParked {
			return err
		}
		b.progress.noteOnce(fmt.Sprintf("%s asks to be left alone for %s; its tags are listed then", host, wait.Round(time.Second)))
		select {
		case <-b.clock.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
