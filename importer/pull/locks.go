package pull

import (
	"context"
	"sync"
	"time"
)

// KeyLocks serializes work on one key: two imports that need the same digest of one repository
// fetch it once, and two requests that need the same greeting send one. It holds an entry for each
// key in use, so the number of running imports and requests bounds it.
//
// The holder of a lock may wait for a registry, so a key contains the registry: otherwise a slow
// registry would delay imports of the same digest from another registry. A caller that waits for
// the lock would wait for that registry anyway.
//
// Locks on digests are taken from index to child only. Digests form no cycle,
// so neither do the waits.
type KeyLocks struct {
	mu   sync.Mutex
	keys map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // holds one element while locked
	users int
}

// Lock waits for the key or for ctx. The zero KeyLocks are ready for use.
func (l *KeyLocks) Lock(ctx context.Context, key string) (unlock func(), err error) {
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

// maxGreeting is how long a request waits while another greets the same host or requests the same
// token. Then it continues without the lock: the other may hang, and two greetings do no harm.
const maxGreeting = 5 * time.Second

// lockGreeting is locks.Lock, but waits at most maxGreeting and then goes on without the lock.
func (c *Client) lockGreeting(ctx context.Context, key string) (unlock func(), err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.Clock.AfterFunc(maxGreeting, cancel).Stop()
	if unlock, err = c.locks.Lock(waiting, key); err != nil && ctx.Err() == nil {
		return func() {}, nil
	}
	return unlock, err
}
