package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/table"
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
	// ByNeed begins with the images that need attention most, see [table.Need]; of images with equal
	// need, with the one that was stored last.
	ByNeed = "need"
)

// orders are all orders.
var orders = []string{ByName, ByDate, BySize, ByPods, ByNeed}

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
	if order != "" && !slices.Contains(orders, order) {
		return nil, fmt.Errorf("images are ordered by one of %s, not by %q", strings.Join(orders, ", "), order)
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

// ranks keeps the first images of all images, and the first of each verdict: 6 MB at most. In a
// count of running images, it holds the images that pods use, with their number of pods.
type ranks map[Among]*places

// add counts an image, see places.add.
func (r ranks) add(image *imagev1.Image, verified string, size int64, use use) {
	among := []Among{{}, {Verified: verified}}
	if use.pods > 0 {
		among = append(among, Among{Used: true})
	}
	for _, a := range among {
		if r[a] == nil {
			r[a] = &places{}
		}
		r[a].add(image, verified, size, use)
	}
}

// remove removes an image. Its place stays empty until the next full count: images beyond the first
// ones are not kept.
func (r ranks) remove(digest string) {
	for _, p := range r {
		p.name.remove(digest)
		p.date.remove(digest)
		p.size.remove(digest)
		p.need.remove(digest)
	}
}

// first returns the digests of the first images of each order. running are the ranks of the last
// count of what runs.
func (r ranks) first(running ranks) map[Among]map[string][]string {
	all := map[Among]map[string][]string{}
	for among, p := range r {
		used := running[among]
		if used == nil {
			used = &places{}
		}
		all[among] = map[string][]string{
			ByName: p.name.first(), ByDate: p.date.first(), BySize: p.size.first(),
			ByPods: used.pods.first(), ByNeed: p.need.with(used.need),
		}
	}
	if p := running[Among{Used: true}]; p != nil {
		all[Among{Used: true}] = map[string][]string{
			ByName: p.name.first(), ByDate: p.date.first(), BySize: p.size.first(),
			ByPods: p.pods.first(), ByNeed: p.need.first(),
		}
	}
	return all
}

// use is how many pods use an image. A count that does not ask for pods has the zero value.
type use struct {
	pods    int
	drifted bool // some name a tag that leads elsewhere now
}

// places keeps the first images of each order.
type places struct {
	name             ranking[string]
	date, size, need ranking[int64]
	pods             ranking[int]
}

// add counts an image with a verdict, whose layers have size bytes.
func (p *places) add(image *imagev1.Image, verified string, size int64, use use) {
	repository, _, _ := strings.Cut(image.DockerImageReference, "@")
	date := -image.CreationTimestamp.Unix()
	p.name.add(repository, image.Name)
	p.date.add(date, image.Name)
	p.size.add(-size, image.Name)
	fails := verified == verdicts.VerifiedFalse || verified == verdicts.Unsigned
	need := table.Need(fails, verified == verdicts.VerifiedUnknown, use.pods > 0, use.drifted)
	p.need.add(int64(need)<<40+date, image.Name)
	if use.pods > 0 {
		p.pods.add(-use.pods, image.Name)
	}
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

// with returns the first of the images of two rankings. An image in both has its smaller key.
func (r *ranking[K]) with(other ranking[K]) (digests []string) {
	r.cut()
	other.cut()
	all, seen := slices.Concat(r.held, other.held), map[string]bool{}
	slices.SortFunc(all, ranked[K].compare)
	for _, one := range all {
		if !seen[one.digest] && len(digests) < firstImages {
			digests, seen[one.digest] = append(digests, one.digest), true
		}
	}
	return digests
}
