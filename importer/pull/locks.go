package pull

import (
	"context"
	"sync"
)

// keyLocks serialises work on one key: two imports that meet in a digest of one
// repository fetch it once, and two requests that need the same greeting greet once. It
// holds an entry per key in use, so the work under way bounds it.
//
// The holder of a lock may wait for a registry, so a key names the registry: a caller that waits
// for the lock would wait for that registry anyway. A slow registry must not hold up the
// imports from another one that has the same digest.
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
