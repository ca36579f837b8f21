// Package inventory counts what is stored: images by verdict, how many bytes their layers have with
// and without what they share, the pushes of the last days, and the images that run: by verdict,
// and those that are gone from their registries.
//
// Images are counted while a sweep goes through all of them anyway (signatures/reverify), so a
// count costs no reads of its own. Tags are read when somebody asks, and the images that run every
// few minutes, each at most for a fiftieth of the time. Each count has its time.
package inventory

import (
	"context"
	"hash/maphash"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
)

const (
	// Days is of how many days the pushes are counted, today included.
	Days = 7
	// maxLayers bounds the layers that are remembered while images are counted, some 5 MB. Of more
	// layers, a part is remembered that is chosen by a hash, so the sum of their sizes is
	// estimated, within a few percent.
	maxLayers = 1 << 17
	// tagPage is how many tags are read, and held in memory, at a time.
	tagPage = 500
	// rest is how many times as long as a count of tags took it is shown before tags are counted
	// again.
	rest = 50
	// minRest bounds that for quick counts.
	minRest = 10 * time.Second
)

// Summary has the numbers of stored objects. A time is nil until there was a first count; the
// numbers beside it say nothing then.
type Summary struct {
	// ImagesAsOf is when the images were counted.
	ImagesAsOf *metav1.Time `json:"imagesAsOf,omitempty"`
	Images     int64        `json:"images"`
	// Verified counts the images by their verdict: True, ByIndex, False, Unknown, Unsigned,
	// NoPolicy, Excepted.
	Verified map[string]int64 `json:"verified,omitempty"`
	// LayerBytes is the size of the layers of all images, each image's own counted once.
	// DistinctLayerBytes counts each layer once, in however many images it is.
	LayerBytes         int64 `json:"layerBytes"`
	DistinctLayerBytes int64 `json:"distinctLayerBytes"`
	// Estimated says that DistinctLayerBytes was estimated from a part of the layers.
	Estimated bool `json:"estimated,omitempty"`
	// First has the digests of the images that came first, at most 1,000, in the order that was
	// asked for.
	First []string `json:"first,omitempty"`
	// Outdated counts the pods that run something else than their tag leads to now; nil if that is
	// not known.
	Outdated *int64 `json:"outdated,omitempty"`
	// PushesAsOf is when the pushes were counted.
	PushesAsOf *metav1.Time `json:"pushesAsOf,omitempty"`
	// Pushes are the last days, the oldest first.
	Pushes []Day `json:"pushes,omitempty"`
	Running
}

// Day is a day in UTC.
type Day struct {
	Date string `json:"date"` // as in 2026-05-28
	// Tags counts how often a tag was seen to lead to another image than before, or for the first
	// time.
	Tags int64 `json:"tags"`
}

// Tags reads ImageTags; imageclient.Client does.
type Tags interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
}

// Counter counts. It is a reverify.Tally.
type Counter struct {
	// Pods, if set before the first sweep, tells how many pods use an image.
	Pods func(*imagev1.Image) int
	// Outdated, if set, counts the pods that run something else than their tag leads to.
	Outdated func() (pods int, known bool)

	verdict func(*imagev1.Image) string
	clock   clock.Clock
	wake    chan struct{} // holds a token when tags are to be counted
	// wakeRunning holds a token when what runs is to be counted.
	wakeRunning chan struct{}

	mu      sync.Mutex
	now     Summary
	first   map[Among]map[string][]string // of now, by the order
	running Running
	due     time.Time // when tags may be counted again
	count   Summary   // of the current sweep
	layers  sample
	ranks   ranks
}

// New makes a Counter. verdict tells an image's verdict in a word.
func New(verdict func(*imagev1.Image) string, c clock.Clock) *Counter {
	return &Counter{verdict: verdict, clock: c, wake: make(chan struct{}, 1), wakeRunning: make(chan struct{}, 1)}
}

// Begin is part of reverify.Tally.
func (c *Counter) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count, c.layers, c.ranks = Summary{Verified: map[string]int64{}}, newSample(maxLayers), ranks{}
}

// Count is part of reverify.Tally.
func (c *Counter) Count(image *imagev1.Image) {
	verdict, pods := c.verdict(image), 0
	if c.Pods != nil {
		pods = c.Pods(image)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.Images++
	c.count.Verified[verdict]++
	own, size := make(map[string]bool, len(image.DockerImageLayers)), int64(0)
	for i := range image.DockerImageLayers {
		if l := &image.DockerImageLayers[i]; l.LayerSize > 0 && !own[l.Name] {
			own[l.Name] = true
			size = add(size, l.LayerSize)
			c.layers.add(l.Name, l.LayerSize)
		}
	}
	c.count.LayerBytes = add(c.count.LayerBytes, size)
	c.ranks.add(image, verdict, size, pods)
}

// End is part of reverify.Tally. A sweep that did not see all images is not shown.
func (c *Counter) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		now := metav1.NewTime(c.clock.Now())
		c.count.ImagesAsOf, c.count.PushesAsOf, c.count.Pushes = &now, c.now.PushesAsOf, c.now.Pushes
		c.count.DistinctLayerBytes, c.count.Estimated = min(c.layers.sum(), c.count.LayerBytes), c.layers.limit < math.MaxUint64
		c.now, c.first = c.count, c.ranks.first()
	}
	c.count, c.layers, c.ranks = Summary{}, sample{}, nil
}

// Summary returns the last counts. If that of tags is old, tags are counted again; nobody waits for
// it. It has no First.
func (c *Counter) Summary() Summary {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.PushesAsOf == nil || !c.clock.Now().Before(c.due) {
		select {
		case c.wake <- struct{}{}:
		default: // it is asked for already
		}
	}
	now := c.now
	if c.Outdated != nil {
		if pods, known := c.Outdated(); known {
			now.Outdated = ptr.To(int64(pods))
		}
	}
	now.Running = c.running
	return now
}

// Run counts tags when they are asked for, until ctx is done.
func (c *Counter) Run(ctx context.Context, tags Tags) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		begun := c.clock.Now()
		c.mu.Lock()
		early := begun.Before(c.due)
		c.mu.Unlock()
		if early {
			continue
		}
		days, err := countTags(ctx, tags, begun)
		if ctx.Err() != nil {
			return
		}
		now := c.clock.Now()
		c.mu.Lock()
		c.due = now.Add(max(minRest, rest*now.Sub(begun)))
		if err == nil {
			asOf := metav1.NewTime(begun)
			c.now.PushesAsOf, c.now.Pushes = &asOf, days
		}
		c.mu.Unlock()
		if err != nil {
			slog.Error("Counting the pushes of the last days failed", "err", err)
		}
	}
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

// sample remembers the sizes of layers, each once: of all of them, or of those whose hash is at
// most limit.
type sample struct {
	seed  maphash.Seed // so that nobody chooses layers that count for others
	most  int
	limit uint64
	sizes map[uint64]int64
}

func newSample(most int) sample {
	return sample{maphash.MakeSeed(), most, math.MaxUint64, map[uint64]int64{}}
}

func (s *sample) add(layer string, size int64) {
	key := maphash.String(s.seed, layer)
	if key > s.limit {
		return
	}
	s.sizes[key] = size
	for len(s.sizes) > s.most {
		s.limit /= 2
		maps.DeleteFunc(s.sizes, func(key uint64, _ int64) bool { return key > s.limit })
	}
}

// sum is the size of all layers, estimated from those that are remembered.
func (s *sample) sum() int64 {
	sum := 0.0
	for _, size := range s.sizes {
		sum += float64(size)
	}
	if sum *= math.MaxUint64 / float64(s.limit); sum >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(sum)
}

// add adds sizes that strangers chose.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
