package kubestore

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

// sharedEvent has the objects that a Store decodes from a changelog.Event once for all its
// watchers: the new and the previous one.
type sharedEvent struct {
	s *Store
	e *changelog.Event

	cur, prev lazyObject
}

// lazyObject is decoded when it is first needed.
type lazyObject struct {
	mu   sync.Mutex
	done bool
	obj  runtime.Object // never changed
	err  error
}

// get returns the result of read. It keeps the object, or an error about damaged bytes; after any
// other error the next caller reads again.
func (o *lazyObject) get(read func() (runtime.Object, error)) (runtime.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		o.obj, o.err = read()
		var d *db.DamagedError
		c, corrupt := asCorrupt(o.err)
		o.done = o.err == nil || errors.As(o.err, &d) || corrupt && c.kind != untransformable
	}
	return o.obj, o.err
}

// shared returns the sharedEvent of e for this Store. Another Store over the same keys has its own.
func (s *Store) shared(e *changelog.Event) *sharedEvent {
	se := e.Memo(func() any { return &sharedEvent{s: s, e: e} }).(*sharedEvent)
	if se.s != s {
		se = &sharedEvent{s: s, e: e}
	}
	return se
}

// object returns the event's object; nil for a deletion.
func (se *sharedEvent) object(ctx context.Context) (runtime.Object, error) {
	return se.cur.get(func() (runtime.Object, error) {
		return se.decode(ctx, db.KV{Key: se.e.Key, Value: se.e.Value, Rev: se.e.Rev, Err: se.e.Err})
	})
}

// previous returns the object as it was before the event, but with the event's revision: a watcher
// that gets a deletion continues from that revision.
func (se *sharedEvent) previous(ctx context.Context) (runtime.Object, error) {
	return se.prev.get(func() (runtime.Object, error) {
		value, err := se.s.db.PrevValue(context.WithoutCancel(ctx), se.e)
		if err != nil {
			return nil, markDamaged(err, se.e.PrevRev)
		}
		return se.decode(ctx, db.KV{Key: se.e.Key, Value: value, Rev: se.e.Rev})
	})
}

// largeEvent is the largest event, in bytes, that a watch decodes without a turn. Only one of the
// watchers decodes each event.
const largeEvent = 128 << 10

// decode is decodeEvent; for a large event it takes a turn. sendExisting does not use decode: its
// watch has a turn already, and would wait for a second one for ever.
func (se *sharedEvent) decode(ctx context.Context, kv db.KV) (runtime.Object, error) {
	if begin := se.s.budget.begin; begin != nil && len(kv.Value) > largeEvent {
		defer begin(ctx)()
	}
	return se.s.decodeEvent(ctx, kv)
}

// decodeEvent lets the codec choose the object, as the etcd3 store does. A codec may return a
// better form for watchers than the decoded object.
func (s *Store) decodeEvent(ctx context.Context, kv db.KV) (runtime.Object, error) {
	data, _, err := s.plain(context.WithoutCancel(ctx), kv)
	if err != nil {
		return nil, err
	}
	obj, _, err := s.codec.Decode(data, nil, nil)
	if err != nil {
		return nil, markUndecodable(err, kv.Rev)
	}
	return obj, s.versioner.UpdateObject(obj, uint64(kv.Rev))
}

// event returns the event that a watcher with predicate pred gets for se; ok is false if it gets
// none. An object that begins to match is ADDED, and one that no longer matches is DELETED.
func (se *sharedEvent) event(ctx context.Context, pred *storage.SelectionPredicate) (ev watch.Event, ok bool, err error) {
	all := pred.Empty()
	var cur, prev runtime.Object
	if !se.e.Deleted {
		if cur, err = se.object(ctx); err != nil {
			return ev, false, err
		}
	}
	if se.e.PrevRev != 0 && (se.e.Deleted || !all) {
		if prev, err = se.previous(ctx); err != nil {
			return ev, false, se.deletionError(err)
		}
	}
	is := !se.e.Deleted && (all || matches(pred, cur))
	was := se.e.PrevRev != 0 && (all || matches(pred, prev))
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: forWatcher(cur)}, true, nil
	case is:
		return watch.Event{Type: watch.Added, Object: forWatcher(cur)}, true, nil
	case was:
		return watch.Event{Type: watch.Deleted, Object: forWatcher(prev)}, true, nil
	}
	return ev, false, nil
}

// matches reports whether pred selects obj. An object whose attributes cannot be computed
// matches nothing.
func matches(pred *storage.SelectionPredicate, obj runtime.Object) bool {
	ok, err := pred.Matches(obj)
	return err == nil && ok
}

// forWatcher returns the object for one of several watchers. Encoders set an object's kind while
// they encode, so each watcher needs a copy, unless the object is a runtime.CacheableObject.
func forWatcher(obj runtime.Object) runtime.Object {
	if _, ok := obj.(runtime.CacheableObject); ok {
		return obj
	}
	return obj.DeepCopyObject()
}

// deletionError marks an error about the object that the event has deleted.
func (se *sharedEvent) deletionError(err error) error {
	if _, isCorrupt := asCorrupt(err); se.e.Deleted && isCorrupt {
		return &corruptDeletedError{err: err}
	}
	return err
}
