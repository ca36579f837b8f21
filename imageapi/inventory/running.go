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
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
)

// Times and bounds of RunRunning.
const (
	// runningRest is the time between two counts of what runs, unless something is found to be gone
	// or pods are not known. It is never less than minRest, or than rest times as long as a count
	// takes.
	runningRest = 5 * time.Minute
	// runningPage is how many images are read at a time. The server ends a page of large ones
	// earlier.
	runningPage = 100
)

// Running counts the images that pods use.
type Running struct {
	// UsedAsOf is when they were counted; nil if that could not be done.
	UsedAsOf *metav1.Time `json:"usedAsOf,omitempty"`
	// Used counts them by their verdict.
	Used map[string]int64 `json:"used,omitempty"`
	// Gone is how many of them one of their registries no longer has, so that another node cannot
	// pull them; nil if that could not be counted.
	Gone *int64 `json:"gone,omitempty"`
	// GoneSince is when that was found of the one that is gone longest.
	GoneSince *metav1.Time `json:"goneSince,omitempty"`
	// Unknown says why there may be more.
	Unknown []string `json:"goneUnknown,omitempty"`
}

// Images reads Images; imageclient.Client does.
type Images interface {
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// NewGoneGauge returns a gauge for [Counter.RunRunning], which the caller registers.
func NewGoneGauge() *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Name: "gone_running_images", StabilityLevel: metrics.ALPHA,
		Help: "Images that pods use and a registry no longer has; absent while that is not known.",
	}, nil)
}

// RecountRunning has what runs counted soon. It does not wait.
func (c *Counter) RecountRunning() {
	select {
	case c.wakeRunning <- struct{}{}:
	default: // it is asked for already
	}
}

// RunRunning counts what runs until ctx is done. staleReasons says why pods may be unknown.
func (c *Counter) RunRunning(ctx context.Context, images Images, staleReasons func() []string, gone *metrics.GaugeVec) {
	for {
		begun := c.clock.Now()
		running := c.countRunning(ctx, images, staleReasons)
		if ctx.Err() != nil {
			return
		}
		if gone.Reset(); running.Gone != nil && (*running.Gone > 0 || len(running.Unknown) == 0) {
			gone.WithLabelValues().Set(float64(*running.Gone))
		}
		c.mu.Lock()
		c.running = running
		c.mu.Unlock()
		least := max(minRest, rest*c.clock.Since(begun))
		pause := max(least, runningRest)
		if len(running.Unknown) > 0 {
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
		case <-c.wakeRunning:
		case <-c.clock.After(again.Sub(c.clock.Now())):
		}
	}
}

func (c *Counter) countRunning(ctx context.Context, images Images, staleReasons func() []string) Running {
	now, gone := metav1.NewTime(c.clock.Now()), int64(0)
	running := Running{UsedAsOf: &now, Used: map[string]int64{}, Gone: &gone}
	err := pages.Each(ctx, metav1.ListOptions{FieldSelector: "used=true", Limit: runningPage}, images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			image := &list.Items[i]
			running.Used[c.verdict(image)]++
			if since, isGone := goneSince(image); isGone {
				gone++
				if !since.IsZero() && (running.GoneSince == nil || since.Before(running.GoneSince)) {
					running.GoneSince = &since
				}
			}
		}
		return nil
	})
	unknown := slices.Clone(staleReasons())
	if err != nil {
		if ctx.Err() == nil {
			slog.Warn("Counting the images that run failed, will retry", "err", err)
		}
		return Running{Unknown: append(unknown, err.Error())}
	}
	running.Unknown = unknown
	return running
}

// goneSince is when it was found that a registry no longer has an image; zero if that was not
// recorded.
func goneSince(image *imagev1.Image) (since metav1.Time, isGone bool) {
	for ref, text := range annotation.Missing(image.Annotations) {
		if ref.Digest != image.Name || ref.Tag != "" {
			continue
		}
		isGone = true
		if at, err := time.Parse(time.RFC3339, text); err == nil && (since.IsZero() || at.Before(since.Time)) {
			since = metav1.NewTime(at)
		}
	}
	return since, isGone
}
