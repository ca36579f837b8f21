package kubestore

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// recentObjectBytes is the longest encoding of an object that is remembered. A variable
// for benchmarks.
var recentObjectBytes = 4 << 10

// recentBytes is how much encoding of a resource's objects is remembered;
// decoded they take a few times as much.
const recentBytes = 2 << 20

// recents are the small objects of a resource that were written last. An object that is
// written again and again, such as a Lease or the status of a pod, starts its next update
// from the last one, which is neither read nor decoded. A remembered object may be out of
// date: it is treated as a suggestion, which callers of storage.Interface may give as
// well.
type recents struct {
	mu    sync.Mutex
	young map[string]*state // at most half of recentBytes
	old   map[string]*state // what young was before
	bytes int               // of young
}

// add remembers that an object, whose encoding is data, is at a revision.
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
			return // a writer that overtook this one remembers more
		}
		r.bytes -= len(key) + len(have.data)
	}
	delete(r.old, key)
	r.young[key] = st
	r.bytes += size
}

// forget forgets what is remembered of a key that was deleted at rev.
func (r *recents) forget(key string, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.young[key]; st == nil || st.rev < rev {
		r.remove(key)
	}
}

// pop returns the remembered object of a key, and forgets it, since the caller may
// change it. It returns nil when there is none of that type.
func (r *recents) pop(key string, like reflect.Type) *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.remove(key)
	if st == nil || reflect.TypeOf(st.obj) != reflect.PointerTo(like) {
		return nil
	}
	return st
}

// remove removes what is remembered of a key, which is young or old, and returns
// it. mu is held.
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
