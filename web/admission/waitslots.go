package admission

import "sync"

// maxOfNamespace bounds the places of one namespace.
const maxOfNamespace = 8

// waitSlots are the places where requests wait for images of which nothing is known.
type waitSlots struct {
	max int

	mu    sync.Mutex
	taken int
	of    map[string][]*waitSlot // by namespace; the one that has waited longest comes first
}

// waitSlot is one of the places. Lost is closed when another namespace gets it.
type waitSlot struct {
	of   string
	lost chan struct{}
}

func newWaitSlots(max int) *waitSlots { return &waitSlots{max: max, of: map[string][]*waitSlot{}} }

// acquire returns a place for a namespace, nil if it gets none.
func (p *waitSlots) acquire(namespace string) *waitSlot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.of[namespace]) >= maxOfNamespace {
		return nil
	}
	if p.taken >= p.max {
		most := ""
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

// release gives a place back, unless it was lost.
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
