package kubestore

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/db"
)

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
