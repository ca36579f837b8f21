package kubestore

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// recentObjectBytes is the longest encoding of an object that is cached. A variable for benchmarks.
var recentObjectBytes = 4 << 10

// recentBytes is how many encoded bytes of a resource's objects are cached; decoded they take a few
// times as much.
const recentBytes = 2 << 20

// recents caches the small objects of a resource that were written last. An update of an object
// that is written often, such as a Lease or the status of a pod, starts from the cached object,
// without reading or decoding it. A cached object may be out of date: it is treated as a
// suggestion, which callers of storage.Interface may also pass.
type recents struct {
	mu    sync.Mutex
	young map[string]*state // at most half of recentBytes
	old   map[string]*state // the previous young
	bytes int               // of young
}

// add caches an object, its encoding data and its revision.
func (r *recents) add(key string, obj runtime.Object, rev int64, data []byte) {
	size := len(key) + len(data)
	if size > recentObjectBytes {
		return
	}
	st := &state{obj: obj.DeepCopyObject(), rev: rev, data: data}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes+size > recentBytes/2 || r.young == nil {
		r.old, r.young, r.bytes = r.young, map[string]*state{}, 0
	}
	if have := r.young[key]; have != nil {
		if have.rev > rev {
			return // a faster writer has cached a newer one
		}
		r.bytes -= len(key) + len(have.data)
	}
	delete(r.old, key)
	r.young[key] = st
	r.bytes += size
}

// forget drops the cached object of a key that was deleted at rev.
func (r *recents) forget(key string, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.young[key]; st == nil || st.rev < rev {
		r.remove(key)
	}
}

// pop removes and returns the cached object of a key, because the caller may change it. It returns
// nil if there is none of that type.
func (r *recents) pop(key string, like reflect.Type) *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.remove(key)
	if st == nil || reflect.TypeOf(st.obj) != reflect.PointerTo(like) {
		return nil
	}
	return st
}

// remove removes and returns the cached object of a key. The caller holds mu.
func (r *recents) remove(key string) *state {
	st := r.young[key]
	if st != nil {
		delete(r.young, key)
		r.bytes -= len(key) + len(st.data)
	} else if st = r.old[key]; st != nil {
		delete(r.old, key)
	}
	return st
}
