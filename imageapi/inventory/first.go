package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
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

// Among are the images that are ordered: all, for the zero value.
type Among struct {
	// Verified leaves those with this verdict; "" leaves all.
	Verified string
	// Used leaves those that pods use.
	Used bool
}

// First returns the digests of the images that came first in an order; none for the order "".
func (c *Counter) First(order string, among Among) ([]string, error) {
	switch order {
	case "", ByName, ByDate, BySize, ByPods:
	default:
		return nil, fmt.Errorf("images are ordered by %s, %s, %s or %s, not by %q", ByName, ByDate, BySize, ByPods, order)
	}
	if among.Verified != "" && !slices.Contains(verdicts.All, among.Verified) {
		return nil, fmt.Errorf("no image has the verdict %q: it is one of %s", among.Verified, strings.Join(verdicts.All, ", "))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first[among][order], nil
}

// ranks keeps the images that come first among all, and among each part of them. There are as many
// parts as verdicts, and as many of what is used, so it holds some 10 MB at most.
type ranks map[Among]*places

// add counts an image, see places.add.
func (r ranks) add(image *imagev1.Image, verified string, size int64, pods int) {
	among := []Among{{}, {Verified: verified}}
	if pods > 0 {
		among = append(among, Among{Used: true}, Among{verified, true})
	}
	for _, a := range among {
		if r[a] == nil {
			r[a] = &places{}
		}
		r[a].add(image, size, pods)
	}
}

// first has the digests of the images that come first, by the order.
func (r ranks) first() map[Among]map[string][]string {
	all := map[Among]map[string][]string{}
	for among, p := range r {
		all[among] = p.first()
	}
	return all
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
	last *ranked[K] // the last that can still be among the first, once so many were held
}

type ranked[K cmp.Ordered] struct {
	key    K
	digest string
}

func (a ranked[K]) compare(b ranked[K]) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.digest, b.digest))
}

func (r *ranking[K]) add(key K, digest string) {
	one := ranked[K]{key, digest}
	if r.last != nil && r.last.compare(one) < 0 {
		return
	}
	if r.held = append(r.held, one); len(r.held) >= 2*firstImages {
		r.cut()
	}
}

// cut leaves the first ones, in their order.
func (r *ranking[K]) cut() {
	slices.SortFunc(r.held, ranked[K].compare)
	if len(r.held) >= firstImages {
		r.held = r.held[:firstImages]
		last := r.held[firstImages-1]
		r.last = &last
	}
}

func (r *ranking[K]) first() (digests []string) {
	r.cut()
	for _, one := range r.held {
		digests = append(digests, one.digest)
	}
	return digests
}
