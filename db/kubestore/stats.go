package kubestore

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/storage"
)

// Stats implements storage.Interface. The database counts with every commit, so both figures are
// exact and cheap.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	n, bytes, err := s.Totals(ctx)
	if err != nil {
		return storage.Stats{}, err
	}
	stats := storage.Stats{ObjectCount: n}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizeEnabled && n > 0 {
		stats.EstimatedAverageObjectSizeBytes = bytes / n
	}
	return stats, nil
}

// EnableResourceSizeEstimation implements storage.Interface. keys is not
// needed: sizes are known without it.
func (s *Store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizeEnabled {
		return errors.New("resource size estimation is already enabled")
	}
	s.sizeEnabled = true
	return nil
}
