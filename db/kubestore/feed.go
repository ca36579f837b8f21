package kubestore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/db"
)

// Change is a change of an object. Before and After are shared with other readers, and must not be
// changed.
type Change struct {
	Resource string
	// Rev is the revision of the change.
	Rev int64
	// Before is nil for a creation, and After for a deletion.
	Before, After runtime.Object
	// Err is why one of them could not be read; both are nil then.
	Err error
}

// Feed returns the changes of objects of some resources of a group, by any writer, in order.
type Feed struct {
	db      *db.DB
	watcher *db.Watcher
	stores  map[string]*Store // by the prefix of their keys
	release func()            // releases the history that is still to be read
}

// Feed begins after a revision, and fails with [db.ErrCompacted] if its history is gone. Each
// resource must have a storage already. Close must be called.
func (g *Getter) Feed(rev int64, group string, resources ...string) (*Feed, error) {
	f := &Feed{db: g.db, stores: map[string]*Store{}}
	for _, name := range resources {
		s := g.Store(schema.GroupResource{Group: group, Resource: name})
		if s == nil {
			return nil, fmt.Errorf("changes of %s.%s: it has no storage", name, group)
		}
		prefix, err := s.prepareKey(s.resourcePrefix, true)
		if err != nil {
			return nil, err
		}
		f.stores[prefix] = s
	}
	f.release = f.db.Hold(rev)
	var err error
	if f.watcher, err = g.db.Watch("/"+group+"/", false, rev); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// Close ends the feed.
func (f *Feed) Close() {
	f.watcher.Stop()
	f.release()
}

// Ready is signalled when Next may have changes to return.
func (f *Feed) Ready() <-chan struct{} { return f.watcher.Ready() }

// Next returns the next changes, none if there are none yet, and the revision up to which all have
// been returned. The number and the bytes of the changes are bounded as for a watch.
func (f *Feed) Next(ctx context.Context) (changes []Change, rev int64, err error) {
	for {
		events, err := f.watcher.Poll(ctx)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range events {
			s := f.store(e.Key)
			if s == nil {
				continue
			}
			c, of := Change{Resource: s.groupResource.Resource, Rev: e.Rev}, s.shared(e)
			if !e.Deleted {
				c.After, c.Err = whole(of.object(ctx))
			}
			if e.PrevRev != 0 && c.Err == nil {
				c.Before, c.Err = whole(of.previous(ctx))
			}
			if ctx.Err() != nil {
				return nil, 0, ctx.Err()
			}
			if c.Err != nil {
				c.Before, c.After = nil, nil
			}
			changes = append(changes, c)
		}
		if len(changes) > 0 {
			return changes, changes[len(changes)-1].Rev, nil
		}
		if len(events) == 0 {
			rev, _ = f.watcher.Progress()
			return nil, rev, nil
		}
	}
}

// whole returns the decoded object of a form for watchers, if a codec has returned one.
func whole(obj runtime.Object, err error) (runtime.Object, error) {
	c, ok := obj.(runtime.CacheableObject)
	if err != nil || !ok {
		return obj, err
	}
	obj = c.GetObject()
	if _, ok := obj.(*runtime.Unknown); ok {
		return nil, errors.New("the stored object cannot be decoded")
	}
	return obj, nil
}

// Hold keeps the history after a revision readable, and releases the history that was held before.
func (f *Feed) Hold(rev int64) {
	before := f.release
	f.release = f.db.Hold(rev)
	before()
}

func (f *Feed) store(key string) *Store {
	for prefix, s := range f.stores {
		if strings.HasPrefix(key, prefix) {
			return s
		}
	}
	return nil
}
