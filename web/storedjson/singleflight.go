package storedjson

import (
	"context"
	"sync"
)

// singleflight lets answers that need the same objects at the same moment share the work: one
// forms and keeps them, the others wait and take what was kept. It has at most one entry for
// each answer under way.
type singleflight struct {
	mu sync.Mutex
	by map[int64]chan struct{} // by the first object's revision, closed when it is formed
}

// begin announces that the caller forms what begins with the object id. It returns at once to
// the first caller, and to the others when the first is done or has failed, or ctx ends. Each
// caller calls done.
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
