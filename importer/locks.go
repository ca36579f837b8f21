package importer

import (
	"context"
	"sync"
)

// keyLocks serialises work on one key: two imports that meet in a digest of one
// repository fetch it once, two requests that need the same greeting greet once. It
// holds an entry per key in use and so is bounded by the work under way.
//
// A registry may be waited for with a lock held, so a key names the registry: whoever
// waits for the lock waits for that registry anyway. A registry that is slow to send
// what another one has, too, must not hold up that one's imports.
//
// Locks on digests are taken from index to child only. Digests form no cycle,
// so neither do the waits.
type keyLocks struct {
	mu   sync.Mutex
	keys map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // holds one element while locked
	users int
}

// lock waits for the key or for ctx.
func (l *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	if l.keys == nil {
		l.keys = map[string]*keyLock{}
	}
	k := l.keys[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
		l.keys[key] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.keys, key)
		}
	}
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
