package imageapi

import (
	"slices"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
)

// usedIndexes knows the multi-platform images that pods use: a pod tells the digest of such an index
// where its runtime does, and runs one of the images that it lists. Which one it does not tell, so
// each of them counts as used. It knows of no other index, so it is as small as what pods use.
type usedIndexes struct {
	usage Usage
	get   func(digest string) *imagev1.Image // nil when there is none

	mu     sync.RWMutex
	calls  uint64              // of refresh so far
	looks  map[string]*look    // by the digest of an index: those that have begun
	listed map[string][]string // by the digest of an index: the images that it lists
	in     map[string][]string // by the digest of an image: the indexes that list it
}

// followIndexes returns what is known while pods come and go; changed has it know the Images.
func followIndexes(usage Usage, get func(digest string) *imagev1.Image) *usedIndexes {
	x := &usedIndexes{usage: usage, get: get, looks: map[string]*look{}, listed: map[string][]string{}, in: map[string][]string{}}
	usage.Subscribe(func(digests []string) {
		for _, digest := range digests {
			x.refresh(digest)
		}
	})
	return x
}

// changed is called after image was created or deleted.
func (x *usedIndexes) changed(image *imagev1.Image) {
	if len(image.DockerImageManifests) > 0 {
		x.refresh(image.Name)
	}
}

// look is what runs of refresh for one index.
type look struct {
	running int
	newest  uint64 // the last call whose answer is known
}

// refresh looks anew whether pods use an index and what it lists. It holds up nobody while it reads. An
// answer counts unless that of a later call is known, which has seen what both were called for.
func (x *usedIndexes) refresh(index string) {
	x.mu.Lock()
	x.calls++
	call, l := x.calls, x.looks[index]
	if l == nil {
		l = &look{}
		x.looks[index] = l
	}
	l.running++
	x.mu.Unlock()

	lists := x.read(index)

	x.mu.Lock()
	defer x.mu.Unlock()
	if l.running--; l.running == 0 {
		delete(x.looks, index)
	}
	if call > l.newest {
		l.newest = call
		x.know(index, lists)
	}
}

// read returns the images that an index lists, none if no pod uses it.
func (x *usedIndexes) read(index string) (lists []string) {
	if x.usage.PodsUsing([]string{index}, nil) > 0 {
		if image := x.get(index); image != nil {
			for _, m := range image.DockerImageManifests {
				lists = append(lists, m.Digest)
			}
		}
	}
	return lists
}

// know keeps what an index lists. The caller holds mu.
func (x *usedIndexes) know(index string, lists []string) {
	for _, image := range x.listed[index] {
		x.in[image] = slices.DeleteFunc(x.in[image], func(other string) bool { return other == index })
		if len(x.in[image]) == 0 {
			delete(x.in, image)
		}
	}
	delete(x.listed, index)
	for _, image := range lists {
		x.in[image] = append(x.in[image], index)
	}
	if len(lists) > 0 {
		x.listed[index] = lists
	}
}

// of returns the indexes that pods use and that list the image.
func (x *usedIndexes) of(image string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Clone(x.in[image])
}

// images returns the images that such indexes list.
func (x *usedIndexes) images() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]string, 0, len(x.in))
	for image := range x.in {
		all = append(all, image)
	}
	return all
}
