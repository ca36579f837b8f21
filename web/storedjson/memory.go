package storedjson

import (
	"context"

	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// memoryPool is the memory, in bytes, that all answers of one kind share.
type memoryPool struct {
	*room.Room
	size int64
}

// newMemoryPool returns a pool of size bytes. One user may hold at most share of them.
func newMemoryPool(size, share int64) *memoryPool { return &memoryPool{room.New(size, share), size} }

// reservation is the part of a memoryPool that one answer holds.
type reservation struct {
	of    *memoryPool
	user  string
	holds int64
}

// reserve returns an empty reservation for a request's user.
func (m *memoryPool) reserve(ctx context.Context) *reservation {
	return &reservation{of: m, user: limits.User(ctx)}
}

// wait reserves n bytes, and waits until they are free. The reservation must be empty.
func (s *reservation) wait(ctx context.Context, n int64) error {
	s.release()
	n = min(n, s.of.size)
	if !s.of.TryAdd(s.user, 0, n) {
		defer limits.Pause(ctx)()
		if err := s.of.Add(ctx, s.user, 0, n); err != nil {
			return err
		}
	}
	s.holds = n
	return nil
}

// grow reserves n more bytes if they are free, and reports whether they were.
func (s *reservation) grow(n int64) bool {
	n = min(n, s.of.size)
	if n > s.holds {
		if !s.of.TryAdd(s.user, s.holds, n-s.holds) {
			return false
		}
		s.holds = n
	}
	return true
}

// release frees the whole reservation.
func (s *reservation) release() {
	s.of.Remove(s.user, s.holds)
	s.holds = 0
}
