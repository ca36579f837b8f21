package kubestore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/db"
)

// Options of a Getter.
type Options struct {
	// DeleteCollectionWorkers is how many objects a deletecollection deletes at
	// a time. Default 4.
	DeleteCollectionWorkers int
	// Unconverted are the resources whose Go type is the same in memory and in storage.
	Unconverted []schema.GroupResource
	// Serializers read and write the stored objects of these groups, instead of
	// the Getter's codecs.
	Serializers map[string]runtime.StorageSerializer
	// ProgressInterval and BookmarkInterval are as in Config.
	ProgressInterval, BookmarkInterval time.Duration
	// CountMetricPollPeriod, if not 0, is how often the registry counts objects for the metric
	// apiserver_storage_objects.
	CountMetricPollPeriod time.Duration
	// Pause, if not nil, is called before a request waits for room or for the disk, and resume
	// afterwards.
	Pause func(context.Context) (resume func())
	// Begin, if not nil, is called before a watch reads existing objects, and end when the watch has
	// sent them; also before and after it decodes a large event.
	Begin func(context.Context) (end func())
	// Read, if not nil, is called after a request has read objects and before it decodes them, with
	// their number and their stored bytes. A missing object counts as one. Read may wait.
	Read func(ctx context.Context, objects, stored int)
	// User returns the user of a request, for the share of memory that one user may hold. If it is
	// nil, all requests belong to one user.
	User func(context.Context) string
}

// Getter gives registries storage in a database. It implements
// generic.RESTOptionsGetter. Objects are stored as JSON of version v1 of their
// group, under "/<group, or core>/<resource>/".
type Getter struct {
	db     *db.DB
	codecs serializer.CodecFactory
	opts   Options
	budget *budget

	mu     sync.Mutex
	stores map[schema.GroupResource]*Store
}

var _ generic.RESTOptionsGetter = (*Getter)(nil)

// NewGetter returns a Getter over d for the kinds that codecs knows.
func NewGetter(d *db.DB, codecs serializer.CodecFactory, opts Options) *Getter {
	opts.DeleteCollectionWorkers = cmp.Or(opts.DeleteCollectionWorkers, 4)
	return &Getter{db: d, codecs: codecs, opts: opts, budget: newBudget(opts.Pause, opts.Begin, opts.Read, opts.User), stores: map[schema.GroupResource]*Store{}}
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g *Getter) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config, err := g.storageConfig(resource)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", resource, err)
	}
	group := cmp.Or(resource.Group, "core")
	return generic.RESTOptions{
		StorageConfig:           config,
		Decorator:               g.decorate,
		DeleteCollectionWorkers: g.opts.DeleteCollectionWorkers,
		ResourcePrefix:          "/" + group + "/" + resource.Resource,
		CountMetricPollPeriod:   g.opts.CountMetricPollPeriod,
	}, nil
}

// Store returns the store of a resource, nil before a registry has called GetRESTOptions for it.
func (g *Getter) Store(resource schema.GroupResource) *Store {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stores[resource]
}

func (g *Getter) decorate(config *storagebackend.ConfigForResource, resourcePrefix string,
	_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	cfg := Config{
		DB: g.db, Codec: config.Codec, New: newFunc, NewList: newListFunc,
		ResourcePrefix: strings.TrimSuffix(resourcePrefix, "/") + "/", GroupResource: config.GroupResource,
		Unconverted: slices.Contains(g.opts.Unconverted, config.GroupResource), Triggers: triggers, ProgressInterval: g.opts.ProgressInterval, BookmarkInterval: g.opts.BookmarkInterval, budget: g.budget,
	}
	if indexers != nil {
		cfg.Indexers = *indexers
	}
	s, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	destroy := func() {}
	g.mu.Lock()
	g.stores[config.GroupResource] = s
	g.mu.Unlock()
	if unsafeDeletionEnabled() {
		return corruptReporter{s}, destroy, nil
	}
	return s, destroy, nil
}

// storageConfig is the configuration that registries read, mostly for the codec.
func (g *Getter) storageConfig(resource schema.GroupResource) (*storagebackend.ConfigForResource, error) {
	var serializer runtime.StorageSerializer = g.codecs
	if s, ok := g.opts.Serializers[resource.Group]; ok {
		serializer = s
	}
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeJSON,
		StorageSerializer: serializer,
		StorageVersion:    schema.GroupVersion{Group: resource.Group, Version: "v1"},
		MemoryVersion:     schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal},
	})
	if err != nil {
		return nil, err
	}
	config := storagebackend.Config{Type: "tidewaiter", Codec: codec, EncodeVersioner: versioner}
	return config.ForResource(resource), nil
}
