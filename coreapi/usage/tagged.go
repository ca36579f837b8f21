package usage

import (
	"maps"
	"slices"
	"sync"
)

// tagged knows which pods name which tags, and what they run.
type tagged struct {
	mu    *sync.RWMutex
	pods  map[podID][]Tagged
	byTag map[string]map[podID]struct{}
	told  func(tags []string)
}

func newTagged() tagged {
	return tagged{mu: &sync.RWMutex{}, pods: map[podID][]Tagged{}, byTag: map[string]map[podID]struct{}{}, told: func([]string) {}}
}

// OnTags calls f with tags that pods have begun or ceased to name, or by which they run something else, from one goroutine for each
// source. f must be safe for concurrent use and quick. Call OnTags before Run, and once.
func (x *Index) OnTags(f func(tags []string)) { x.tagged.told = f }

// Tags are the tags that pods of followed clusters name, in their canonical form and no order.
func (x *Index) Tags() []string {
	x.tagged.mu.RLock()
	defer x.tagged.mu.RUnlock()
	return slices.Collect(maps.Keys(x.tagged.byTag))
}

// Names reports whether a pod of a followed cluster names a tag, and it is known what runs.
func (x *Index) Names(tag string) bool {
	x.tagged.mu.RLock()
	defer x.tagged.mu.RUnlock()
	return len(x.tagged.byTag[tag]) > 0
}

// Running counts the pods of followed clusters that name a tag and run one of the digests that is accepts: by cluster, and by
// digest. A pod counts once in its cluster. is is called once for each digest, and must not call the index.
func (x *Index) Running(tag string, is func(digest string) bool) (byCluster, byDigest map[string]int) {
	byCluster, byDigest = map[string]int{}, map[string]int{}
	known := map[string]bool{}
	x.tagged.mu.RLock()
	defer x.tagged.mu.RUnlock()
	for id := range x.tagged.byTag[tag] {
		counted := map[string]bool{}
		for _, t := range x.tagged.pods[id] {
			if t.Tag != tag || counted[t.Digest] {
				continue
			}
			wanted, asked := known[t.Digest]
			if !asked {
				wanted = is(t.Digest)
				known[t.Digest] = wanted
			}
			if !wanted {
				continue
			}
			if len(counted) == 0 {
				byCluster[id.in.Value().cluster]++
			}
			counted[t.Digest] = true
			byDigest[t.Digest]++
		}
	}
	return byCluster, byDigest
}

// set records what a pod names; nothing when it is gone.
func (t *tagged) set(id podID, all []Tagged) {
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
			t.byTag[one.Tag] = map[podID]struct{}{}
		}
		t.byTag[one.Tag][id] = struct{}{}
	}
	t.mu.Unlock()
	t.told(slices.Collect(maps.Keys(changed)))
}
