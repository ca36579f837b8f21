package usage

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Index counts the pods that use an image. It is empty until [Index.Run] has
// read the pods; see [Index.Synced]. It is safe for concurrent use.
type Index struct {
	sources []*source

	mu    sync.RWMutex
	uses  map[podID]uses                // pod → what it uses
	users map[string]map[podID]struct{} // key of an image → pods
	on    map[onPlatform]int            // digest of an image → how many pods, by platform
	named int                           // keys of users that are references

	subscribers map[int]func(digests []string)
	nextID      int
	told        func(Pod)
}

// uses is what a pod uses.
type uses struct {
	keys     []string // of its images, sorted
	platform string   // of its node; empty where that is not known
}

// onPlatform is an image on nodes of a platform, or where the platform is empty on those of which it is not known.
type onPlatform struct{ digest, platform string }

// source is a source with what the index knows of it.
type source struct {
	Source
	synced atomic.Bool
}

// podID names a pod: two may have the same name in different clusters.
type podID struct {
	source                   *source
	cluster, namespace, name string
}

// NewIndex returns an index over the pods of the sources, empty until it is run.
func NewIndex(sources ...Source) *Index {
	x := &Index{
		uses:        map[podID]uses{},
		users:       map[string]map[podID]struct{}{},
		on:          map[onPlatform]int{},
		subscribers: map[int]func([]string){},
		told:        func(Pod) {},
	}
	for _, s := range sources {
		x.sources = append(x.sources, &source{Source: s})
	}
	return x
}

// Synced says whether every pod that is stored has been read once, so that a count
// of zero means that no such pod uses the image.
func (x *Index) Synced() bool {
	return !slices.ContainsFunc(x.sources, func(s *source) bool { return !s.synced.Load() })
}

// PodsUsing returns how many pods use an image: by one of these digests, or, for
// pods that name no digest, by one of these references. A pod counts once. A digest
// may have a platform behind it, as in sha256:…@linux/arm64: then only pods count
// whose node is of this platform, or of one that is not known.
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
	pods := map[podID]struct{}{}
	x.each(found, func(pod podID) { pods[pod] = struct{}{} })
	return len(pods)
}

// UsedBy returns where these pods are: the clusters and, as cluster/namespace, their
// namespaces, sorted. Pods of this server are in the cluster [Local].
func (x *Index) UsedBy(digests []string, references []reference.Reference) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[string]struct{}{}
	x.each(x.using(digests, references), func(pod podID) {
		found[pod.cluster] = struct{}{}
		found[pod.cluster+"/"+pod.namespace] = struct{}{}
	})
	return slices.Sorted(maps.Keys(found))
}

// group is the pods that use an image.
type group struct {
	pods     map[podID]struct{} // belongs to the index
	platform string             // the only one of them that count; empty for all
	count    int
}

// using returns the groups of PodsUsing, none of them empty. The caller holds mu.
func (x *Index) using(digests []string, references []reference.Reference) (found []group) {
	for _, digest := range digests {
		digest, platform, _ := strings.Cut(digest, "@")
		g := group{pods: x.users[digest], platform: platform}
		if g.count = len(g.pods); platform != "" {
			g.count = x.on[onPlatform{digest, platform}] + x.on[onPlatform{digest, ""}]
		}
		if g.count > 0 {
			found = append(found, g)
		}
	}
	if x.named == 0 {
		return found // the usual case: every pod tells what digests it runs
	}
	for _, ref := range references {
		// A reference with a digest adds nothing: it is the digest's.
		if ref.Digest != "" {
			continue
		}
		if pods := x.users[key(ref.Pulled())]; len(pods) > 0 {
			found = append(found, group{pods: pods, count: len(pods)})
		}
	}
	return found
}

// each calls visit with the pods of the groups. The caller holds mu.
func (x *Index) each(found []group, visit func(podID)) {
	for _, g := range found {
		for pod := range g.pods {
			if on := x.uses[pod].platform; g.platform == "" || on == "" || on == g.platform {
				visit(pod)
			}
		}
	}
}

// InUse returns the digests that pods use, and the references that pods use
// which name no digest, in their full form: docker.io/library/nginx:latest.
func (x *Index) InUse() (digests, references []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for key := range x.users {
		if reference.IsDigest(key) {
			digests = append(digests, key)
		} else {
			references = append(references, key)
		}
	}
	return digests, references
}

// Subscribe calls f with the digests whose number of pods has changed, after each
// such change, from a goroutine for each source. f must be safe for concurrent use and
// quick, and must not call Subscribe. The returned function ends the subscription.
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

// OnUse has f called with each pod that exists whenever what it uses has changed, from
// a goroutine for each source, once [Index.Run] runs. f must be safe for concurrent use
// and quick. Call it before Run, and once.
func (x *Index) OnUse(f func(Pod)) { x.told = f }

// set records what a pod uses, nothing when it is gone, and tells subscribers. It is
// false if that was known.
func (x *Index) set(pod podID, now uses) (changes bool) {
	x.mu.Lock()
	before := x.uses[pod]
	if slices.Equal(before.keys, now.keys) && before.platform == now.platform {
		x.mu.Unlock()
		return false
	}
	moved := before.platform != now.platform
	var changed []string
	for _, key := range before.keys {
		if _, kept := slices.BinarySearch(now.keys, key); !kept || moved {
			changed = append(changed, key)
			x.leave(key, pod, before.platform)
		}
	}
	for _, key := range now.keys {
		if _, had := slices.BinarySearch(before.keys, key); !had || moved {
			changed = append(changed, key)
			x.join(key, pod, now.platform)
		}
	}
	if len(now.keys) == 0 {
		delete(x.uses, pod)
	} else {
		x.uses[pod] = now
	}
	subscribers := make([]func([]string), 0, len(x.subscribers))
	for _, f := range x.subscribers {
		subscribers = append(subscribers, f)
	}
	x.mu.Unlock()
	changed = slices.DeleteFunc(changed, func(key string) bool { return !reference.IsDigest(key) })
	slices.Sort(changed)
	if changed = slices.Compact(changed); len(changed) == 0 {
		return true
	}
	for _, f := range subscribers {
		f(changed)
	}
	return true
}

func (x *Index) join(key string, pod podID, platform string) {
	if x.users[key] == nil {
		x.users[key] = map[podID]struct{}{}
		if !reference.IsDigest(key) {
			x.named++
		}
	}
	x.users[key][pod] = struct{}{}
	if reference.IsDigest(key) {
		x.on[onPlatform{key, platform}]++
	}
}

func (x *Index) leave(key string, pod podID, platform string) {
	delete(x.users[key], pod)
	if len(x.users[key]) == 0 {
		delete(x.users, key)
		if !reference.IsDigest(key) {
			x.named--
		}
	}
	if reference.IsDigest(key) {
		on := onPlatform{key, platform}
		if x.on[on]--; x.on[on] == 0 {
			delete(x.on, on)
		}
	}
}

// retain forgets every pod of a source that is not in alive.
func (x *Index) retain(s *source, alive map[podID]struct{}) {
	x.mu.RLock()
	var gone []podID
	for pod := range x.uses {
		if _, ok := alive[pod]; !ok && pod.source == s {
			gone = append(gone, pod)
		}
	}
	x.mu.RUnlock()
	for _, pod := range gone {
		x.set(pod, uses{})
	}
}
