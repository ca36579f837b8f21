package usage

import (
	"slices"
	"sync"
	"sync/atomic"
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

	subscribers map[int]func(Change)
	nextID      int
}

// Change names images whose number of pods has changed: the digests and the
// references that pods use. References are in their full form, such as
// docker.io/library/nginx:latest.
type Change struct {
	Digests    []string
	References []string
}

// NewIndex returns an index over pods, empty until it is run.
func NewIndex(pods Pods) *Index {
	return &Index{
		pods:        pods,
		uses:        map[string][]string{},
		users:       map[string]map[string]struct{}{},
		subscribers: map[int]func(Change){},
	}
}

// Synced says whether every pod has been read once, so that a count of zero
// means that no pod uses the image.
func (x *Index) Synced() bool { return x.synced.Load() }

// PodsUsing returns how many pods use the image: by its digest, or, for pods
// that name no digest, by one of its references. A pod counts once.
func (x *Index) PodsUsing(digest string, references []string) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	wanted := make([]string, 0, 1+len(references))
	if digest != "" {
		wanted = append(wanted, digest)
	}
	if x.named == 0 {
		references = nil // the usual case: every pod tells what digests it runs
	}
	for _, ref := range references {
		// A reference with a digest adds nothing: it is the digest's.
		if i := parseReference(ref); i.digest == "" && i.key() != "" {
			wanted = append(wanted, i.key())
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

// Subscribe calls f after each change, in order, from the goroutine that runs
// the index: f must be quick, must not block and must not call Subscribe. The
// returned function ends the subscription.
func (x *Index) Subscribe(f func(Change)) (cancel func()) {
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
	var change Change
	for _, key := range before {
		if _, kept := slices.BinarySearch(now, key); !kept {
			change.add(key)
			x.leave(key, pod)
		}
	}
	for _, key := range now {
		if _, had := slices.BinarySearch(before, key); !had {
			change.add(key)
			x.join(key, pod)
		}
	}
	if len(now) == 0 {
		delete(x.uses, pod)
	} else {
		x.uses[pod] = now
	}
	told := make([]func(Change), 0, len(x.subscribers))
	for _, f := range x.subscribers {
		told = append(told, f)
	}
	x.mu.Unlock()
	for _, f := range told {
		f(change)
	}
}

func (x *Index) join(key, pod string) {
	if x.users[key] == nil {
		x.users[key] = map[string]struct{}{}
		if !isDigest(key) {
			x.named++
		}
	}
	x.users[key][pod] = struct{}{}
}

func (x *Index) leave(key, pod string) {
	delete(x.users[key], pod)
	if len(x.users[key]) == 0 {
		delete(x.users, key)
		if !isDigest(key) {
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

func (c *Change) add(key string) {
	if isDigest(key) {
		c.Digests = append(c.Digests, key)
	} else {
		c.References = append(c.References, key)
	}
}
