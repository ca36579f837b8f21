package kubestore

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"tidewaiter/db"
)

// storedEvent is the event for a watcher without a selector, of a StoredKind:
// nothing has to be decoded to know whom it concerns, or to write it as JSON.
func (se *sharedEvent) storedEvent(ctx context.Context) (ev watch.Event, ok bool, err error) {
	lazy, kv, decode := &se.cur, se.objectKV(), se.object
	switch {
	case se.e.Deleted && se.e.PrevRev == 0:
		return ev, false, nil
	case se.e.Deleted:
		ev.Type = watch.Deleted
		lazy, decode = &se.prev, se.previous
		if kv, err = se.previousKV(ctx); err != nil {
			return ev, false, se.deletionError(err)
		}
	case se.e.PrevRev != 0:
		ev.Type = watch.Modified
	default:
		ev.Type = watch.Added
	}
	lazy.storedOnce.Do(func() { lazy.stored = &storedObject{reader: se.s.reader, kv: kv, decode: decode} })
	ev.Object = lazy.stored
	return ev, true, nil
}

// storedObject is an object that many watchers are given at once and that is
// not decoded unless one of them wants it in another form than plain JSON. Like
// a cachedObject it is encoded once for each format.
type storedObject struct {
	reader *storedReader
	kv     db.KV
	decode func(context.Context) (*cachedObject, error)
	encodings
}

var _ runtime.CacheableObject = (*storedObject)(nil)

// CacheEncode implements runtime.CacheableObject. A watch's encoder asks twice:
// first for the event, and with what it is given then for the object in it.
func (o *storedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	return o.write(id, func(w io.Writer) error { return encode(storedBody{o}, w) }, w)
}

// GetObject implements runtime.CacheableObject. What cannot be decoded is
// returned as its bytes.
func (o *storedObject) GetObject() runtime.Object {
	obj, err := o.decode(context.Background())
	if err != nil {
		return &runtime.Unknown{Raw: o.kv.Value, ContentType: runtime.ContentTypeJSON}
	}
	return obj.GetObject()
}

// GetObjectKind implements runtime.Object.
func (o *storedObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *storedObject) DeepCopyObject() runtime.Object { return o.GetObject() }

// storedBody is the object itself, to be encoded once.
type storedBody struct{ *storedObject }

// CacheEncode implements runtime.CacheableObject.
func (o storedBody) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if id == o.reader.encoder {
		return o.reader.writeObject(context.Background(), w, &o.kv)
	}
	obj, err := o.decode(context.Background())
	if err != nil {
		return err
	}
	return encode(obj.GetObject(), w)
}
