package db

import "sync"

// holdWindows is how many history windows old a change may be that a hold keeps readable: an hour,
// unless Options say otherwise.
const holdWindows = 12

// holds are the revisions that somebody still reads, and how many do.
type holds struct {
	mu      sync.Mutex
	readers map[int64]int
}

// Hold keeps what is there at revision rev, and the changes after it, readable until release is
// called: for who needs longer to read than history is kept. It does not bring back what is gone,
// and nothing is kept that is older than twelve times Options.HistoryWindow. release may be
// called more than once.
func (d *DB) Hold(rev int64) (release func()) {
	h := &d.holds
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers == nil {
		h.readers = map[int64]int{}
	}
	h.readers[rev]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.readers[rev]--; h.readers[rev] == 0 {
			delete(h.readers, rev)
		}
	})
}

// oldest is the oldest revision that is held, or rev if that is older.
func (h *holds) oldest(rev int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for held := range h.readers {
		rev = min(rev, held)
	}
	return rev
}
