package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
)

// SweepOptions say which repositories are swept for changes that no notification
// reported: some registries drop notifications (zot, GitHub), and some send none for a
// tag that was added or removed (Harbor).
//
// A sweep also imports the references that tags of image streams want imported regularly
// (Streams.Scheduled).
//
// A sweep imports every tag of a repository, which costs a few small requests for a known
// image, and then asks about known references that it has not met. It does not find what
// has no tag, as that is not listed.
type SweepOptions struct {
	// Repositories, host/path, at most 1,000.
	Repositories []string
	// Every is the time from the beginning of one sweep to the next (6 h), at least a
	// minute. The first begins with Run, and a slow sweep delays the next.
	Every time.Duration
}

// Bounds of SweepOptions.
const (
	maxSwept      = 1000
	minSweepEvery = time.Minute
)

// Validate reports what is wrong with the options.
func (o SweepOptions) Validate() error {
	_, err := o.parse()
	return err
}

// parse returns the repositories.
func (o SweepOptions) parse() ([]reference.Reference, error) {
	if o.Every != 0 && o.Every < minSweepEvery {
		return nil, fmt.Errorf("every %v is less than %v", o.Every, minSweepEvery)
	}
	if len(o.Repositories) > maxSwept {
		return nil, fmt.Errorf("%d repositories are more than %d", len(o.Repositories), maxSwept)
	}
	var out []reference.Reference
	for _, s := range o.Repositories {
		ref, err := reference.ParseRepository(s)
		if err != nil {
			return nil, err
		}
		out = append(out, ref)
	}
	return out, nil
}

// sweepEvery sweeps until ctx is done.
func (w *Worker) sweepEvery(ctx context.Context) {
	if len(w.swept) == 0 && w.Streams == nil {
		return
	}
	ticker := w.Clock.NewTicker(w.Sweep.Every)
	defer ticker.Stop()
	for {
		w.sweep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// sweep goes through the repositories, one tag at a time: it is in no hurry, and pushes
// go first.
func (w *Worker) sweep(ctx context.Context) {
	ctx, start := importer.Because(ctx, "sweep"), w.Clock.Now()
	swept, silent := 0, map[string]bool{} // hosts that do not answer now
	for _, repository := range w.swept {
		if silent[repository.Host] {
			continue
		}
		if err := guard(w.Logger, func() error { return w.sweepRepository(ctx, repository) }); err == nil {
			swept++
		} else if ctx.Err() == nil {
			silent[repository.Host] = isSilent(err)
			w.failing.Warn(repository.Name(), "a sweep left a repository before its end", "repository", repository.Name(), "err", err)
		}
	}
	scheduled, err := w.sweepScheduled(ctx, silent)
	if err != nil && ctx.Err() == nil {
		w.Logger.Error("A sweep cannot read what image streams follow", "err", err)
	}
	if len(w.swept)+scheduled > 0 {
		w.Logger.Info("Swept", "repositories", swept, "of", len(w.swept), "scheduled", scheduled, "duration", w.Clock.Since(start))
	}
}

// sweepRepository imports every tag, and asks about the other known references. It goes
// on after an image that cannot be imported, and gives up when the registry does not
// answer.
func (w *Worker) sweepRepository(ctx context.Context, repository reference.Reference) error {
	tags, err := w.Importer.Tags(ctx, repository)
	if err != nil && importer.ReasonOf(err) != importer.NotFound {
		return err
	}
	images := importer.NewAhead(w.Images, w.Clock)
	for _, tag := range tags {
		images.Expect(repository.WithTag(tag))
	}
	for _, tag := range tags {
		result, err := w.sweepTag(ctx, repository.WithTag(tag), images)
		w.metrics.swept.WithLabelValues(result).Inc()
		if err == nil {
			continue
		}
		if ctx.Err() != nil || temporary(err) {
			return err
		}
		w.failing.Warn(repository.Name(), "a sweep could not import a tag", "repository", repository.Name(), "tag", tag, "err", err)
	}
	return w.goneRepository(ctx, repository)
}

// sweepTag imports a tag and reports it if it is new.
func (w *Worker) sweepTag(ctx context.Context, ref reference.Reference, images importer.Images) (result string, err error) {
	imported, err := w.importPresent(ctx, w.Importer, ref, images)
	switch {
	case importer.ReasonOf(err) == importer.NotAnImage, importer.ReasonOf(err) == importer.NotFound: // a chart, say, or deleted since
		return "known", nil
	case err != nil:
		return "failed", err
	}
	if w.notifyFound(ctx, imported, ref, "Found by a sweep: "+ref.String()) {
		return "imported", nil
	}
	return "known", nil
}
