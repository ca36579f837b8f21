package inventory

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/signatures"
)

// After any changes the numbers are those of what is stored, counted here by themselves, and the
// verdicts sum up to the images.
func TestCountsFollowChanges(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	c := counterOf(Options{})
	if c.Resume() {
		t.Error("it goes on before it has counted anything")
	}
	stored := map[string]*imagev1.Image{}
	change := func() {
		image := imageOf()
		image.Name = fmt.Sprintf("sha256:%03d", r.IntN(100))
		judge(image, []string{"True", "False", "Unsigned"}[r.IntN(3)])
		for range r.IntN(5) {
			n := int64(r.IntN(40))
			image.DockerImageLayers = append(image.DockerImageLayers, imagev1.ImageLayer{Name: fmt.Sprint(n), LayerSize: n})
		}
		if r.IntN(3) == 0 {
			delete(stored, image.Name)
			c.Gone(image.Name)
		} else {
			stored[image.Name] = image
			c.Count(image)
		}
	}
	for round := range 200 {
		if r.IntN(10) == 0 || !c.Resume() {
			c.Begin()
			for _, image := range stored {
				c.Count(image)
			}
		}
		for range r.IntN(20) {
			change()
		}
		if r.IntN(10) == 0 {
			c.End(errors.New("broken off"))
			if c.Resume() {
				t.Fatalf("seed %d: it goes on with a count that lacks images", seed)
			}
			continue
		}
		c.End(nil)
		want, layers := Summary{Images: int64(len(stored)), Verified: map[string]int64{}}, map[string]int64{}
		for _, image := range stored {
			verdict, _, _ := signatures.Summary(image)
			want.Verified[verdict]++
			own := map[string]int64{}
			for _, l := range image.DockerImageLayers {
				own[l.Name] = l.LayerSize
			}
			for name, size := range own {
				layers[name], want.LayerBytes = size, want.LayerBytes+size
			}
		}
		for _, size := range layers {
			want.DistinctLayerBytes += size
		}
		got := c.Summary()
		if got.Images != want.Images || !maps.Equal(got.Verified, want.Verified) || got.LayerBytes != want.LayerBytes || got.DistinctLayerBytes != want.DistinctLayerBytes || got.Estimated {
			t.Fatalf("seed %d, round %d: it counts %+v, want %+v", seed, round, got, want)
		}
		sum := int64(0)
		for verdict, n := range got.Verified {
			sum += n
			if first, err := c.First(ByName, Among{Verified: verdict}); err != nil || int64(len(first)) != n {
				t.Fatalf("seed %d: %d images come first among %d that are %s, %v", seed, len(first), n, verdict, err)
			}
		}
		if first, err := c.First(BySize, Among{}); sum != got.Images || err != nil || !slices.Equal(slices.Sorted(slices.Values(first)), slices.Sorted(maps.Keys(stored))) {
			t.Fatalf("seed %d: the verdicts sum up to %d of %d images, of which %d come first, %v", seed, sum, got.Images, len(first), err)
		}
	}
}

// What is remembered of images is bounded: of more, only sweeps change the counts.
func TestRememberedImagesAreBounded(t *testing.T) {
	c := counterOf(Options{})
	c.Begin()
	layers := make([]imagev1.ImageLayer, 10_000)
	for i := range layers {
		layers[i] = imagev1.ImageLayer{Name: fmt.Sprint(i), LayerSize: 1}
	}
	const images = maxRemembered/10_000 + 1
	for i := range images {
		image := imageOf(layers...)
		image.Name = fmt.Sprint(i)
		c.Count(image)
	}
	c.End(nil)
	if s := c.Summary(); s.Images != images || s.LayerBytes != images*10_000 || s.DistinctLayerBytes != 10_000 {
		t.Errorf("it counts %+v", s)
	}
	if c.Resume() {
		t.Error("it remembers what is too much")
	}
}
