package storedjson

import (
	"context"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Getter gives registries the storage of another generic.RESTOptionsGetter. Its watches
// deliver an [Object] for each event, the same one to all watchers.
type Getter struct {
	generic.RESTOptionsGetter
	codecs serializer.CodecFactory
	dir    string
	served map[schema.GroupVersionResource]Kind

	mu sync.Mutex
	// the kinds that are served, by the resource for which a registry called GetRESTOptions
	kinds map[schema.GroupVersionResource]*kind
}

// NewGetter returns a Getter over inner that serves kinds as stored. Its caches are files in dir.
// codecs are the API server's.
func NewGetter(inner generic.RESTOptionsGetter, codecs serializer.CodecFactory, dir string, kinds ...Kind) *Getter {
	g := &Getter{RESTOptionsGetter: inner, codecs: codecs, dir: dir, served: map[schema.GroupVersionResource]Kind{}, kinds: map[schema.GroupVersionResource]*kind{}}
	for _, k := range kinds {
		g.served[k.Resource] = k
	}
	return g
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *Getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	inner := opts.Decorator
	opts.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		k := &kind{codec: config.Codec, newFunc: newFunc}
		for _, served := range g.served {
			if served.Resource.GroupResource() == resource {
				if err := k.serveAsStored(served, g.codecs, g.dir); err != nil {
					return nil, nil, err
				}
			}
		}
		asStored := *config
		asStored.Codec = codec{config.Codec, k}
		s, destroy, err := inner(&asStored, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		if source, ok := s.(Source); ok && k.head != nil {
			k.source = source
			g.mu.Lock()
			g.kinds[k.Resource] = k
			g.mu.Unlock()
		}
		return &objects{s, k}, func() { k.close(); destroy() }, nil
	}
	return opts, err
}

// objects is a storage whose watches deliver an Object for each event.
type objects struct {
	storage.Interface
	kind *kind
}

// Watch implements storage.Interface.
func (s *objects) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if attrs := opts.Predicate.GetAttrs; attrs != nil {
		opts.Predicate.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			if o, ok := obj.(*Object); ok {
				var err error
				if obj, err = o.object(); err != nil {
					return nil, nil, err
				}
			}
			return attrs(obj)
		}
	}
	return s.Interface.Watch(ctx, key, opts)
}

// ReadStored reads the stored bytes of an object, as [Source] does. ok is false if the storage has
// no such bytes.
func (s *objects) ReadStored(ctx context.Context, name string) (data []byte, rev int64, ok bool, err error) {
	source, ok := s.Interface.(Source)
	if !ok {
		return nil, 0, false, nil
	}
	data, rev, err = source.ReadStored(ctx, name, nil)
	return data, rev, true, err
}

type writtenKey struct{}

// written is an object that a request has created, of a kind that is served as stored.
type written struct{ object *Object }

// Create implements storage.Interface.
func (s *objects) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	w, ok := ctx.Value(writtenKey{}).(*written)
	if !ok || s.kind.head == nil || out == nil || reflect.TypeOf(obj) != reflect.TypeOf(out) {
		return s.Interface.Create(ctx, key, obj, out, ttl)
	}
	o := &Object{Object: &metav1.ObjectMeta{}, kind: s.kind}
	if err := s.Interface.Create(ctx, key, obj, o, ttl); err != nil {
		return err
	}
	w.object = o
	// out takes over the contents of obj: registries do not use obj after it is created.
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
	out.(metav1.Object).SetResourceVersion(o.GetResourceVersion())
	return nil
}

// AnswerCreation makes it possible to answer a creation with the bytes that were stored. The caller
// creates the object with the returned context, calls answer with what the registry has returned,
// and sends what answer returns. For kinds that are not served as stored, answer returns its
// argument.
func (g *Getter) AnswerCreation(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object) {
	w := &written{}
	return context.WithValue(ctx, writtenKey{}, w), func(obj runtime.Object) runtime.Object {
		m, ok := obj.(metav1.Object)
		if w.object == nil || !ok {
			return obj
		}
		w.object.Object, w.object.decoded = m, obj
		return w.object
	}
}
