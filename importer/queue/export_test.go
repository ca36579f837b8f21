package queue

import "context"

// SweepOnce is one sweep.
func (w *Worker) SweepOnce(ctx context.Context) { w.sweep(ctx) }
