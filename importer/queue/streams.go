package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// doFollowed imports what tags of image streams follow, and tells the streams the result of each attempt.
func (w *Worker) doFollowed(ctx context.Context, j *push.Job) error {
	ref := j.Events[0].Reference()
	result, err := w.importPresent(ctx, w.Importer, ref, w.Images)
	if err == nil {
		w.notifyFound(ctx, result, ref, fmt.Sprintf("Image streams follow %s", ref))
	}
	if w.Streams == nil || ctx.Err() != nil {
		return err
	}
	if told := w.Streams.Imported(ctx, ref, err); told != nil {
		return errors.Join(err, fmt.Errorf("telling the image streams that follow %s: %w", ref, told))
	}
	return err
}

// maxScheduled is how many references a sweep remembers as imported. References beyond may be imported twice.
const maxScheduled = 100_000

// sweepScheduled imports the references that tags of image streams want imported regularly, except those in
// repositories that were swept.
func (w *Worker) sweepScheduled(ctx context.Context, silent map[string]bool) (swept int, err error) {
	if w.Streams == nil {
		return 0, nil
	}
	done := map[reference.Reference]bool{}
	for _, repository := range w.swept {
		done[repository] = true
	}
	err = w.Streams.Scheduled(ctx, func(ref reference.Reference) error {
		if done[ref] || done[ref.Bare()] || silent[ref.Host] {
			return ctx.Err()
		}
		if len(done) < maxScheduled {
			done[ref] = true
		}
		swept++
		err := guard(w.Logger, func() error { return w.sweepFollowed(ctx, ref) })
		if err != nil && ctx.Err() == nil {
			silent[ref.Host] = isSilent(err)
			w.failing.Warn(ref.String(), "a sweep could not import what an image stream follows", "reference", ref.String(), "err", err)
		}
		return ctx.Err()
	})
	return swept, err
}

// sweepFollowed imports what a tag of an image stream follows, and tells the streams that it is there.
func (w *Worker) sweepFollowed(ctx context.Context, ref reference.Reference) error {
	imported, err := w.importPresent(ctx, w.Importer, ref, w.Images)
	absent := importer.ReasonOf(err) == importer.NotAnImage || importer.ReasonOf(err) == importer.NotFound
	result := "known"
	switch {
	case absent:
	case err != nil:
		result = "failed"
	case w.notifyFound(ctx, imported, ref, "Found by a sweep: "+ref.String()):
		result = "imported"
	}
	w.metrics.swept.WithLabelValues(result).Inc()
	switch {
	case absent:
		return nil
	case err != nil:
		return err
	}
	return w.Streams.Imported(ctx, ref, nil)
}

// isSilent reports whether a registry does not answer now.
func isSilent(err error) bool {
	return importer.ReasonOf(err) == importer.Unreachable || importer.ReasonOf(err) == importer.Timeout
}
