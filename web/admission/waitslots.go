package admission

import "sync"

// maxOfNamespace bounds the places of one namespace.
const maxOfNamespace = 8

// owner is a namespace of a cluster.
type owner struct{ cluster, namespace string }

// waitSlots has the places for requests that wait for unknown images.
type waitSlots struct {
	max int

	mu    sync.Mutex
	taken int
	of    map[owner][]*waitSlot // the one that has waited longest comes first
}

// waitSlot is one of the places. Lost is closed when another namespace gets it.
type waitSlot struct {
	of   owner
	lost chan struct{}
}

// isLost reports whether another namespace got the place.
func (s *waitSlot) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

func newWaitSlots(max int) *waitSlots { return &waitSlots{max: max, of: map[owner][]*waitSlot{}} }

// acquire returns a place for a namespace, nil if there is none for it.
func (p *waitSlots) acquire(namespace owner) *waitSlot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.of[namespace]) >= maxOfNamespace {
		return nil
	}
	if p.taken >= p.max {
		var most owner
		for other, list := range p.of {
			if len(list) > len(p.of[most]) {
				most = other
			}
		}
		if len(p.of[most]) <= len(p.of[namespace])+1 {
			return nil
		}
		last := p.of[most][len(p.of[most])-1]
		p.remove(last)
		close(last.lost)
	}
	got := &waitSlot{of: namespace, lost: make(chan struct{})}
	p.of[namespace] = append(p.of[namespace], got)
	p.taken++
	return got
}

// release frees a place, unless another namespace got it.
func (p *waitSlots) release(got *waitSlot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(got)
}

func (p *waitSlots) remove(gone *waitSlot) {
	list := p.of[gone.of]
	for i, other := range list {
		if other == gone {
			p.taken--
			if len(list) == 1 {
				delete(p.of, gone.of)
				return
			}
			p.of[gone.of] = append(list[:i:i], list[i+1:]...)
			return
		}
	}
}
