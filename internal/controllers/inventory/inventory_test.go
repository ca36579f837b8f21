package inventory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

func imageOf(layers ...imagev1.ImageLayer) *imagev1.Image {
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: rand.Text()}, DockerImageLayers: layers}
}

func counterOf(o Options) *Counter {
	o.Clock = clock.RealClock{}
	return New(o)
}

// judge gives an image a verdict.
func judge(image *imagev1.Image, verdict string) {
	image.Annotations = map[string]string{annotation.Verdicts: fmt.Sprintf(`{"r.example.com/team/app":{"verified":%q}}`, verdict)}
}

// Each layer counts once in each image, and once in all. A sweep that was broken off changes
// nothing.
func TestImagesAreCounted(t *testing.T) {
	c := counterOf(Options{})
	if s := c.Summary(); s.ImagesAsOf != nil {
		t.Errorf("before the first sweep it says %+v", s)
	}
	base, top := imagev1.ImageLayer{Name: "sha256:base", LayerSize: 100}, imagev1.ImageLayer{Name: "sha256:top", LayerSize: 10}
	c.Begin()
	one := imageOf(base, top, top, imagev1.ImageLayer{Name: "sha256:odd", LayerSize: -5})
	judge(one, "True")
	c.Count(one)
	c.Count(imageOf(base))
	c.End(nil)
	s := c.Summary()
	if s.ImagesAsOf == nil || s.Images != 2 || s.Verified["True"] != 1 || s.LayerBytes != 210 || s.DistinctLayerBytes != 110 || s.Estimated {
		t.Errorf("it counts %+v", s)
	}
	c.Begin()
	c.Count(one)
	c.End(errors.New("broken off"))
	if got := c.Summary(); got.Images != 2 {
		t.Errorf("half a sweep counts as %+v", got)
	}
	c.Begin()
	for i := range 3 {
		c.Count(imageOf(imagev1.ImageLayer{Name: fmt.Sprint(i), LayerSize: math.MaxInt64}))
	}
	c.End(nil)
	if got := c.Summary(); got.LayerBytes != math.MaxInt64 || got.DistinctLayerBytes != math.MaxInt64 {
		t.Errorf("sizes that are too large sum up to %+v", got)
	}
}

// layersAsPods has a pod for each layer of an image but the first.
type layersAsPods struct{}

func (layersAsPods) Pods(_ string, image *imagev1.Image) (n int, complete bool) {
	return len(image.DockerImageLayers) - 1, true
}

func (layersAsPods) Keys(digest string, _ *imagev1.Image) []string { return []string{digest} }

// counted is what a Tracker has counted.
type counted struct {
	n     drift.Counts
	known bool
}

func (c *counted) Pods() (n drift.Counts, known bool) { return c.n, c.known }
func (*counted) RecheckImage(string)                  {}

// Running is part of Drift: pods of one image are outdated.
func (c *counted) Running(digests []string) (n drift.Counts, known bool) {
	if slices.Contains(digests, drifted) {
		n.Outdated = 1
	}
	return n, c.known
}

// drifted is the image of which pods are outdated.
const drifted = "sha256:0004"

// usedImages are the images that have pods, and no pod has a verdict.
type usedImages struct{ images []imagev1.Image }

func (u *usedImages) List(context.Context, metav1.ListOptions) (*imagev1.ImageList, error) {
	return &imagev1.ImageList{Items: u.images}, nil
}

func (*usedImages) EachVerdict(context.Context, func(string)) error { return nil }

func (*usedImages) StaleReasons() []string { return nil }

// The images that come first are those of the whole sweep, however many there are; what runs is as
// of the last count of that.
func TestFirstImages(t *testing.T) {
	const all = 7 * firstImages
	used, counts := &usedImages{}, &counted{}
	c := counterOf(Options{Use: layersAsPods{}, Drift: counts, Images: used, Pods: used, Gone: NewGoneGauge(), Verified: NewVerdictsGauge()})
	metrics.NewKubeRegistry().MustRegister(c.o.Gone, c.o.Verified)
	c.Begin()
	for i := range all {
		layers := []imagev1.ImageLayer{{Name: "base", LayerSize: int64(1000 + i)}}
		if i%10 == 3 {
			layers = append(layers, imagev1.ImageLayer{Name: fmt.Sprint(i)})
		}
		image := imageOf(layers...)
		image.Name, image.DockerImageReference = fmt.Sprintf("sha256:%04d", i), fmt.Sprintf("r.io/%04d@sha256:x", (i*3)%all)
		image.CreationTimestamp = metav1.Unix(int64(i+i%2*all), 0)
		judge(image, []string{"True", "False"}[i%2])
		c.Count(image)
		if len(layers) > 1 || image.Name == drifted {
			used.images = append(used.images, *image)
		}
	}
	c.End(nil)
	if first, err := c.First(ByPods, Among{}); err != nil || len(first) > 0 {
		t.Errorf("before pods are counted, most use %q, %v", first, err)
	}
	if first, err := c.First(ByNeed, Among{}); err != nil || len(first) != firstImages || first[0] != fmt.Sprintf("sha256:%04d", all-1) {
		t.Errorf("before pods are counted, %q needs somebody first, %v", first[:min(len(first), 1)], err)
	}
	c.countRunning(t.Context())
	*counts = counted{drift.Counts{Outdated: 7, Unknown: 2}, true}
	s := c.Summary()
	if s.Outdated == nil || *s.Outdated != 7 || s.OutdatedUnknown != 2 {
		t.Errorf("%v pods are outdated, of %d that is unknown", s.Outdated, s.OutdatedUnknown)
	}
	*counts = counted{}
	if got := c.Summary().Outdated; got != nil {
		t.Errorf("what is not known is counted: %d", *got)
	}
	for order, want := range map[string]struct {
		n           int
		most, after string
	}{
		ByName: {firstImages, "sha256:0000", "sha256:4667"}, ByDate: {firstImages, fmt.Sprintf("sha256:%04d", all-1), fmt.Sprintf("sha256:%04d", all-3)},
		BySize: {firstImages, fmt.Sprintf("sha256:%04d", all-1), fmt.Sprintf("sha256:%04d", all-2)}, ByPods: {all / 10, "sha256:0003", "sha256:0013"},
		// all that run fail, but for the one that drifted
		ByNeed: {firstImages, fmt.Sprintf("sha256:%04d", all-7), fmt.Sprintf("sha256:%04d", all-17)},
	} {
		first, err := c.First(order, Among{})
		if err != nil || len(first) != want.n || first[0] != want.most || first[1] != want.after {
			t.Errorf("by %s there are %d images, the first %q, %v", order, len(first), first[:min(len(first), 2)], err)
		}
	}
	if first, err := c.First("weight", Among{}); err == nil {
		t.Errorf("by weight %q come first", first)
	}
	first, err := c.First(ByNeed, Among{})
	if want := []string{"sha256:0003", drifted, fmt.Sprintf("sha256:%04d", all-1)}; err != nil || !slices.Equal(first[all/10-1:all/10+2], want) {
		t.Errorf("after what runs and fails, %q need somebody, want %q, %v", first[all/10-1:all/10+2], want, err)
	}
	if first, err := c.First(ByNeed, Among{Verified: "True"}); err != nil || first[0] != drifted || first[1] != fmt.Sprintf("sha256:%04d", all-2) {
		t.Errorf("among the verified %q need somebody first, %v", first[:2], err)
	}
	// So are those of a verdict, and those that pods use.
	for among, want := range map[Among]string{{Used: true}: fmt.Sprintf("%d sha256:%04d", all/10, all-7), {Verified: "True"}: fmt.Sprintf("%d sha256:%04d", firstImages, all-2), {Verified: "False"}: fmt.Sprintf("%d sha256:%04d", firstImages, all-1)} {
		first, err := c.First(BySize, among)
		if got := fmt.Sprint(len(first), " ", strings.Join(first[:min(len(first), 1)], "")); err != nil || got != want {
			t.Errorf("among %+v there are %s, want %s (%v)", among, got, want, err)
		}
	}
	if first, err := c.First(BySize, Among{Verified: "True", Used: true}); err == nil {
		t.Errorf("of what pods use, with a verdict of the image, %q come first", first)
	}
	if first, err := c.First(BySize, Among{Verified: "Maybe"}); err == nil {
		t.Errorf("with no verdict %q come first", first)
	}
}

// However many layers there are, only so many are remembered, and the estimate is close.
func TestLayersAreEstimated(t *testing.T) {
	s, want := newSample(maphash.MakeSeed(), 10_000), 0.0
	for range 2 {
		for i := range 200_000 {
			size := int64(1000 + i%1000)
			s.add(fmt.Sprint("sha256:", i), size)
			want += float64(size) / 2
		}
	}
	if len(s.sizes) > 10_000 {
		t.Errorf("it remembers %d layers", len(s.sizes))
	}
	if got := float64(s.sum()); math.Abs(got-want) > 0.1*want { // ten standard deviations
		t.Errorf("it estimates %.0f, want %.0f", got, want)
	}
}

// tagPages are pages of ImageTags.
type tagPages struct {
	pages [][]imagev1.ImageTag
	asked int
	err   error
}

func (p *tagPages) ListTags(_ context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	p.asked++
	if p.err != nil {
		return nil, p.err
	}
	at := 0
	if o.Continue != "" {
		_, _ = fmt.Sscan(o.Continue, &at)
	}
	list := &imagev1.ImageTagList{Items: p.pages[at]}
	if at+1 < len(p.pages) {
		list.Continue = fmt.Sprint(at + 1)
	}
	return list, nil
}

// The pushes of seven days are counted when somebody asks, without making him wait, and not again
// at once.
func TestPushesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		ago := func(days int, image string) imagev1.TagEvent {
			return imagev1.TagEvent{Created: metav1.NewTime(now.AddDate(0, 0, -days)), Image: image}
		}
		tag := func(items ...imagev1.TagEvent) imagev1.ImageTag {
			return imagev1.ImageTag{Status: &imagev1.NamedTagEventList{Items: items}}
		}
		tags := &tagPages{pages: [][]imagev1.ImageTag{{tag(ago(0, "b"), ago(6, "a"), ago(7, "z")), {}}, {tag(ago(0, ""), ago(0, "c"))}}}
		c := counterOf(Options{Tags: tags, Images: &runningImages{}, Pods: &runningImages{}, Gone: NewGoneGauge(), Verified: NewVerdictsGauge()})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx) })
		if s := c.Summary(); s.PushesAsOf != nil {
			t.Errorf("before anything is counted it says %+v", s)
		}
		synctest.Wait()
		s := c.Summary()
		if s.PushesAsOf == nil || len(s.Pushes) != Days || s.Pushes[0] != (Day{now.AddDate(0, 0, -6).Format(time.DateOnly), 1}) || s.Pushes[6] != (Day{now.Format(time.DateOnly), 2}) || s.Pushes[3].Tags != 0 {
			t.Errorf("it counts %+v", s)
		}
		synctest.Wait()
		if tags.asked != 2 {
			t.Errorf("two pages were read %d times", tags.asked)
		}
		time.Sleep(minRest)
		tags.err = errors.New("away")
		c.Summary()
		synctest.Wait()
		if got := c.Summary(); got.PushesAsOf == nil || !got.PushesAsOf.Equal(s.PushesAsOf) {
			t.Errorf("after a failure it says %+v", got)
		}
		stop()
		running.Wait()
	})
}
