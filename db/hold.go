package db

import "sync"

// holdWindows bounds holds: they keep changes readable for at most this many history windows, by
// default an hour.
const holdWindows = 12

// holds counts the readers of each held revision.
type holds struct {
	mu      sync.Mutex
	readers map[int64]int
}

// Hold keeps revision rev, and the changes after it, readable until release is called. It is for
// readers that need longer than history is kept. It brings back nothing that is gone, and keeps
// nothing that is older than twelve times Options.HistoryWindow. release may be called more than
// once.
func (h *holds) Hold(rev int64) (release func()) {
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
