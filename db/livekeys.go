package db

import (
	"hash/maphash"
	"sync"

	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

// A disk that loses a write leaves the previous version of a page, which looks intact. If it is a
// page of the index live, it lacks the keys that were written since: a get would find no object,
// and a create would create a second one. So the process keeps the live keys in memory, read from
// the table, and looks into the table for a key that it expects and that the index lacks.

// maxLiveKeys bounds the keys in memory, to about 40 MB. In a larger database, and after a start
// until the table has been read, only checkNeighbours detects damage.
const maxLiveKeys = 1 << 20

// liveKeys holds the revision of each live key.
type liveKeys struct {
	seed maphash.Seed

	mu       sync.RWMutex
	revs     map[uint64]int64 // by hash of the key; of two keys with one hash, one is there
	complete bool             // the table has been read to its end
	// changing are the keys of a commit that readers may see before it is in revs.
	changing map[uint64]bool
}

func newLiveKeys() *liveKeys {
	return &liveKeys{seed: maphash.MakeSeed(), revs: map[uint64]int64{}, changing: map[uint64]bool{}}
}

// find returns the revision at which key should be, or 0 if the key should not exist or is not in
// memory. complete is true if all keys are in memory.
func (l *liveKeys) find(key string) (rev int64, complete bool) {
	hash := maphash.String(l.seed, key)
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.revs[hash], l.complete
}

// newest returns the revision of key's newest value, of which readers have seen no later one. ok is
// false if it is not known. With a probability of some 1 in 2^64, it is another key's.
func (l *liveKeys) newest(key string) (rev int64, ok bool) {
	hash := maphash.String(l.seed, key)
	l.mu.RLock()
	defer l.mu.RUnlock()
	rev = l.revs[hash]
	return rev, rev > 0 && !l.changing[hash]
}

// begin announces the changes of a commit before it. The revisions of their keys are unknown until
// end.
func (l *liveKeys) begin(events []*changelog.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.changing[maphash.String(l.seed, e.Key)] = true
	}
}

// end follows a commit, or its failure.
func (l *liveKeys) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.changing)
}

// commit applies the changes of a commit.
func (l *liveKeys) commit(events []*changelog.Event) {
	for _, e := range events {
		if !e.Deleted {
			l.put(e.Key, e.Rev)
			continue
		}
		l.mu.Lock()
		delete(l.revs, maphash.String(l.seed, e.Key))
		l.mu.Unlock()
	}
}

func (l *liveKeys) put(key string, rev int64) {
	hash := maphash.String(l.seed, key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revs == nil {
		return
	}
	l.revs[hash] = max(rev, l.revs[hash])
	if len(l.revs) > maxLiveKeys {
		l.revs, l.complete = nil, false
	}
}
