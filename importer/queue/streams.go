package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// doFollowed imports what tags of image streams follow, and tells the streams the result of each
// attempt.
func (w *Worker) doFollowed(ctx context.Context, j *push.Job) error {
	ref := j.Events[0].Reference()
	result, err := w.importPresent(ctx, w.Importer(), ref, w.Images)
	failed := err
	if result != nil {
		w.notifyFound(ctx, result, ref, fmt.Sprintf("Image streams follow %s", ref))
		failed = nil // the job is tried again for the signatures' sake
	}
	if w.Streams == nil || ctx.Err() != nil {
		return err
	}
	if told := w.Streams.Imported(ctx, ref, failed); told != nil {
		return errors.Join(err, fmt.Errorf("updating the image streams that follow %s: %w", ref, told))
	}
	return err
}

// maxScheduled is how many references a sweep remembers. Those beyond are imported after these,
// perhaps twice.
const maxScheduled = 100_000

// sweepFollowed imports what a tag of an image stream follows, and tells the streams that it is
// there.
func (w *Worker) sweepFollowed(ctx context.Context, ref reference.Reference) error {
	imported, err := w.importPresent(ctx, w.Importer(), ref, w.Images)
	absent := pull.ReasonOf(err) == pull.NotAnImage || pull.ReasonOf(err) == pull.NotFound
	result := "known"
	switch {
	case absent:
	case imported == nil:
		result = "failed"
	case w.notifyFound(ctx, imported, ref, "Found by a sweep: "+ref.String()):
		result = "imported"
	}
	w.metrics.swept.WithLabelValues(result).Inc()
	switch {
	case absent:
		return nil
	case imported == nil:
		return err
	}
	return errors.Join(err, w.Streams.Imported(ctx, ref, nil))
}
