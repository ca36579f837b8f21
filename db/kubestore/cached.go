package kubestore

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// cachedObject is a decoded object that many watchers are given at once.
// Encoders set and reset an object's kind while they work, so handing the bare
// object to several would be a data race. It implements
// runtime.CacheableObject: the API server asks it for its encoding, which is
// made once for each output format.
type cachedObject struct {
	object runtime.Object // never changed
	metav1.Object
	encodings
}

// encodings are what an object looks like in the formats that were asked for.
type encodings struct {
	mu       sync.Mutex
	byFormat map[runtime.Identifier]*encoding
}

type encoding struct {
	once sync.Once
	data []byte
	err  error
}

// write writes the encoding id to w, which encode makes the first time.
func (es *encodings) write(id runtime.Identifier, encode func(io.Writer) error, w io.Writer) error {
	es.mu.Lock()
	e := es.byFormat[id]
	if e == nil {
		if es.byFormat == nil {
			es.byFormat = map[runtime.Identifier]*encoding{}
		}
		e = &encoding{}
		es.byFormat[id] = e
	}
	es.mu.Unlock()
	e.once.Do(func() {
		var b bytes.Buffer
		e.err = encode(&b)
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

var _ runtime.CacheableObject = (*cachedObject)(nil)

func newCachedObject(obj runtime.Object) *cachedObject {
	c := &cachedObject{object: obj}
	c.Object, _ = obj.(metav1.Object)
	return c
}

// shared returns what a watcher is sent.
func (c *cachedObject) shared() runtime.Object {
	if c.Object == nil { // no metadata: the API server could not look into a wrapper
		return c.object.DeepCopyObject()
	}
	return c
}

func (c *cachedObject) matches(pred *storage.SelectionPredicate) bool {
	ok, err := pred.Matches(c.object)
	return err == nil && ok
}

// CacheEncode implements runtime.CacheableObject.
func (c *cachedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	return c.write(id, func(w io.Writer) error { return encode(c.GetObject(), w) }, w)
}

// GetObject implements runtime.CacheableObject; the copy is the caller's.
func (c *cachedObject) GetObject() runtime.Object { return c.object.DeepCopyObject() }

// GetObjectKind implements runtime.Object.
func (c *cachedObject) GetObjectKind() schema.ObjectKind { return c.object.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (c *cachedObject) DeepCopyObject() runtime.Object {
	return newCachedObject(c.object.DeepCopyObject())
}
