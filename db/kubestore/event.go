package kubestore

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
)

// sharedEvent is what a Store derives from a db.Event, once for all its
// watchers: the object, the one before it, and through cachedObject their
// encodings.
type sharedEvent struct {
	s *Store
	e *db.Event

	cur, prev lazyObject
}

// lazyObject is decoded, or made of its stored bytes, when first asked for.
type lazyObject struct {
	once sync.Once
	obj  *cachedObject
	err  error

	storedOnce sync.Once
	stored     *storedObject
}

// shared returns the sharedEvent of e. Another Store over the same keys gets
// one of its own.
func (s *Store) shared(e *db.Event) *sharedEvent {
	se := e.Memo(func() any { return &sharedEvent{s: s, e: e} }).(*sharedEvent)
	if se.s != s {
		se = &sharedEvent{s: s, e: e}
	}
	return se
}

func (se *sharedEvent) objectKV() db.KV {
	return db.KV{Key: se.e.Key, Value: se.e.Value, Rev: se.e.Rev}
}

// object is the event's object; nil for a deletion.
func (se *sharedEvent) object(ctx context.Context) (*cachedObject, error) {
	se.cur.once.Do(func() { se.cur.obj, se.cur.err = se.s.decodeEvent(ctx, se.objectKV()) })
	return se.cur.obj, se.cur.err
}

// previousKV is what was stored before the event, at the event's revision: a
// watcher that is told of a deletion continues from there.
func (se *sharedEvent) previousKV(ctx context.Context) (db.KV, error) {
	value, err := se.s.db.PrevValue(context.WithoutCancel(ctx), se.e)
	return db.KV{Key: se.e.Key, Value: value, Rev: se.e.Rev}, markDamaged(err, se.e.PrevRev)
}

// previous is the object before the event, at the event's revision.
func (se *sharedEvent) previous(ctx context.Context) (*cachedObject, error) {
	se.prev.once.Do(func() {
		kv, err := se.previousKV(ctx)
		if err == nil {
			se.prev.obj, err = se.s.decodeEvent(ctx, kv)
		}
		se.prev.err = err
	})
	return se.prev.obj, se.prev.err
}

func (s *Store) decodeEvent(ctx context.Context, kv db.KV) (*cachedObject, error) {
	data, _, err := s.plain(context.WithoutCancel(ctx), kv)
	if err != nil {
		return nil, err
	}
	var into runtime.Object
	if s.newFunc != nil {
		into = s.newFunc()
	}
	obj, _, err := s.codec.Decode(data, nil, into)
	if err != nil {
		return nil, markUndecodable(err, kv.Rev)
	}
	if err := s.versioner.UpdateObject(obj, uint64(kv.Rev)); err != nil {
		return nil, err
	}
	return newCachedObject(obj), nil
}

// event is what a watcher with predicate pred is told of se; ok false for
// nothing. An object that comes into the selection is added, one that leaves it
// deleted. Who wants all of what is served as it is stored needs nothing decoded.
func (se *sharedEvent) event(ctx context.Context, pred *storage.SelectionPredicate) (ev watch.Event, ok bool, err error) {
	all := pred.Empty()
	decode := !all || se.s.reader == nil
	var cur, prev *cachedObject
	var before db.KV
	if !se.e.Deleted && decode {
		if cur, err = se.object(ctx); err != nil {
			return ev, false, err
		}
	}
	if se.e.PrevRev != 0 && (se.e.Deleted || !all) {
		if before, err = se.previousKV(ctx); err == nil && decode {
			prev, err = se.previous(ctx)
		}
		if err != nil {
			return ev, false, se.deletionError(err)
		}
	}
	is := !se.e.Deleted && (all || cur.matches(pred))
	was := se.e.PrevRev != 0 && (all || prev.matches(pred))
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: se.shown(&se.cur, se.objectKV(), se.object)}, true, nil
	case is:
		return watch.Event{Type: watch.Added, Object: se.shown(&se.cur, se.objectKV(), se.object)}, true, nil
	case was:
		return watch.Event{Type: watch.Deleted, Object: se.shown(&se.prev, before, se.previous)}, true, nil
	}
	return ev, false, nil
}

// shown is one of the event's objects, stored as kv, as watchers are given it; it
// has been decoded, or need not be.
func (se *sharedEvent) shown(l *lazyObject, kv db.KV, decode func(context.Context) (*cachedObject, error)) runtime.Object {
	if se.s.reader == nil {
		return l.obj.shared()
	}
	l.storedOnce.Do(func() { l.stored = &storedObject{reader: se.s.reader, kv: kv, decode: decode} })
	return l.stored
}

// deletionError marks an error about the object that the event has deleted.
func (se *sharedEvent) deletionError(err error) error {
	if _, isCorrupt := asCorrupt(err); se.e.Deleted && isCorrupt {
		return &corruptDeletedError{err: err}
	}
	return err
}
