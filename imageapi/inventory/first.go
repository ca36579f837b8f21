package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
)

// firstImages is how many images are known by their place in an order: ten pages of the console.
const firstImages = 1000

// The orders of images.
const (
	// ByName is the order of repositories.
	ByName = "name"
	// ByDate begins with the image that became known last.
	ByDate = "date"
	// BySize begins with the largest image, by its layers.
	BySize = "size"
	// ByPods begins with the image that most pods use, and has none that no pod uses.
	ByPods = "pods"
)

// First returns the digests of the images that came first in an order; none for the order "".
func (c *Counter) First(order string) ([]string, error) {
	switch order {
	case "", ByName, ByDate, BySize, ByPods:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.first[order], nil
	}
	return nil, fmt.Errorf("images are ordered by %s, %s, %s or %s, not by %q", ByName, ByDate, BySize, ByPods, order)
}

// places keeps the images that come first in each order.
type places struct {
	name       ranking[string]
	date, size ranking[int64]
	pods       ranking[int]
}

// add counts an image whose layers have size bytes and which pods pods use.
func (p *places) add(image *imagev1.Image, size int64, pods int) {
	repository, _, _ := strings.Cut(image.DockerImageReference, "@")
	p.name.add(repository, image.Name)
	p.date.add(-image.CreationTimestamp.Unix(), image.Name)
	p.size.add(-size, image.Name)
	if pods > 0 {
		p.pods.add(-pods, image.Name)
	}
}

// first has the digests of the images that come first, by the order.
func (p *places) first() map[string][]string {
	return map[string][]string{ByName: p.name.first(), ByDate: p.date.first(), BySize: p.size.first(), ByPods: p.pods.first()}
}

// ranking keeps those of many images whose keys are the least. It holds twice as many at most.
type ranking[K cmp.Ordered] struct {
	held []ranked[K]
}

type ranked[K cmp.Ordered] struct {
	key    K
	digest string
}

func (r *ranking[K]) add(key K, digest string) {
	if r.held = append(r.held, ranked[K]{key, digest}); len(r.held) >= 2*firstImages {
		r.cut()
	}
}

// cut leaves the first ones, in their order.
func (r *ranking[K]) cut() {
	slices.SortFunc(r.held, func(a, b ranked[K]) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.digest, b.digest))
	})
	r.held = r.held[:min(len(r.held), firstImages)]
}

func (r *ranking[K]) first() (digests []string) {
	r.cut()
	for _, one := range r.held {
		digests = append(digests, one.digest)
	}
	return digests
}
