package db

import (
	"hash/maphash"
	"sync"

	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

// A disk that loses a write leaves the previous page, which is whole. Such a page of the
// index live lacks the keys that were written since, and nothing in it says so: a get
// would find no object, and a create would put a second one beside it. So the process
// learns the live keys from the table, and asks the table about a key that the index
// lacks and that should be there.

// maxLiveKeys bounds the keys that are known, to about 40 MB. In a larger database, and
// at a start until the table has been read, checkNeighbours does what it can.
const maxLiveKeys = 1 << 20

// liveKeys holds the revision of each live key.
type liveKeys struct {
	seed maphash.Seed

	mu       sync.RWMutex
	revs     map[uint64]int64 // by hash of the key; of two keys with one hash, one is there
	complete bool             // the table has been read to its end
}

func newLiveKeys() *liveKeys {
	return &liveKeys{seed: maphash.MakeSeed(), revs: map[uint64]int64{}}
}

// find returns the revision that key should be at, or 0 if the key should not be there or
// is not known. complete is set when all keys are known.
func (l *liveKeys) find(key string) (rev int64, complete bool) {
	hash := maphash.String(l.seed, key)
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.revs[hash], l.complete
}

// commit takes over the changes of a commit.
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
