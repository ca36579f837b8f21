package usage

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Index counts the pods that use an image. It is empty until [Index.Run] has
// read the pods; see [Index.Synced]. It is safe for concurrent use.
type Index struct {
	sources []*source

	mu    sync.RWMutex
	uses  map[podID][]string            // pod → keys of its images, sorted
	users map[string]map[podID]struct{} // key of an image → pods
	named int                           // keys of users that are references

	subscribers map[int]func(digests []string)
	nextID      int
}

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
		uses:        map[podID][]string{},
		users:       map[string]map[podID]struct{}{},
		subscribers: map[int]func([]string){},
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
// pods that name no digest, by one of these references. A pod counts once.
func (x *Index) PodsUsing(digests []string, references []reference.Reference) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	single, union := x.using(digests, references)
	if union != nil {
		return len(union)
	}
	return len(single)
}

// UsedBy returns where these pods are: the clusters and, as cluster/namespace, their
// namespaces, sorted. Pods of this server are in the cluster [Local].
func (x *Index) UsedBy(digests []string, references []reference.Reference) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	pods, union := x.using(digests, references)
	if union != nil {
		pods = union
	}
	found := map[string]struct{}{}
	for pod := range pods {
		found[pod.cluster] = struct{}{}
		found[pod.cluster+"/"+pod.namespace] = struct{}{}
	}
	return slices.Sorted(maps.Keys(found))
}

// using returns the pods of PodsUsing: single where they are those of one key, which
// belong to the index, else union. The caller holds mu.
func (x *Index) using(digests []string, references []reference.Reference) (single, union map[podID]struct{}) {
	wanted := make([]string, 0, len(digests)+len(references))
	wanted = append(wanted, digests...)
	if x.named == 0 {
		references = nil // the usual case: every pod tells what digests it runs
	}
	for _, ref := range references {
		// A reference with a digest adds nothing: it is the digest's.
		if ref.Digest == "" {
			wanted = append(wanted, key(ref.Pulled()))
		}
	}
	for _, key := range wanted {
		pods := x.users[key]
		switch {
		case len(pods) == 0:
		case single == nil:
			single = pods
		default:
			if union == nil { // made only when pods are found under two keys
				union = make(map[podID]struct{}, len(single)+len(pods))
				maps.Copy(union, single)
			}
			maps.Copy(union, pods)
		}
	}
	return single, union
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

// set records what a pod uses, nothing when it is gone, and tells subscribers.
func (x *Index) set(pod podID, now []string) {
	x.mu.Lock()
	before := x.uses[pod]
	if slices.Equal(before, now) {
		x.mu.Unlock()
		return
	}
	var changed []string
	for _, key := range before {
		if _, kept := slices.BinarySearch(now, key); !kept {
			changed = append(changed, key)
			x.leave(key, pod)
		}
	}
	for _, key := range now {
		if _, had := slices.BinarySearch(before, key); !had {
			changed = append(changed, key)
			x.join(key, pod)
		}
	}
	if len(now) == 0 {
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
	if len(changed) == 0 {
		return
	}
	for _, f := range subscribers {
		f(changed)
	}
}

func (x *Index) join(key string, pod podID) {
	if x.users[key] == nil {
		x.users[key] = map[podID]struct{}{}
		if !reference.IsDigest(key) {
			x.named++
		}
	}
	x.users[key][pod] = struct{}{}
}

func (x *Index) leave(key string, pod podID) {
	delete(x.users[key], pod)
	if len(x.users[key]) == 0 {
		delete(x.users, key)
		if !reference.IsDigest(key) {
			x.named--
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
		x.set(pod, nil)
	}
}
