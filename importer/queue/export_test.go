package queue

import (
	"context"
	"slices"
	"time"
)

// SweepOnce is one sweep of each entry, one after the other; the one of SweepOptions itself is the
// last.
func (w *Worker) SweepOnce(ctx context.Context) { w.sweepAll(ctx, true) }

// SweepMoved is the sweep of registries that the Worker has come to own.
func (w *Worker) SweepMoved(ctx context.Context) { w.sweepAll(ctx, false) }

func (w *Worker) sweepAll(ctx context.Context, again bool) {
	for _, e := range slices.Backward(w.plan.Load().entries) {
		w.sweep(ctx, e, again)
	}
}

// Schedule returns what says which entries of a plan are due at a time, and when the next one is:
// base is that of SweepOptions, the others have the path of their first repository.
func Schedule(o SweepOptions) (due func(now time.Time) (entries []string, next time.Time), err error) {
	plan, err := o.parse()
	times := schedule{plan: plan}
	return func(now time.Time) (names []string, next time.Time) {
		entries, next := times.due(now)
		for _, e := range entries {
			if e.isBase {
				names = append(names, "base")
			} else {
				names = append(names, e.repositories[0].Repository)
			}
		}
		return names, next
	}, err
}

// SweepMatches reports whether a pattern of SweepOptions names a path.
func SweepMatches(pattern, path string) bool {
	p, err := parseSweepPattern(pattern)
	return err == nil && p.matches(path)
}
