package changelog

import "sync"

// Replay caches the events that were last read from the file. Watchers that are about equally far
// behind, for instance after a restart, share these events and their memos (Event.Memo), as they
// share the log's.
type Replay struct {
	MaxBytes int64

	mu     sync.Mutex
	events map[int64]*Event // by revision
	order  []int64          // oldest first
	bytes  int64
}

func NewReplay(maxBytes int64) *Replay {
	return &Replay{MaxBytes: maxBytes, events: map[int64]*Event{}}
}

func (r *Replay) Get(rev int64) *Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[rev]
}

// Add adds e and returns it, or returns the same event if another watcher has added it first.
func (r *Replay) Add(e *Event) *Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.events[e.Rev]; have != nil {
		return have
	}
	r.events[e.Rev] = e
	r.order = append(r.order, e.Rev)
	r.bytes += e.cost()
	for r.bytes > r.MaxBytes {
		oldest := r.events[r.order[0]]
		delete(r.events, oldest.Rev)
		r.order = r.order[1:]
		r.bytes -= oldest.cost()
	}
	return e
}
