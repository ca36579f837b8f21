package usage

import (
	"maps"
	"slices"
	"sync"
)

// Tagged is a tag, in its canonical form, that a container names, and the digest that it runs.
type Tagged struct{ Tag, Digest string }

// tagged knows which pods name which tags, and what they run.
type tagged[ID comparable] struct {
	clusterOf func(ID) string
	onTags    func(tags []string)

	mu    sync.RWMutex
	pods  map[ID][]Tagged
	byTag map[string]map[ID]struct{}
}

func newTagged[ID comparable](clusterOf func(ID) string) *tagged[ID] {
	return &tagged[ID]{clusterOf: clusterOf, onTags: func([]string) {}, pods: map[ID][]Tagged{}, byTag: map[string]map[ID]struct{}{}}
}

// OnTags calls f with tags that pods have begun or ceased to name, or by which they run something
// else, from one goroutine for each source. f must be safe for concurrent use and quick. Call
// OnTags before Index.Run, and once.
func (t *tagged[ID]) OnTags(f func(tags []string)) { t.onTags = f }

// Tags are the tags that pods of followed clusters name, in their canonical form and no order.
func (t *tagged[ID]) Tags() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.byTag))
}

// Names reports whether a pod of a followed cluster names a tag, and it is known what runs.
func (t *tagged[ID]) Names(tag string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byTag[tag]) > 0
}

// Running counts the pods of followed clusters that name a tag and run one of the digests that is
// accepts: by cluster, and by digest. A pod counts once in its cluster. is is called once for each
// digest, and must not call the index.
func (t *tagged[ID]) Running(tag string, is func(digest string) bool) (byCluster, byDigest map[string]int) {
	byCluster, byDigest = map[string]int{}, map[string]int{}
	known := map[string]bool{}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id := range t.byTag[tag] {
		counted := map[string]bool{}
		for _, one := range t.pods[id] {
			if one.Tag != tag || counted[one.Digest] {
				continue
			}
			wanted, asked := known[one.Digest]
			if !asked {
				wanted = is(one.Digest)
				known[one.Digest] = wanted
			}
			if !wanted {
				continue
			}
			if len(counted) == 0 {
				byCluster[t.clusterOf(id)]++
			}
			counted[one.Digest] = true
			byDigest[one.Digest]++
		}
	}
	return byCluster, byDigest
}

// set records what a pod names; nothing when it is gone.
func (t *tagged[ID]) set(id ID, all []Tagged) {
	t.mu.Lock()
	before := t.pods[id]
	if slices.Equal(before, all) {
		t.mu.Unlock()
		return
	}
	changed := map[string]struct{}{}
	for _, one := range before {
		changed[one.Tag] = struct{}{}
		if of := t.byTag[one.Tag]; of != nil {
			if delete(of, id); len(of) == 0 {
				delete(t.byTag, one.Tag)
			}
		}
	}
	if len(all) == 0 {
		delete(t.pods, id)
	} else {
		t.pods[id] = all
	}
	for _, one := range all {
		changed[one.Tag] = struct{}{}
		if t.byTag[one.Tag] == nil {
			t.byTag[one.Tag] = map[ID]struct{}{}
		}
		t.byTag[one.Tag][id] = struct{}{}
	}
	t.mu.Unlock()
	t.onTags(slices.Collect(maps.Keys(changed)))
}
