package kubestore

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"tidewaiter/db"
)

// index is a database index with the function that computes its values. Its
// name is as storage.SelectionPredicate.MatcherIndex has it: "f:" and a field,
// or "l:" and a label.
type index struct {
	name   string
	values func(runtime.Object) ([]string, error)
	db     *db.Index
}

// declareIndexes keeps an index for each trigger and indexer.
func (s *Store) declareIndexes(triggers storage.IndexerFuncs, indexers cache.Indexers) error {
	return nil
}

// indexEntries computes the entries of obj.
func (s *Store) indexEntries(obj runtime.Object) ([]db.IndexEntry, error) {
	var entries []db.IndexEntry
	for _, ix := range s.indexes {
		values, err := ix.values(obj)
		if err != nil {
			return nil, fmt.Errorf("index %s of %s: %w", ix.name, s.groupResource, err)
		}
		for _, v := range values {
			entries = append(entries, db.IndexEntry{Index: ix.db, Value: v})
		}
	}
	return entries, nil
}

// indexFor returns an index that answers pred, nil if there is none.
func (s *Store) indexFor(ctx context.Context, pred storage.SelectionPredicate) (*db.Index, string) {
	if len(s.indexes) == 0 {
		return nil, ""
	}
	for _, m := range pred.MatcherIndex(ctx) {
		for _, ix := range s.indexes {
			if ix.name == m.IndexName && ix.db.Ready() {
				return ix.db, m.Value
			}
		}
	}
	return nil, ""
}
