package kubestore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/db"
)

// meaningMark is between the name of an indexer and the version of its meaning, as in
// "f:references#2". The version is part of the index's name in the database, so a new version makes
// the database build the index again. That is necessary when the function computes other values for
// stored objects.
const meaningMark = "#"

// index is a database index with the function that computes its values. Its
// name is as storage.SelectionPredicate.MatcherIndex has it: "f:" and a field,
// or "l:" and a label.
type index struct {
	name   string
	values func(runtime.Object) ([]string, error)
	db     *db.Index
}

// declareIndexes declares an index for each trigger and indexer, and one for labels. An index that
// is both a trigger and an indexer, as registries declare for the watch cache, is declared once.
func (s *Store) declareIndexes(triggers storage.IndexerFuncs, indexers cache.Indexers) error {
	// by the name in the database, and by the name in predicates
	byName, known := map[string]*index{}, map[string]*index{}
	add := func(stored string, values func(runtime.Object) ([]string, error)) {
		name, _, _ := strings.Cut(stored, meaningMark)
		if known[name] == nil {
			known[name] = &index{name: name, values: values}
			byName[stored] = known[name]
		}
	}
	for field, fn := range triggers {
		add(storage.FieldIndex(field), func(obj runtime.Object) ([]string, error) { return []string{fn(obj)}, nil })
	}
	for name, fn := range indexers {
		add(name, func(obj runtime.Object) ([]string, error) { return fn(obj) })
	}
	add(labelIndex, labelValues)
	names := slices.Sorted(maps.Keys(byName))
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return err
	}
	declared, err := s.db.DeclareIndexes(context.Background(), prefix, names, func(kv db.KV, declared []*db.Index) ([]db.IndexEntry, error) {
		obj := s.newFunc()
		if err := s.decode(context.Background(), kv, obj); err != nil {
			return nil, err
		}
		var entries []db.IndexEntry
		var failed []error
		for _, ix := range declared {
			var err error
			if entries, err = byName[ix.Name].add(entries, obj, ix); err != nil {
				failed = append(failed, fmt.Errorf("index %s: %w", ix.Name, err))
			}
		}
		return entries, errors.Join(failed...)
	})
	if err != nil {
		return err
	}
	for i, name := range names {
		byName[name].db = declared[i]
		s.indexes = append(s.indexes, byName[name])
	}
	return nil
}

func (s *Store) indexEntries(obj runtime.Object) (entries []db.IndexEntry, err error) {
	for _, ix := range s.indexes {
		if entries, err = ix.add(entries, obj, ix.db); err != nil {
			return nil, fmt.Errorf("index %s of %s: %w", ix.name, s.groupResource, err)
		}
	}
	return entries, nil
}

// add appends the entries that obj has in an index of the database.
func (ix *index) add(entries []db.IndexEntry, obj runtime.Object, in *db.Index) ([]db.IndexEntry, error) {
	values, err := ix.values(obj)
	if err != nil {
		return entries, err
	}
	for _, v := range values {
		entries = append(entries, db.IndexEntry{Index: in, Value: v})
	}
	return entries, nil
}

// AnySelector is a field selector that an index may answer with several values: every object that
// it matches has at least one of them.
type AnySelector interface {
	// AnyOf returns the values to look up in the index of a field; ok is false if the index does not
	// help.
	AnyOf(field string) (values []string, ok bool)
}

// PartSelector is a field selector that an index may answer by a part of its values: every object
// that it matches has a value with the part, in either case.
type PartSelector interface {
	// PartOf returns what to look for in the index of a field; ok is false if the index does not help.
	PartOf(field string) (part string, ok bool)
}

// indexFor returns queries that find all objects that match pred, the most selective first; none if
// no index helps.
func (s *Store) indexFor(ctx context.Context, pred storage.SelectionPredicate) (all []db.IndexQuery) {
	var wanted []storage.MatchValue
	if selector, ok := pred.Field.(AnySelector); !ok {
		wanted = pred.MatcherIndex(ctx)
	} else {
		for _, field := range pred.IndexFields {
			if values, ok := selector.AnyOf(field); ok {
				if ix := s.readyIndex(storage.FieldIndex(field)); ix != nil {
					all = append(all, db.IndexQuery{Index: ix, Values: values})
				}
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	if value, ok := labelValueFor(pred.Label); ok {
		wanted = append(wanted, storage.MatchValue{IndexName: labelIndex, Value: value})
	}
	for _, m := range wanted {
		if ix := s.readyIndex(m.IndexName); ix != nil {
			return []db.IndexQuery{{Index: ix, Values: []string{m.Value}}}
		}
	}
	if selector, ok := pred.Field.(PartSelector); ok {
		for _, field := range pred.IndexFields {
			if part, ok := selector.PartOf(field); ok {
				if ix := s.readyIndex(storage.FieldIndex(field)); ix != nil {
					return []db.IndexQuery{{Index: ix, Part: part}}
				}
			}
		}
	}
	return nil
}

// readyIndex returns the index with a name; nil if there is none or if it is not complete yet.
func (s *Store) readyIndex(name string) *db.Index {
	for _, ix := range s.indexes {
		if ix.name == name && ix.db.Ready() {
			return ix.db
		}
	}
	return nil
}
