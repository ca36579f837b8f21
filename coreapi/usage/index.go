package usage

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Index counts the pods that use an image, and knows the workloads that need it: what makes pods,
// whether it runs any or not. It is empty until [Index.Run] has read the pods; see [Index.Synced].
// Others report workloads to it; see [Index.Workloads]. It is safe for concurrent use.
type Index struct {
	sources []*source
	*tagged[podID]

	mu     sync.RWMutex
	pods   map[podID]*user     // the pods that use an image, and the workloads that need one
	images map[string]*image   // these images, by key
	on     map[onPlatform]int  // how many pods use a digest, by platform
	named  int                 // keys of images that are no digests
	ids    map[string][]string // keys with an ID, by the ID
	// changed is how often the pods and workloads of such an image have changed
	changed uint64

	subscribers map[int]func(digests []string)
	nextID      int
	onUse       func(Pod)
}

// user is a pod that uses images, or a workload that needs them.
type user struct {
	in       unique.Handle[podNamespace]
	name     string
	platform unique.Handle[string] // of its node; empty if that is not known
	since    int64                 // when it was created, in seconds since 1970; 0 for workloads
	images   []*image              // sorted by key
}

// image is an image that pods use or workloads need.
type image struct {
	key             string
	pods, workloads map[*user]struct{}
}

// users returns the map of the pods or of the workloads that use the image.
func (i *image) users(workloads bool) *map[*user]struct{} {
	if workloads {
		return &i.workloads
	}
	return &i.pods
}

// onPlatform is an image on nodes of a platform; the empty platform is for nodes whose platform is
// not known.
type onPlatform struct{ digest, platform string }

// source is a Source with the index's state of it, or a kind of workloads.
type source struct {
	Source
	synced   atomic.Bool
	resource string // of workloads; empty for pods
}

// podID identifies a pod: pods of different clusters may have the same name.
type podID struct {
	in   unique.Handle[podNamespace] // shared by many pods
	name string
}

// podNamespace is the cluster and namespace of pods.
type podNamespace struct {
	source             *source
	cluster, namespace string
}

// NewIndex returns an index over the pods of the sources, empty until it is run.
func NewIndex(sources ...Source) *Index {
	x := &Index{
		pods:        map[podID]*user{},
		images:      map[string]*image{},
		on:          map[onPlatform]int{},
		ids:         map[string][]string{},
		changed:     1, // 0 is the version before the first read
		subscribers: map[int]func([]string){},
		onUse:       func(Pod) {},
		tagged:      newTagged(func(id podID) string { return id.in.Value().cluster }),
	}
	for _, s := range sources {
		x.sources = append(x.sources, &source{Source: s})
	}
	return x
}

// Synced reports whether every stored pod has been read once, so that a count of zero means that no
// such pod uses the image.
func (x *Index) Synced() bool {
	return !slices.ContainsFunc(x.sources, func(s *source) bool { return !s.synced.Load() })
}

// PodsUsing returns how many pods use an image: by one of these digests or other keys, or, for pods
// that name no digest, by one of these references. A pod counts once. A key may be followed by a
// platform, as in sha256:…@linux/arm64: then pods on nodes of other platforms do not count.
func (x *Index) PodsUsing(digests []string, references []reference.Reference) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := x.using(digests, references)
	switch len(found) {
	case 0:
		return 0
	case 1:
		return found[0].count
	}
	pods := map[*user]struct{}{}
	x.each(found, func(p *user) { pods[p] = struct{}{} })
	return len(pods)
}

// UsedBy returns where these pods are: the clusters and, as cluster/namespace, their
// namespaces, sorted. Pods of this server are in the cluster [Local].
func (x *Index) UsedBy(digests []string, references []reference.Reference) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[string]struct{}{}
	x.each(x.using(digests, references), func(p *user) {
		in := p.in.Value()
		found[in.cluster] = struct{}{}
		found[in.cluster+"/"+in.namespace] = struct{}{}
	})
	return slices.Sorted(maps.Keys(found))
}

// Users returns up to limit of these pods, as cluster/namespace/name, sorted. It is undefined which
// ones. It examines no more pods than it returns, except those on other platforms.
func (x *Index) Users(digests []string, references []reference.Reference, limit int) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[string]struct{}{}
	for _, g := range x.using(digests, references) {
		for p := range g.pods {
			if len(found) >= limit {
				break
			}
			if p.counts(g) {
				in := p.in.Value()
				found[in.cluster+"/"+in.namespace+"/"+p.name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Used returns the keys among the given ones that pods use: see PodsUsing.
func (x *Index) Used(keys []string) (used []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, key := range keys {
		if len(x.using([]string{key}, nil)) > 0 {
			used = append(used, key)
		}
	}
	return used
}

// group are the pods that use an image.
type group struct {
	pods     map[*user]struct{} // belongs to the index
	platform string             // only pods on this platform count; empty for all
	count    int
}

// using returns the groups of PodsUsing, without empty ones. The caller holds mu.
func (x *Index) using(digests []string, references []reference.Reference) (found []group) {
	for _, digest := range digests {
		digest, platform, _ := strings.Cut(digest, "@")
		g := group{pods: x.users(digest), platform: platform}
		if g.count = len(g.pods); platform != "" {
			g.count = x.on[onPlatform{digest, platform}] + x.on[onPlatform{digest, ""}]
		}
		if g.count > 0 {
			found = append(found, g)
		}
	}
	if x.named == 0 {
		return found // the usual case: every pod names the digests that it runs
	}
	for _, ref := range references {
		// A reference with a digest adds nothing to the digest's group.
		if ref.Digest != "" {
			continue
		}
		if pods := x.users(podimages.Key(ref.Pulled())); len(pods) > 0 {
			found = append(found, group{pods: pods, count: len(pods)})
		}
	}
	return found
}

// users returns the pods that use the image of a key. The map is the index's. The caller holds mu.
func (x *Index) users(key string) map[*user]struct{} {
	if used := x.images[key]; used != nil {
		return used.pods
	}
	return nil
}

// each calls visit with the pods of the groups. The caller holds mu.
func (x *Index) each(found []group, visit func(*user)) {
	for _, g := range found {
		for p := range g.pods {
			if p.counts(g) {
				visit(p)
			}
		}
	}
}

// counts reports whether a pod of a group counts.
func (p *user) counts(g group) bool {
	on := p.platform.Value()
	return g.platform == "" || on == "" || on == g.platform
}

// NeededBy returns up to limit of the workloads that need an image, as
// cluster/namespace/resource/name, sorted. It is undefined which ones. The arguments are as for
// PodsUsing; a workload has no platform, so each counts.
func (x *Index) NeededBy(digests []string, references []reference.Reference, limit int) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[string]struct{}{}
	add := func(key string) {
		if i := x.images[key]; i != nil {
			for w := range i.workloads {
				if len(found) >= limit {
					return
				}
				in := w.in.Value()
				found[in.cluster+"/"+in.namespace+"/"+in.source.resource+"/"+w.name] = struct{}{}
			}
		}
	}
	for _, digest := range digests {
		digest, _, _ = strings.Cut(digest, "@")
		add(digest)
	}
	if x.named > 0 {
		for _, ref := range references {
			if ref.Digest == "" {
				add(podimages.Key(ref.Pulled()))
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// InUse returns the digests that pods use or workloads need, and the other keys, in no order; see
// Named for these.
func (x *Index) InUse() (digests, others []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for key := range x.images {
		if reference.IsDigest(key) {
			digests = append(digests, key)
		} else {
			others = append(others, key)
		}
	}
	return digests, others
}

// Named is a tag that pods or workloads name without saying, by its digest, which manifest they
// use.
type Named struct {
	// Tag is in its full form: docker.io/library/nginx:latest. It is "" if only the ID is known.
	Tag string
	// ID is what the runtime reports instead; "" if it reports nothing. See [podimages.ID].
	ID string
	// Since is when the oldest of the pods was created, in seconds since 1970; 0 if there are only
	// workloads.
	Since int64
}

// Key is the key of the pods and workloads, for the methods of [Index].
func (n Named) Key() string {
	if n.ID == "" {
		return n.Tag
	}
	return podimages.Unsettled(n.Tag, n.ID)
}

// Named returns the tags that are named without a digest, in no order, and a version of them. If
// that is the one that the caller has, it returns none.
func (x *Index) Named(has uint64) (all []Named, version uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.changed == has {
		return nil, has
	}
	for key, i := range x.images {
		if reference.IsDigest(key) {
			continue
		}
		n := Named{Tag: key}
		if tag, id, ok := podimages.CutUnsettled(key); ok {
			n.Tag, n.ID = tag, id
		}
		for p := range i.pods {
			if n.Since == 0 || p.since < n.Since {
				n.Since = p.since
			}
		}
		all = append(all, n)
	}
	return all, x.changed
}

// Reporting returns the tags of pods whose runtime reports one of some digests as the manifest's,
// in no order. The ID of each Named is this digest.
func (x *Index) Reporting(digests []string) (all []Named) {
	at := map[Named]int{}
	for _, digest := range digests {
		for id, since := range x.sinceOf(digest) {
			for _, one := range x.tagged.of(id) {
				if one.Digest != digest {
					continue
				}
				n := Named{Tag: one.Tag, ID: digest}
				i, had := at[n]
				if !had {
					i = len(all)
					at[n], all = i, append(all, n)
				}
				if !had || since < all[i].Since {
					all[i].Since = since
				}
			}
		}
	}
	return all
}

// sinceOf returns the pods that use the image of a key, and when each was created.
func (x *Index) sinceOf(key string) map[podID]int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := map[podID]int64{}
	for p := range x.users(key) {
		all[podID{p.in, p.name}] = p.since
	}
	return all
}

// Telling returns the keys of the pods whose runtime reports an ID: see [podimages.ID].
func (x *Index) Telling(id string) (keys []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Clone(x.ids[id])
}

// Subscribe calls f with the digests whose number of pods or of workloads has changed, and with the
// IDs, after each such change, from one goroutine for each source. f must be safe for concurrent
// use and quick, and must not call Subscribe. The returned function ends the subscription.
func (x *Index) Subscribe(f func(digests []string)) (cancel func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.nextID
	x.nextID++
	x.subscribers[id] = f
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.subscribers, id)
	}
}

// OnUse calls f with each existing pod, and no workload, whenever the images that it uses have
// changed, from one goroutine for each source, once [Index.Run] runs. f must be safe for concurrent
// use and quick. Call OnUse before Run, and once.
func (x *Index) OnUse(f func(Pod)) { x.onUse = f }

// set records what a pod uses or a workload needs, by sorted keys (none when it is gone), and
// notifies subscribers. It returns false if nothing has changed.
func (x *Index) set(id podID, keys []string, platform string, since int64) (changes bool) {
	x.mu.Lock()
	p := x.pods[id]
	if p == nil {
		p = &user{in: id.in, name: id.name, platform: unique.Make("")}
	}
	before, was, on := p.images, p.platform, unique.Make(platform)
	if slices.EqualFunc(before, keys, func(i *image, key string) bool { return i.key == key }) && was == on {
		if p.since != since { // another pod of the same name
			p.since = since
			x.changed++
		}
		x.mu.Unlock()
		return false
	}
	var changed []string
	for _, i := range before {
		if _, kept := slices.BinarySearch(keys, i.key); !kept || was != on {
			changed = append(changed, i.key)
			x.leave(i, p, was.Value())
		}
	}
	p.platform, p.since, p.images = on, since, make([]*image, 0, len(keys))
	for _, key := range keys {
		at, had := slices.BinarySearchFunc(before, key, func(i *image, key string) int { return strings.Compare(i.key, key) })
		if had && was == on {
			p.images = append(p.images, before[at])
			continue
		}
		changed = append(changed, key)
		p.images = append(p.images, x.join(key, p, platform))
	}
	if len(keys) == 0 {
		delete(x.pods, id)
	} else {
		x.pods[id] = p
	}
	subscribers := slices.Collect(maps.Values(x.subscribers))
	digests := changed[:0]
	for _, key := range changed {
		if reference.IsDigest(key) {
			digests = append(digests, key)
			continue
		}
		x.changed++
		if _, of, ok := podimages.CutUnsettled(key); ok {
			digests = append(digests, of)
		}
	}
	x.mu.Unlock()
	changed = digests
	slices.Sort(changed)
	if changed = slices.Compact(changed); len(changed) == 0 {
		return true
	}
	for _, f := range subscribers {
		f(changed)
	}
	return true
}

func (x *Index) join(key string, p *user, platform string) *image {
	i := x.images[key]
	if i == nil {
		i = &image{key: strings.Clone(key)} // key may be part of a larger text from a pod
		x.images[i.key] = i
		if !reference.IsDigest(key) {
			x.named++
		}
		if _, id, ok := podimages.CutUnsettled(i.key); ok {
			x.ids[id] = append(x.ids[id], i.key)
		}
	}
	workload := p.isWorkload()
	users := i.users(workload)
	if *users == nil {
		*users = map[*user]struct{}{}
	}
	(*users)[p] = struct{}{}
	if !workload {
		x.on[onPlatform{i.key, platform}]++
	}
	return i
}

func (x *Index) leave(i *image, p *user, platform string) {
	workload := p.isWorkload()
	delete(*i.users(workload), p)
	if len(i.pods)+len(i.workloads) == 0 {
		delete(x.images, i.key)
		if !reference.IsDigest(i.key) {
			x.named--
		}
		if _, id, ok := podimages.CutUnsettled(i.key); ok {
			if x.ids[id] = slices.DeleteFunc(x.ids[id], func(key string) bool { return key == i.key }); len(x.ids[id]) == 0 {
				delete(x.ids, id)
			}
		}
	}
	if !workload {
		on := onPlatform{i.key, platform}
		if x.on[on]--; x.on[on] == 0 {
			delete(x.on, on)
		}
	}
}

func (p *user) isWorkload() bool { return p.in.Value().source.resource != "" }

// retain forgets every pod of a source that is not in alive.
func (x *Index) retain(s *source, alive map[podID]struct{}) {
	x.mu.RLock()
	var gone []podID
	for id := range x.pods {
		if _, ok := alive[id]; !ok && id.in.Value().source == s {
			gone = append(gone, id)
		}
	}
	x.mu.RUnlock()
	for _, id := range gone {
		x.tagged.set(id, nil)
		x.set(id, nil, "", 0)
	}
}
