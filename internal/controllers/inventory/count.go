package inventory

import (
	"hash/maphash"
	"iter"
	"maps"
	"math"

	imagev1 "github.com/openshift/api/image/v1"
)

const (
	// maxLayers bounds the layers whose sizes a count keeps (some 5 MB). If there are more, it keeps
	// a sample, chosen by hash, and estimates the sum of all sizes within a few percent.
	maxLayers = 1 << 17
	// maxRemembered bounds the memory for the parts of images, in words of eight bytes: 32 MB, enough
	// for 200,000 images of eight layers. With more images, only sweeps update the counts.
	maxRemembered = 4 << 20
	// wordsOfPart is the size in words of the part of an image without layers.
	wordsOfPart = 12
)

// count counts images. It remembers what each image added, so that it can count an image again or
// remove it.
type count struct {
	seed       maphash.Seed
	images     int64
	verified   map[string]int64
	layerBytes int64
	layers     sample
	ranks      ranks
	parts      map[uint64]part // by the hash of the image's name; nil if they exceed maxRemembered
	words      int             // size of parts
}

// part is what an image has added to a count.
type part struct {
	verdict string
	size    int64
	layers  []uint64 // keys of the sample
}

func newCount() *count {
	seed := maphash.MakeSeed() // random, so that an attacker cannot choose names that collide
	return &count{seed: seed, verified: map[string]int64{}, layers: newSample(seed, maxLayers), ranks: ranks{}, parts: map[uint64]part{}}
}

func (c *count) add(image *imagev1.Image, verdict string) {
	p := part{verdict: verdict}
	for l := range distinctLayers(image) {
		p.size = add(p.size, l.LayerSize)
		if key, sampled := c.layers.add(l.Name, l.LayerSize); sampled {
			p.layers = append(p.layers, key)
		}
	}
	c.images++
	c.verified[verdict]++
	c.layerBytes = add(c.layerBytes, p.size)
	c.ranks.add(image, verdict, p.size, use{})
	if c.parts == nil {
		return
	}
	c.parts[maphash.String(c.seed, image.Name)] = p
	if c.words += wordsOfPart + len(p.layers); c.words > maxRemembered || c.layerBytes == math.MaxInt64 {
		c.parts = nil
	}
}

// distinctLayers yields each layer of an image once, if it has a size.
func distinctLayers(image *imagev1.Image) iter.Seq[*imagev1.ImageLayer] {
	return func(yield func(*imagev1.ImageLayer) bool) {
		own := make(map[string]bool, len(image.DockerImageLayers))
		for i := range image.DockerImageLayers {
			if l := &image.DockerImageLayers[i]; l.LayerSize > 0 && !own[l.Name] {
				if own[l.Name] = true; !yield(l) {
					return
				}
			}
		}
	}
}

// layerBytes is the sum of an image's layers.
func layerBytes(image *imagev1.Image) (sum int64) {
	for l := range distinctLayers(image) {
		sum = add(sum, l.LayerSize)
	}
	return sum
}

// remove subtracts what the image of this name added, if it was counted.
func (c *count) remove(name string) {
	key := maphash.String(c.seed, name)
	p, counted := c.parts[key]
	if !counted {
		return
	}
	delete(c.parts, key)
	c.words -= wordsOfPart + len(p.layers)
	c.images--
	c.layerBytes -= p.size
	if c.verified[p.verdict]--; c.verified[p.verdict] == 0 {
		delete(c.verified, p.verdict)
	}
	for _, layer := range p.layers {
		c.layers.remove(layer)
	}
	c.ranks.remove(name)
}

// summary returns the counts.
func (c *count) summary() Summary {
	return Summary{
		Images: c.images, Verified: maps.Clone(c.verified), LayerBytes: c.layerBytes,
		DistinctLayerBytes: min(c.layers.sum(), c.layerBytes), Estimated: c.layers.limit < math.MaxUint64,
	}
}

// sample holds the size of each layer once. If there are too many layers, it holds only those whose
// hash does not exceed limit.
type sample struct {
	seed  maphash.Seed
	max   int
	limit uint64
	sizes map[uint64]layer
}

// layer is a layer, and the number of images that have it.
type layer struct {
	size   int64
	images int64
}

func newSample(seed maphash.Seed, maxLayers int) sample {
	return sample{seed, maxLayers, math.MaxUint64, map[uint64]layer{}}
}

// add adds a layer of an image. It returns the layer's key, and whether the sample includes it.
func (s *sample) add(name string, size int64) (key uint64, sampled bool) {
	if key = maphash.String(s.seed, name); key > s.limit {
		return 0, false
	}
	s.sizes[key] = layer{size, s.sizes[key].images + 1}
	for len(s.sizes) > s.max {
		s.limit /= 2
		maps.DeleteFunc(s.sizes, func(key uint64, _ layer) bool { return key > s.limit })
	}
	return key, true
}

// remove removes a layer of one image. Other images may still have it.
func (s *sample) remove(key uint64) {
	l, known := s.sizes[key]
	switch l.images--; {
	case !known:
	case l.images == 0:
		delete(s.sizes, key)
	default:
		s.sizes[key] = l
	}
}

// sum estimates the size of all layers from the sample.
func (s *sample) sum() int64 {
	sum := 0.0
	for _, l := range s.sizes {
		sum += float64(l.size)
	}
	if sum *= math.MaxUint64 / float64(s.limit); sum >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(sum)
}

// add adds two sizes. It saturates, because the sizes come from outside.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
