package storedjson

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is an object that many requests share. Encoders set and reset an object's kind while they
// encode, so sharing the bare object would be a data race. Object is a runtime.CacheableObject: the
// API server gets its encoding from it, which is made once for each format. An object of a kind
// that is served as stored is decoded only if a client wants another format than plain JSON.
type Object struct {
	// Object has the resourceVersion. In the answer to a creation it has all metadata.
	metav1.Object
	kind *kind
	data []byte // as stored

	decoding sync.Once
	decoded  runtime.Object // never changed
	err      error

	mu       sync.Mutex
	byFormat map[runtime.Identifier]*encodedObject
}

type encodedObject struct {
	once sync.Once
	data []byte
	err  error
}

var _ runtime.CacheableObject = (*Object)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *Object) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if id == o.kind.encoder && o.kind.head != nil {
		return write(w, func(buf []byte) ([]byte, error) {
			buf, err := o.append(buf)
			return append(buf, '\n'), err
		})
	}
	e := o.encoded(id)
	e.once.Do(func() {
		if t, ok := o.kind.events[id]; ok {
			e.data, e.err = o.append(eventHead(t))
			e.data = append(e.data, eventEnd...)
			return
		}
		var b bytes.Buffer
		var obj runtime.Object
		if obj, e.err = o.object(); e.err == nil {
			e.err = encode(obj.DeepCopyObject(), &b)
		}
		e.data = b.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if s, ok := w.(runtime.Splice); ok {
		s.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

// encoded returns the entry of the format id, and creates an empty one if there is none.
func (o *Object) encoded(id runtime.Identifier) *encodedObject {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.byFormat[id]
	if e == nil {
		if o.byFormat == nil {
			o.byFormat = map[runtime.Identifier]*encodedObject{}
		}
		e = &encodedObject{}
		o.byFormat[id] = e
	}
	return e
}

// append appends the object as plain JSON, without the line's end.
func (o *Object) append(buf []byte) ([]byte, error) {
	rev, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return buf, err
	}
	return o.kind.append(buf, &stored{rev: rev, data: o.data})
}

// object is the decoded object, which must not be changed.
func (o *Object) object() (runtime.Object, error) {
	o.decoding.Do(func() {
		if o.decoded == nil {
			if o.decoded, _, o.err = o.kind.codec.Decode(o.data, nil, o.kind.newFunc()); o.err != nil {
				return
			}
		}
		var m metav1.Object
		if m, o.err = meta.Accessor(o.decoded); o.err == nil {
			m.SetResourceVersion(o.GetResourceVersion())
		}
	})
	return o.decoded, o.err
}

// GetObject implements runtime.CacheableObject. The caller may change the copy. If the object
// cannot be decoded, GetObject returns its bytes.
func (o *Object) GetObject() runtime.Object {
	obj, err := o.object()
	if err != nil {
		return &runtime.Unknown{Raw: o.data, ContentType: runtime.ContentTypeJSON}
	}
	return obj.DeepCopyObject()
}

// GetObjectKind implements runtime.Object.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object { return o.GetObject() }

// eventEncoder identifies the encoder of a watch's events of one type, as the API server does
// (handlers.watchEncoder). If the identifier is not known, the event is encoded as for any
// other kind.
func eventEncoder(object, event runtime.Identifier, t watch.EventType) runtime.Identifier {
	// Texts can always be encoded.
	id, _ := json.Marshal(struct {
		Name            string             `json:"name"`
		EmbeddedEncoder runtime.Identifier `json:"embeddedEncoder"`
		Encoder         runtime.Identifier `json:"encoder"`
		EventType       watch.EventType    `json:"eventType"`
	}{"watch", object, event, t})
	return runtime.Identifier(id)
}

// codec is a storage's codec. A watch decodes without a target object; then codec keeps the stored
// bytes.
type codec struct {
	runtime.Codec
	kind *kind
}

// Decode implements runtime.Decoder.
func (c codec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, ok := into.(*Object)
	switch {
	case into == nil:
		o = &Object{Object: &metav1.ObjectMeta{}, kind: c.kind}
	case !ok:
		return c.Codec.Decode(data, defaults, into)
	}
	o.data = data
	if c.kind.head != nil {
		if _, ok := c.kind.metadata(data); ok {
			return o, defaults, nil
		}
	}
	// Decode now, so that an error does not come only when the object is sent.
	obj, gvk, err := c.Codec.Decode(data, nil, c.kind.newFunc())
	if err != nil {
		return nil, gvk, err
	}
	o.decoded = obj
	return o, gvk, nil
}
