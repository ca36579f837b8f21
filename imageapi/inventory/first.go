package inventory

import (
	"cmp"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
)

// firstImages is how many images are known by their place in an order: as many as a selector by whole digests takes.
const firstImages = selectors.MaxDigests

// First are the digests of the images that come first in an order, at most 100 in each.
type First struct {
	// Name has the order of repositories.
	Name []string `json:"name,omitempty"`
	// Date begins with the image that became known last.
	Date []string `json:"date,omitempty"`
	// Size begins with the largest image, by its layers.
	Size []string `json:"size,omitempty"`
	// Pods begins with the image that most pods use, and has none that no pod uses.
	Pods []string `json:"pods,omitempty"`
}

// places keeps the images that come first in each order.
type places struct {
	name       ranking[string]
	date, size ranking[int64]
	pods       ranking[int]
}

// add counts an image whose layers have size bytes, and which so many pods use.
func (p *places) add(image *imagev1.Image, size int64, pods int) {
	repository, _, _ := strings.Cut(image.DockerImageReference, "@")
	p.name.add(repository, image.Name)
	p.date.add(-image.CreationTimestamp.Unix(), image.Name)
	p.size.add(-size, image.Name)
	if pods > 0 {
		p.pods.add(-pods, image.Name)
	}
}

func (p *places) first() First {
	return First{p.name.first(), p.date.first(), p.size.first(), p.pods.first()}
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
