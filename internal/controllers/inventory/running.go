package inventory

import (
	"context"
	"log/slog"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Times and bounds of counting what runs.
const (
	// runningRest is the time between two counts of what runs. A count begins earlier if something has
	// changed or pods were not known, but never before minRest, nor before rest times the duration of
	// the last count.
	runningRest = 5 * time.Minute
	// runningPage is how many images are read at a time. The server ends a page of large ones
	// earlier.
	runningPage = 100
)

// Running counts what pods use.
type Running struct {
	// UsedAsOf is when it was counted; nil if that could not be done.
	UsedAsOf *metav1.Time `json:"usedAsOf,omitempty"`
	// Used counts the pods by the verdicts on the images that their containers name, by the policies
	// that apply in their namespaces. A pod counts under every verdict that one of its containers has,
	// as clusterpods selects it.
	Used map[string]int64 `json:"used,omitempty"`
	// Gone is how many images that pods use are missing from a registry of theirs, so that another
	// node cannot pull them; nil if that could not be counted.
	Gone *int64 `json:"gone,omitempty"`
	// GoneSince is when the first of these was found to be missing.
	GoneSince *metav1.Time `json:"goneSince,omitempty"`
	// Unknown are the reasons why there may be more images.
	Unknown []string `json:"goneUnknown,omitempty"`
}

// Images reads Images; imageclient.Client does.
type Images interface {
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// NewGoneGauge returns a gauge for [Options], which the caller registers.
func NewGoneGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "gone_running_images", "Images that pods use and a registry no longer has; absent while that is not known.")
}

// NewVerdictsGauge returns a gauge for [Options], which the caller registers.
func NewVerdictsGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "running_pods", "Known pods by the verdicts on what their containers name, by the policies that count for their namespaces. A pod counts under every verdict that one of its containers has. Absent while that could not be counted.", "verified")
}

// recountRunning counts what runs soon. It does not wait.
func (c *Counter) recountRunning() { c.queue.Add(running) }

// Pods reads the pods.
type Pods interface {
	// EachVerdict calls use for each pod, once with every verdict that one of its containers has.
	EachVerdict(ctx context.Context, use func(verified string)) error
	// StaleReasons are the reasons why there may be more.
	StaleReasons() []string
}

// countRunning counts what runs, and returns when to do so again.
func (c *Counter) countRunning(ctx context.Context) time.Duration {
	counted, used := c.readRunning(ctx)
	if ctx.Err() != nil {
		return 0
	}
	if c.o.Gone.Reset(); counted.Gone != nil && (*counted.Gone > 0 || len(counted.Unknown) == 0) {
		c.o.Gone.WithLabelValues().Set(float64(*counted.Gone))
	}
	c.o.Verified.Reset()
	for word, n := range counted.Used {
		c.o.Verified.WithLabelValues(word).Set(float64(n))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if used != nil {
		if c.used = used; c.last != nil {
			c.first = c.last.ranks.first(c.used)
		}
	}
	if c.running = counted; len(counted.Unknown) > 0 {
		return minRest // a cluster may be read by then
	}
	return runningRest
}

// readRunning counts what runs, and ranks the images that pods use; they are nil if it fails.
func (c *Counter) readRunning(ctx context.Context) (Running, ranks) {
	now, gone, used := metav1.NewTime(c.o.Clock.Now()), int64(0), ranks{}
	running := Running{UsedAsOf: &now, Used: map[string]int64{}, Gone: &gone}
	err := pages.Each(ctx, metav1.ListOptions{FieldSelector: "used=true", Limit: runningPage}, c.o.Images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			image := &list.Items[i]
			if since, isGone := goneSince(image); isGone {
				gone++
				if !since.IsZero() && (running.GoneSince == nil || since.Before(running.GoneSince)) {
					running.GoneSince = &since
				}
			}
			verdict, _, _ := signatures.Summary(image)
			used.add(image, verdict, layerBytes(image), c.useOf(image))
		}
		return nil
	})
	if err == nil {
		for _, word := range verdicts.All {
			running.Used[word] = 0
		}
		err = c.o.Pods.EachVerdict(ctx, func(verified string) { running.Used[verified]++ })
	}
	unknown := slices.Clone(c.o.Pods.StaleReasons())
	if err != nil {
		if ctx.Err() == nil {
			slog.Warn("Counting the images that run failed, will retry", "err", err)
		}
		return Running{Unknown: append(unknown, err.Error())}, nil
	}
	running.Unknown = unknown
	return running, used
}

// useOf returns which pods use an image.
func (c *Counter) useOf(image *imagev1.Image) (u use) {
	if c.o.Use == nil {
		return u
	}
	u.pods, _ = c.o.Use.Pods(image.Name, image)
	if c.o.Drift != nil {
		n, _ := c.o.Drift.Running(c.o.Use.Keys(image.Name, image))
		u.drifted = n.Outdated > 0
	}
	return u
}

// goneSince returns when a registry was found to lack an image; zero if that time was not recorded.
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
