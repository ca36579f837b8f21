package storedjson

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/tidewaiter/tidewaiter/web/limits"
)

// memoryPool is the memory, in bytes, that all answers of one sort share.
type memoryPool struct {
	*semaphore.Weighted
	size int64
}

func newMemoryPool(size int64) *memoryPool { return &memoryPool{semaphore.NewWeighted(size), size} }

// reservation is the part of a memoryPool that one answer holds.
type reservation struct {
	of    *memoryPool
	holds int64
}

// wait waits until n bytes may be held. The caller must hold nothing meanwhile.
func (s *reservation) wait(ctx context.Context, n int64) error {
	s.release()
	n = min(n, s.of.size)
	if !s.of.TryAcquire(n) {
		defer limits.Pause(ctx)()
		if err := s.of.Acquire(ctx, n); err != nil {
			return err
		}
	}
	s.holds = n
	return nil
}

// grow reports whether n more bytes may be held now.
func (s *reservation) grow(n int64) bool {
	n = min(n, s.of.size)
	if n > s.holds {
		if !s.of.TryAcquire(n - s.holds) {
			return false
		}
		s.holds = n
	}
	return true
}

// release gives everything back.
func (s *reservation) release() {
	s.of.Release(s.holds)
	s.holds = 0
}
