// Package inventory counts stored objects: images by verdict, the bytes of their layers with and
// without sharing, the pushes of the last days, pods by the verdicts on the images that they name,
// and images that run although their registries no longer have them.
//
// Images are counted while a sweep (internal/controllers/reverify) goes through all of them anyway,
// so a count costs no reads of its own. Between sweeps, images that change are counted again. Tags
// are counted on request. What runs is counted every few minutes, and after verdicts, tags or pods
// have changed. Each of these two counts takes at most a fiftieth of the time. Each count records
// when it was made.
package inventory

import (
	"context"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/signatures"
)

const (
	// Days is for how many days pushes are counted, including today.
	Days = 7
	// tagPage is how many tags are read, and held in memory, at a time.
	tagPage = 500
	// rest is the pause between two counts of tags, as a multiple of the time that a count takes.
	rest = 50
	// minRest is the shortest such pause.
	minRest = 10 * time.Second
)

// Summary has the numbers of stored objects. A time is nil until the first count has ended; until
// then the numbers beside it mean nothing.
type Summary struct {
	// ImagesAsOf is when the images were counted.
	ImagesAsOf *metav1.Time `json:"imagesAsOf,omitempty"`
	Images     int64        `json:"images"`
	// Verified counts the images by their verdict: True, ByIndex, False, Unknown, Unsigned,
	// NoPolicy, Excepted.
	Verified map[string]int64 `json:"verified,omitempty"`
	// LayerBytes is the sum of the layers of each image. DistinctLayerBytes counts a layer once even
	// if several images share it.
	LayerBytes         int64 `json:"layerBytes"`
	DistinctLayerBytes int64 `json:"distinctLayerBytes"`
	// Estimated is true if DistinctLayerBytes was estimated from a sample of the layers.
	Estimated bool `json:"estimated,omitempty"`
	// First has the digests of the first images, at most 1,000, in the requested order.
	First []string `json:"first,omitempty"`
	// Outdated counts the pods that run another image than their tag leads to now; nil if that is not
	// known.
	Outdated *int64 `json:"outdated,omitempty"`
	// OutdatedUnknown counts the pods that may be outdated: it is not known what they run or where
	// their tag leads.
	OutdatedUnknown int64 `json:"outdatedUnknown,omitempty"`
	// PushesAsOf is when the pushes were counted.
	PushesAsOf *metav1.Time `json:"pushesAsOf,omitempty"`
	// Pushes are the last days, the oldest first.
	Pushes []Day `json:"pushes,omitempty"`
	Running
}

// Day is a day in UTC.
type Day struct {
	Date string `json:"date"` // as in 2026-05-28
	// Tags counts how often a tag appeared or moved to another image.
	Tags int64 `json:"tags"`
}

// Tags reads ImageTags; imageclient.Client does.
type Tags interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
}

// Use knows which pods run an image; an answers.Use does.
type Use interface {
	Pods(digest string, image *imagev1.Image) (n int, complete bool)
	// Keys are the keys by which pods use the image.
	Keys(digest string, image *imagev1.Image) []string
}

// Drift counts pods that run another image than their tag leads to; a [drift.Tracker] does.
type Drift interface {
	// Pods returns the counts. known is false until there are any.
	Pods() (n drift.Counts, known bool)
	// Running returns the counts of the pods that run one of digests.
	Running(digests []string) (n drift.Counts, known bool)
	// RecheckImage has tags compared again that lead to an image: it is new or gone.
	RecheckImage(digest string)
}

// Counter counts. It is a reverify.Tally.
type Counter struct {
	o     Options
	queue *reconcile.Controller[string]

	mu      sync.Mutex
	now     Summary
	first   map[Among]map[string][]string // digests at the last count, by order
	running Running
	used    ranks                // of the last count of what runs
	due     map[string]time.Time // when pushes and running may be counted again
	last    *count               // the last complete count of images; nil if there is none
	current *count               // the count in progress; nil between counts
}

// Options of a Counter: what it reads, and the gauges that it sets. All but Use, Drift and Recount
// are required for Run; the others for the counts of a sweep are none.
type Options struct {
	Tags   Tags
	Images Images
	Pods   Pods
	// Use knows how many pods use an image; nil if nothing does.
	Use Use
	// Drift counts the pods that run another image than their tag leads to; nil if nothing does.
	Drift Drift
	// Recount has what runs counted again soon.
	Recount reconcile.Signal
	// Gone and Verified are set by each count of what runs.
	Gone, Verified *metrics.GaugeVec
	Clock          clock.WithTicker
}

// Keys of the counts that are made between sweeps.
const (
	pushes  = "pushes"
	running = "running"
)

// New returns a Counter.
func New(o Options) *Counter {
	c := &Counter{o: o, due: map[string]time.Time{}}
	c.queue = reconcile.New(c, reconcile.Options[string]{Task: "counting", Workers: 2, Signals: map[string]<-chan struct{}{running: o.Recount}, Clock: o.Clock})
	return c
}

// Begin is part of reverify.Tally.
func (c *Counter) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.current = nil, newCount()
}

// Resume is part of reverify.Tally.
func (c *Counter) Resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || c.last.parts == nil {
		return false
	}
	c.current = c.last
	return true
}

// Count is part of reverify.Tally.
func (c *Counter) Count(image *imagev1.Image) {
	verdict, _, _ := signatures.Summary(image)
	c.recheck(image.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.remove(image.Name)
	c.current.add(image, verdict)
}

func (c *Counter) recheck(name string) {
	if c.o.Drift != nil {
		c.o.Drift.RecheckImage(name)
	}
}

// Gone is part of reverify.Tally.
func (c *Counter) Gone(name string) {
	c.recheck(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.remove(name)
}

// End is part of reverify.Tally. It discards an incomplete count. After a complete one it counts
// what runs again, too, because that depends on the images.
func (c *Counter) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		now := metav1.NewTime(c.o.Clock.Now())
		c.last = c.current
		s := c.last.summary()
		s.ImagesAsOf, s.PushesAsOf, s.Pushes = &now, c.now.PushesAsOf, c.now.Pushes
		c.now, c.first = s, c.last.ranks.first(c.used)
		c.recountRunning()
	} else {
		c.last = nil
	}
	c.current = nil
}

// Summary returns the last counts. If the count of tags is old, Summary starts another one and does
// not wait for it. The result has no First.
func (c *Counter) Summary() Summary {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.PushesAsOf == nil || !c.o.Clock.Now().Before(c.due[pushes]) {
		c.queue.Add(pushes)
	}
	now := c.now
	if c.o.Drift != nil {
		if n, known := c.o.Drift.Pods(); known {
			now.Outdated, now.OutdatedUnknown = ptr.To(int64(n.Outdated)), int64(n.Unknown)
		}
	}
	now.Running = c.running
	if c.o.Pods != nil && len(now.Running.Unknown) == 0 {
		if now.Running.Unknown = c.o.Pods.StaleReasons(); len(now.Running.Unknown) > 0 {
			c.recountRunning()
		}
	}
	return now
}

// Run counts pushes on request, and what runs, until ctx is done.
func (c *Counter) Run(ctx context.Context) error {
	c.recountRunning()
	return c.queue.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler]: it counts pushes, or what runs.
func (c *Counter) Reconcile(ctx context.Context, what string) (again time.Duration, err error) {
	begun := c.o.Clock.Now()
	c.mu.Lock()
	early := c.due[what].Sub(begun)
	c.mu.Unlock()
	if early > 0 {
		return early, nil
	}
	if what == running {
		again = c.countRunning(ctx)
	} else if days, failed := countTags(ctx, c.o.Tags, begun); failed != nil {
		err = failed
	} else {
		c.mu.Lock()
		c.now.PushesAsOf, c.now.Pushes = ptr.To(metav1.NewTime(begun)), days
		c.mu.Unlock()
	}
	least := max(minRest, rest*c.o.Clock.Since(begun))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due[what] = c.o.Clock.Now().Add(least)
	if what == pushes {
		return 0, err // Summary starts the next one
	}
	return max(again, least), err
}

// countTags counts the items of all histories by day.
func countTags(ctx context.Context, tags Tags, now time.Time) ([]Day, error) {
	days, index := make([]Day, Days), map[string]int{}
	for i := range days {
		days[i].Date = now.UTC().AddDate(0, 0, i+1-Days).Format(time.DateOnly)
		index[days[i].Date] = i
	}
	return days, pages.Each(ctx, metav1.ListOptions{Limit: tagPage}, tags.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			status := list.Items[i].Status
			if status == nil {
				continue
			}
			for _, item := range status.Items {
				if at, ok := index[item.Created.UTC().Format(time.DateOnly)]; ok && item.Image != "" {
					days[at].Tags++
				}
			}
		}
		return nil
	})
}
