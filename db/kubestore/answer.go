package kubestore

import (
	"context"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/db"
)

// writtenKey is the context's key of a *written.
type writtenKey struct{}

// written is what a request has stored last, noted by Store.put.
type written struct {
	store *Store
	kv    db.KV
}

// note remembers what was stored in the name of ctx, if somebody asked for it.
func (s *Store) note(ctx context.Context, kv db.KV) {
	if w, ok := ctx.Value(writtenKey{}).(*written); ok {
		*w = written{store: s, kv: kv}
	}
}

// Answer lets a registry answer a creation with the bytes that it has stored:
// the object is created with the context returned, and what the registry
// returns is given to answer. Only Options.StoredKinds are answered so, and
// only as plain JSON; see ServeStored.
func (g *Getter) Answer(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object) {
	w := &written{}
	return context.WithValue(ctx, writtenKey{}, w), func(obj runtime.Object) runtime.Object {
		meta, ok := obj.(metav1.Object)
		if w.store == nil || w.store.reader == nil || !ok {
			return obj
		}
		return &storedAnswer{Object: meta, object: obj, reader: w.store.reader, ctx: ctx, kv: w.kv}
	}
}

// storedAnswer is an object that the API server encodes for one response. It is
// a runtime.CacheableObject, so that it is asked for its own encoding.
type storedAnswer struct {
	metav1.Object
	object runtime.Object
	reader *storedReader
	ctx    context.Context // of the request that is answered
	kv     db.KV
}

var _ runtime.CacheableObject = (*storedAnswer)(nil)

// CacheEncode implements runtime.CacheableObject.
func (a *storedAnswer) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if id != a.reader.encoder {
		return encode(a.object, w)
	}
	return a.reader.writeObject(a.ctx, w, &a.kv)
}

// GetObject implements runtime.CacheableObject.
func (a *storedAnswer) GetObject() runtime.Object { return a.object }

// GetObjectKind implements runtime.Object.
func (a *storedAnswer) GetObjectKind() schema.ObjectKind { return a.object.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (a *storedAnswer) DeepCopyObject() runtime.Object { return a.object.DeepCopyObject() }
