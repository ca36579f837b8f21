package usage

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Index counts the pods that use an image. It is empty until [Index.Run] has
// read the pods; see [Index.Synced]. It is safe for concurrent use.
type Index struct {
	pods   Pods
	synced atomic.Bool

	mu    sync.RWMutex
	uses  map[string][]string            // pod → keys of its images, sorted
	users map[string]map[string]struct{} // key of an image → pods
	named int                            // keys of users that are references

	subscribers map[int]func(digests []string)
	nextID      int
}

// NewIndex returns an index over pods, empty until it is run.
func NewIndex(pods Pods) *Index {
	return &Index{
		pods:        pods,
		uses:        map[string][]string{},
		users:       map[string]map[string]struct{}{},
		subscribers: map[int]func([]string){},
	}
}

// Synced says whether every pod has been read once, so that a count of zero
// means that no pod uses the image.
func (x *Index) Synced() bool { return x.synced.Load() }

// PodsUsing returns how many pods use an image: by one of these digests, or, for
// pods that name no digest, by one of these references. A pod counts once.
func (x *Index) PodsUsing(digests []string, references []reference.Reference) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
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
	var single map[string]struct{}
	var union map[string]struct{} // made only when pods are found under two keys
	for _, key := range wanted {
		pods := x.users[key]
		switch {
		case len(pods) == 0:
		case single == nil:
			single = pods
		default:
			if union == nil {
				union = make(map[string]struct{}, len(single)+len(pods))
				for pod := range single {
					union[pod] = struct{}{}
				}
			}
			for pod := range pods {
				union[pod] = struct{}{}
			}
		}
	}
	if union != nil {
		return len(union)
	}
	return len(single)
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

// Subscribe calls f with the digests whose number of pods has changed, after
// each such change and in order, from the goroutine that runs the index: f must
// be quick and must not call Subscribe. The returned function ends the
// subscription.
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
func (x *Index) set(pod string, now []string) {
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
	told := make([]func([]string), 0, len(x.subscribers))
	for _, f := range x.subscribers {
		told = append(told, f)
	}
	x.mu.Unlock()
	changed = slices.DeleteFunc(changed, func(key string) bool { return !reference.IsDigest(key) })
	if len(changed) == 0 {
		return
	}
	for _, f := range told {
		f(changed)
	}
}

func (x *Index) join(key, pod string) {
	if x.users[key] == nil {
		x.users[key] = map[string]struct{}{}
		if !reference.IsDigest(key) {
			x.named++
		}
	}
	x.users[key][pod] = struct{}{}
}

func (x *Index) leave(key, pod string) {
	delete(x.users[key], pod)
	if len(x.users[key]) == 0 {
		delete(x.users, key)
		if !reference.IsDigest(key) {
			x.named--
		}
	}
}

// retain forgets every pod that is not in alive.
func (x *Index) retain(alive map[string]struct{}) {
	x.mu.RLock()
	var gone []string
	for pod := range x.uses {
		if _, ok := alive[pod]; !ok {
			gone = append(gone, pod)
		}
	}
	x.mu.RUnlock()
	for _, pod := range gone {
		x.set(pod, nil)
	}
}
