// Package promotion moves guarded tags of image streams to images that were verified.
package promotion

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

const (
	maxWaiting = 10_000           // images
	retry      = 10 * time.Second // after a failure
)

// Streams moves the guarded tags of streams that wait for an image; with "", for any image.
type Streams interface {
	Promote(ctx context.Context, image string) error
}

type promoter struct{ Streams }

// Reconcile implements [reconcile.Reconciler]. Keys are images, or "" for all.
func (p promoter) Reconcile(ctx context.Context, image string) (time.Duration, error) {
	return 0, p.Promote(ctx, image)
}

// New returns the controller of promotions. Add images to it that were verified. It begins with all
// streams, because a server may have stopped between a verdict and the move.
func New(streams Streams) *reconcile.Controller[string] {
	c := reconcile.New(promoter{streams}, reconcile.Options[string]{Task: "moving tags to verified images", Max: maxWaiting, Retry: retry, MaxRetry: retry})
	c.Add("")
	return c
}
