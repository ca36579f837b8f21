package queue

import (
	"sync"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// askedOf are references of a repository that the registry was asked about: at most its tags and
// images.
type askedOf struct {
	mu         sync.Mutex
	references map[reference.Reference]bool
}

func (a *askedOf) has(ref reference.Reference) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.references[ref]
}

func (a *askedOf) add(ref reference.Reference) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.references[ref] = true
}
