package inventory

import (
	"context"
	"log/slog"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
)

// goneAndUsed selects the images that pods use and that a registry no longer has.
const goneAndUsed = selectors.Gone + "=true,used=true"

// Times and bounds of RunGone.
const (
	// goneRest is the time between two counts of what is gone, unless something is found to be gone or pods are not known. It is
	// never less than minRest, or than rest times as long as a count takes.
	goneRest = 5 * time.Minute
	// gonePage is how many images are read, and held in memory, at a time.
	gonePage = 10
)

// Gone are the images that pods use and that one of their registries no longer has: another node cannot pull them.
type Gone struct {
	// Images is how many are known; nil if that could not be counted.
	Images *int64 `json:"gone,omitempty"`
	// Unknown says why there may be more.
	Unknown []string `json:"goneUnknown,omitempty"`
}

// Images reads Images; imageclient.Client does.
type Images interface {
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// NewGoneGauge returns a gauge for [Counter.RunGone], which the caller registers.
func NewGoneGauge() *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Name: "gone_running_images", StabilityLevel: metrics.ALPHA,
		Help: "Images that pods use and a registry no longer has; absent while that is not known.",
	}, nil)
}

// RecountGone has what is gone counted soon. It does not wait.
func (c *Counter) RecountGone() {
	select {
	case c.wakeGone <- struct{}{}:
	default: // it is asked for already
	}
}

// RunGone counts what is gone until ctx is done. doubts says why pods may be unknown.
func (c *Counter) RunGone(ctx context.Context, images Images, doubts func() []string, gauge *metrics.GaugeVec) {
	for {
		begun := c.clock.Now()
		gone := countGone(ctx, images, doubts)
		if ctx.Err() != nil {
			return
		}
		if gauge.Reset(); gone.Images != nil && (*gone.Images > 0 || len(gone.Unknown) == 0) {
			gauge.WithLabelValues().Set(float64(*gone.Images))
		}
		c.mu.Lock()
		c.gone = gone
		c.mu.Unlock()
		least := max(minRest, rest*c.clock.Since(begun))
		pause := max(least, goneRest)
		if len(gone.Unknown) > 0 {
			pause = least // a cluster may be read by then
		}
		again := begun.Add(pause)
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(least): // what wakes it may come in great numbers
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wakeGone:
		case <-c.clock.After(again.Sub(c.clock.Now())):
		}
	}
}

func countGone(ctx context.Context, images Images, doubts func() []string) Gone {
	var n int64
	err := pages.Each(ctx, metav1.ListOptions{FieldSelector: goneAndUsed, Limit: gonePage}, images.List, func(list *imagev1.ImageList) error {
		n += int64(len(list.Items))
		return nil
	})
	unknown := slices.Clone(doubts())
	if err != nil {
		if ctx.Err() == nil {
			slog.Warn("Counting the images that are gone from their registries failed, will retry", "err", err)
		}
		return Gone{Unknown: append(unknown, err.Error())}
	}
	return Gone{Images: &n, Unknown: unknown}
}
