package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxListed bounds how many images of an index count for its use.
const maxListed = 1000

// maxAbove bounds how many indexes above a used image count as used.
const maxAbove = 100

// listed returns the images that an index lists; none if image is not an index.
func listed(image *imagev1.Image) []string {
	if len(image.DockerImageManifests) == 0 {
		return nil
	}
	var all []string
	for _, m := range image.DockerImageManifests[:min(len(image.DockerImageManifests), maxListed)] {
		all = append(all, m.Digest)
	}
	return all
}

// usedIndexes knows the multi-platform indexes that pods use. Some runtimes tell the digest of the
// index: then the pod uses the index, and the images that it lists for the platform of the pod's
// node ([manifest.Nodes]); if the platform is not known, each image counts. Other runtimes tell the
// digest of the listed image: then the pod uses the index, too. A workload that needs an image
// counts here as a pod on a node of no known platform. usedIndexes knows no other indexes, so it is
// as small as what is used and needed.
type usedIndexes struct {
	usage Usage
	get   func(ctx context.Context, digest string) (*imagev1.Image, error) // nil when there is none
	// the indexes that list an image
	over func(ctx context.Context, digest string) ([]string, error)
	// the images that have a config
	having func(ctx context.Context, config string) ([]string, error)

	mu         sync.RWMutex
	calls      uint64                   // of refresh so far
	refreshing map[string]*refreshCalls // by the digest of an index: the looks that have begun
	listed     map[string][]string      // by the digest of an index: the images that it lists
	// by the digest of an image: the indexes that list it, each with a platform of nodes that may take
	// it
	in map[string][]string
	// by the digest of an image that pods use: the indexes that list it
	above map[string][]string
	// by an ID that pods tell, and by a digest that they tell and no stored image has: the images
	// that have it as their config, and whether it is the digest of an image
	ids map[string]identified
	// how often the ids without a known image, or the pods that report one, have changed
	unknownAt uint64
	// by the digest of an image: such IDs of its config
	configs map[string][]string
	// again has the indexes that the next reader must read again, and why they could not be read.
	// The reason is nil for an index that was deleted: it may have been created again since.
	again map[string]error
}

// identified is what an ID that pods tell stands for.
type identified struct {
	isImage bool
	images  []string // that have it as their config
}

// isUnknown reports whether no image is known.
func (i identified) isUnknown() bool { return !i.isImage && len(i.images) == 0 }

// followIndexes returns a usedIndexes that follows usage. created and deleted report Images to it.
func followIndexes(usage Usage, get func(ctx context.Context, digest string) (*imagev1.Image, error), over, having func(ctx context.Context, digest string) ([]string, error)) *usedIndexes {
	x := &usedIndexes{usage: usage, get: get, over: over, having: having, ids: map[string]identified{}, configs: map[string][]string{}, refreshing: map[string]*refreshCalls{}, listed: map[string][]string{}, in: map[string][]string{}, above: map[string][]string{}, again: map[string]error{}}
	usage.Subscribe(func(digests []string) {
		for _, digest := range digests {
			x.refresh(context.Background(), digest) // no request waits for it
		}
	})
	return x
}

// created is called after image was created.
func (x *usedIndexes) created(ctx context.Context, image *imagev1.Image) {
	if len(image.DockerImageManifests) > 0 {
		x.refresh(ctx, image.Name)
	}
	for _, digest := range listed(image) {
		if x.inUse(digest) {
			x.refresh(ctx, digest)
		}
	}
	for _, id := range x.idsOf(image) {
		x.refresh(ctx, id)
	}
}

// idsOf returns the IDs by which pods may report an image: its digest, and its config's digest.
func (x *usedIndexes) idsOf(image *imagev1.Image) (all []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.ids) == 0 {
		return nil // the usual case
	}
	for _, id := range []string{image.Name, configOf(image)} {
		if _, told := x.ids[id]; told {
			all = append(all, id)
		}
	}
	return all
}

// settled reports whether it is known what an ID means.
func (x *usedIndexes) settled(id string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return !x.ids[id].isUnknown()
}

// unknown returns the IDs and digests that pods report and that no known image has, in no order,
// and their version. If the caller already has this version, it returns only the version.
func (x *usedIndexes) unknown(has uint64) (all []string, version uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.unknownAt == has {
		return nil, has
	}
	for id, is := range x.ids {
		if is.isUnknown() {
			all = append(all, id)
		}
	}
	return all, x.unknownAt
}

// unimported returns the IDs and digests that pods report, that no known image has, and that no
// known index lists.
func (x *usedIndexes) unimported() (all []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for id, is := range x.ids {
		if is.isUnknown() && len(x.above[id]) == 0 {
			all = append(all, id)
		}
	}
	return all
}

// keysOf returns the keys by which pods use the image with a digest: the digest, and the keys with
// an ID that is its digest or its config's.
func (x *usedIndexes) keysOf(digest string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	keys := []string{digest}
	if len(x.ids) == 0 {
		return keys // the usual case
	}
	keys = append(keys, x.usage.Telling(digest)...)
	for _, id := range x.configs[digest] {
		// a runtime may put the repository before the digest of a config, as before one of a manifest
		keys = append(append(keys, id), x.usage.Telling(id)...)
	}
	return keys
}

// deleted is called after image was deleted.
func (x *usedIndexes) deleted(image *imagev1.Image) {
	ids := x.idsOf(image)
	if x.inUse(image.Name) && !slices.Contains(ids, image.Name) {
		ids = append(ids, image.Name) // it may be the digest of another image's config
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range ids {
		x.identify(id, &identified{})
		x.again[id] = nil
	}
	if _, known := x.listed[image.Name]; known {
		x.add(image.Name, nil)
		x.again[image.Name] = nil
	}
	for _, digest := range listed(image) {
		x.keep(digest, slices.DeleteFunc(slices.Clone(x.above[digest]), func(index string) bool { return index == image.Name }))
	}
}

// keep records the indexes that list an image which pods use. The caller holds mu.
func (x *usedIndexes) keep(digest string, above []string) {
	if len(above) == 0 {
		delete(x.above, digest)
		return
	}
	x.above[digest] = above
}

// readAgain reads what must be read again. It is called before use is answered, with the context of
// the reader.
func (x *usedIndexes) readAgain(ctx context.Context) {
	x.mu.RLock()
	again := slices.Collect(maps.Keys(x.again))
	x.mu.RUnlock()
	for _, index := range again {
		x.refresh(ctx, index)
	}
}

// staleReasons names the indexes that could not be read: images that they list may be used without
// a sign of it.
func (x *usedIndexes) staleReasons() (all []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, index := range slices.Sorted(maps.Keys(x.again)) {
		if err := x.again[index]; err != nil {
			all = append(all, printable.Line(fmt.Sprintf("pods use the index %s, which cannot be read, so the images that it lists may be in use: %v", index, err), maxStaleReason))
		}
	}
	return all
}

// maxStaleReason bounds the text about an index that cannot be read, in bytes.
const maxStaleReason = 300

// complete reports whether all indexes that pods use could be read.
func (x *usedIndexes) complete() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, err := range x.again {
		if err != nil {
			return false
		}
	}
	return true
}

type refreshCalls struct {
	running int
	newest  uint64 // the last call whose answer is known
}

// refresh reads again whether pods use an index, which images it lists, and which indexes list it.
// It holds no lock while it reads. Its result counts unless a later call has finished, which saw
// the changes for which both were called. If an index cannot be read, its former facts stay.
func (x *usedIndexes) refresh(ctx context.Context, index string) {
	x.mu.Lock()
	x.calls++
	call, l := x.calls, x.refreshing[index]
	if l == nil {
		l = &refreshCalls{}
		x.refreshing[index] = l
	}
	l.running++
	x.mu.Unlock()

	lists, above, id, err := x.read(ctx, index)

	x.mu.Lock()
	defer x.mu.Unlock()
	if l.running--; l.running == 0 {
		delete(x.refreshing, index)
	}
	if call < l.newest {
		return
	}
	l.newest = call
	if err != nil {
		x.again[index] = err
		return
	}
	delete(x.again, index)
	x.add(index, lists)
	x.keep(index, above)
	x.identify(index, id)
}

// identify records what an ID stands for, if a pod reports it. The caller holds mu.
func (x *usedIndexes) identify(id string, is *identified) {
	if is != nil && is.isUnknown() || x.ids[id].isUnknown() { // or more pods tell it
		x.unknownAt++
	}
	for _, image := range x.ids[id].images {
		if x.configs[image] = slices.DeleteFunc(x.configs[image], func(other string) bool { return other == id }); len(x.configs[image]) == 0 {
			delete(x.configs, image)
		}
	}
	if is == nil {
		delete(x.ids, id)
		return
	}
	x.ids[id] = *is
	for _, image := range is.images {
		x.configs[image] = append(x.configs[image], id)
	}
}

// inUse reports whether pods use, or workloads need, the image of a digest.
func (x *usedIndexes) inUse(digest string) bool {
	return x.usage.PodsUsing([]string{digest}, nil) > 0 || len(x.usage.NeededBy([]string{digest}, nil, 1)) > 0
}

// read returns what an index lists and which indexes list it; nothing if nothing uses or needs it.
// id is what it means as an ID that pods tell, nil if none does and an image with the digest is
// stored.
func (x *usedIndexes) read(ctx context.Context, index string) (lists []imagev1.ImageManifest, above []string, id *identified, err error) {
	isID := len(x.usage.Telling(index)) > 0
	if !isID && !x.inUse(index) {
		return nil, nil, nil, nil
	}
	image, err := x.get(ctx, index)
	if err != nil {
		return nil, nil, nil, err
	}
	if image != nil {
		lists = image.DockerImageManifests
	}
	if isID || image == nil {
		id = &identified{isImage: image != nil}
		if id.images, err = x.having(ctx, index); err != nil {
			return nil, nil, nil, err
		}
	}
	above, err = x.over(ctx, index)
	if err != nil {
		return nil, nil, nil, err
	}
	if id != nil {
		for _, one := range id.images {
			over, err := x.over(ctx, one)
			if err != nil {
				return nil, nil, nil, err
			}
			above = append(above, over...)
		}
	}
	return lists, above, id, nil
}

// running returns the digests that pods run which report some digests or an ID, sorted. For a
// config's digest it returns the digests of the known images with this config, if there are any.
func (x *usedIndexes) running(digests []string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := slices.Clone(digests)
	for id, is := range x.ids {
		all = append(append(all, is.images...), id)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(digest string) bool {
		is := x.ids[digest]
		return !is.isImage && len(is.images) > 0
	})
}

// add records what an index lists. The caller holds mu.
func (x *usedIndexes) add(index string, lists []imagev1.ImageManifest) {
	for _, image := range x.listed[index] {
		x.in[image] = slices.DeleteFunc(x.in[image], func(other string) bool { return other == index || strings.HasPrefix(other, index+"@") })
		if len(x.in[image]) == 0 {
			delete(x.in, image)
		}
	}
	delete(x.listed, index)
	for i, nodes := range manifest.Nodes(manifest.Platforms(lists)) {
		image := lists[i].Digest
		if len(nodes) == 0 {
			x.in[image] = append(x.in[image], index)
		}
		for _, node := range nodes {
			x.in[image] = append(x.in[image], index+"@"+node)
		}
		x.listed[index] = append(x.listed[index], image)
	}
}

// listing returns the indexes that pods use and that list the image, with the platform, as
// Usage.PodsUsing takes them.
func (x *usedIndexes) listing(image string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Clone(x.in[image])
}

// images returns the images that used indexes list, and the indexes that list used images.
func (x *usedIndexes) images() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]string, 0, len(x.in))
	for image := range x.in {
		all = append(all, image)
	}
	for _, above := range x.above {
		all = append(all, above...)
	}
	for id, is := range x.ids {
		all = append(all, is.images...)
		if is.isImage {
			all = append(all, id)
		}
	}
	return all
}
