package storedjson

import (
	"context"
	"sync"
)

// singleflight lets answers that need the same objects at the same moment share the work: one
// encodes and caches them, the others wait and use the cache. It has at most one entry for each
// running answer.
type singleflight struct {
	mu sync.Mutex
	by map[int64]chan struct{} // by the first object's revision, closed when the objects are cached
}

// begin announces that the caller encodes objects from id on. For the first caller it returns at
// once. For others it returns when the first has called done, or ctx ends. Each caller calls done.
func (m *singleflight) begin(ctx context.Context, id int64) (done func()) {
	m.mu.Lock()
	made, others := m.by[id]
	if !others {
		if m.by == nil {
			m.by = map[int64]chan struct{}{}
		}
		made = make(chan struct{})
		m.by[id] = made
	}
	m.mu.Unlock()
	if others {
		select {
		case <-made:
		case <-ctx.Done():
		}
		return func() {}
	}
	return func() {
		m.mu.Lock()
		delete(m.by, id)
		m.mu.Unlock()
		close(made)
	}
}
