package usage

import (
	"iter"
	"maps"
	"slices"
	"sync"
)

// Tagged is a tag, in its canonical form, that a container names, and the digest that it runs: of a
// manifest, or else an ID as [podimages.Unsettled] writes it; "" if the pod does not tell.
type Tagged struct{ Tag, Digest string }

// State is what is known of a container that names a tag.
type State int

// The states, the one that decides for a pod last.
const (
	Current  State = iota // it runs what the tag leads to
	Unknown               // it may run that
	Outdated              // it runs something else
)

// Count counts pods by cluster, and by the digest that they run.
type Count struct{ ByCluster, ByDigest map[string]int }

// Pods is how many they are.
func (c Count) Pods() (n int) {
	for _, pods := range c.ByCluster {
		n += pods
	}
	return n
}

func (c Count) add(cluster string, digests []string) {
	c.ByCluster[cluster]++
	slices.Sort(digests)
	for _, digest := range slices.Compact(digests) {
		c.ByDigest[digest]++
	}
}

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

// OnTags calls f with tags that pods have begun or ceased to name, or whose pods run another image
// now. The calls come from one goroutine for each source, so f must be safe for concurrent use, and
// quick. Call OnTags once, before Index.Run.
func (t *tagged[ID]) OnTags(f func(tags []string)) { t.onTags = f }

// Tags are the tags that pods name, in their canonical form and no order.
func (t *tagged[ID]) Tags() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.byTag))
}

// of returns the containers of a pod that name a tag.
func (t *tagged[ID]) of(id ID) []Tagged {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pods[id]
}

// Names reports whether a pod names a tag.
func (t *tagged[ID]) Names(tag string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byTag[tag]) > 0
}

// Run is what a container runs: the digest as which it is counted, and its state.
type Run struct {
	Digest string
	State  State
}

// Running counts the pods that name one of some tags, or any if none is given, and are [Outdated]
// or [Unknown]. A pod counts once: of its containers that name such a tag, those in the last state
// decide. as must not call the index.
func (t *tagged[ID]) Running(tags []string, as func(Tagged) Run) (outdated, unknown Count) {
	counts := map[State]Count{Outdated: {map[string]int{}, map[string]int{}}, Unknown: {map[string]int{}, map[string]int{}}}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id := range t.naming(tags) {
		state := Current
		var digests []string
		for _, one := range t.pods[id] {
			if len(tags) > 0 && !slices.Contains(tags, one.Tag) {
				continue
			}
			switch run := as(one); {
			case run.State > state:
				state, digests = run.State, []string{run.Digest}
			case run.State == state && state != Current:
				digests = append(digests, run.Digest)
			}
		}
		if state != Current {
			counts[state].add(t.clusterOf(id), digests)
		}
	}
	return counts[Outdated], counts[Unknown]
}

// naming are the pods that name one of some tags, or any if none is given, each once. The caller
// holds mu.
func (t *tagged[ID]) naming(tags []string) iter.Seq[ID] {
	switch len(tags) {
	case 0:
		return maps.Keys(t.pods)
	case 1:
		return maps.Keys(t.byTag[tags[0]])
	}
	pods := map[ID]struct{}{}
	for _, tag := range tags {
		maps.Copy(pods, t.byTag[tag])
	}
	return maps.Keys(pods)
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
