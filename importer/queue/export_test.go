package queue

import "context"

// SweepOnce is one sweep.
func (w *Worker) SweepOnce(ctx context.Context) { w.sweep(ctx, true) }

// SweepMoved is the sweep of registries that the Worker has come to own.
func (w *Worker) SweepMoved(ctx context.Context) { w.sweep(ctx, false) }

// SweepMatches reports whether a pattern of SweepOptions names a path.
func SweepMatches(pattern, path string) bool {
	p, err := parseSweepPattern(pattern)
	return err == nil && p.matches(path)
}
