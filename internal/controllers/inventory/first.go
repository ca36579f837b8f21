package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// firstImages is how many images each order holds: ten pages of the console.
const firstImages = 1000

// The orders of images.
const (
	// ByName is the order of repositories.
	ByName = "name"
	// ByDate begins with the image that was stored last.
	ByDate = "date"
	// BySize begins with the largest image, by its layers.
	BySize = "size"
	// ByPods begins with the image that most pods use. It has only images that pods use.
	ByPods = "pods"
)

// Among selects the images that are ordered: all, for the zero value. At most one field may be set,
// because the verdict for what pods use depends on the name that they use.
type Among struct {
	// Verified selects images with this verdict; "" selects all.
	Verified string
	// Used selects images that pods use.
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
	if among.Verified != "" && among.Used {
		return nil, errors.New("images that pods use are not ordered by their own verdict: clusterpods are selected by the verdict for what pods name, verified=")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first[among][order], nil
}

// ranks keeps the first images among all images, among those of each verdict, and among those that
// pods use: some 6 MB at most.
type ranks map[Among]*places

// add counts an image, see places.add.
func (r ranks) add(image *imagev1.Image, verified string, size int64, pods int) {
	among := []Among{{}, {Verified: verified}}
	if pods > 0 {
		among = append(among, Among{Used: true})
	}
	for _, a := range among {
		if r[a] == nil {
			r[a] = &places{}
		}
		r[a].add(image, size, pods)
	}
}

// remove removes an image. Its place stays empty until the next full count: images beyond the first
// ones are not kept.
func (r ranks) remove(digest string) {
	for _, p := range r {
		p.name.remove(digest)
		p.date.remove(digest)
		p.size.remove(digest)
		p.pods.remove(digest)
	}
}

// first returns the digests of the first images of each order.
func (r ranks) first() map[Among]map[string][]string {
	all := map[Among]map[string][]string{}
	for among, p := range r {
		all[among] = p.first()
	}
	return all
}

// places keeps the first images of each order.
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

// first returns the digests of the first images of each order.
func (p *places) first() map[string][]string {
	return map[string][]string{ByName: p.name.first(), ByDate: p.date.first(), BySize: p.size.first(), ByPods: p.pods.first()}
}

// ranking keeps the firstImages images with the smallest keys. In between it holds up to twice as
// many.
type ranking[K cmp.Ordered] struct {
	held []ranked[K]
	last *ranked[K] // the last of the first images; nil until there are so many
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

func (r *ranking[K]) remove(digest string) {
	r.held = slices.DeleteFunc(r.held, func(one ranked[K]) bool { return one.digest == digest })
}

// cut sorts the images and drops all but the first.
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
