package verbatim

import (
	"context"
	"sync"
)

// makings has answers that need the same objects at the same moment form them once: all but one
// wait, and take what that one has kept. There are as many as answers under way.
type makings struct {
	mu sync.Mutex
	by map[int64]chan struct{} // by the first object's revision, closed when it is formed
}

// begin returns at once to who is the first to form what begins with the object id, and to others when that is
// done or has failed, or ctx ends. Each calls done.
func (m *makings) begin(ctx context.Context, id int64) (done func()) {
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
