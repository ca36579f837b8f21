package coreapi

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

// garbageWorkers is how many objects are deleted at once, and how many are cut off from
// their dependents.
const garbageWorkers = 2

// garbageResync is how often discovery is read for the resources to collect, as in Kubernetes.
const garbageResync = 30 * time.Second

// collected gives storage whose objects the garbage collector looks after: a deletion in
// the foreground, or one that orphans dependents, leaves the object with a finalizer that
// the collector removes.
type collected struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (c collected) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := c.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.EnableGarbageCollection = true
	return options, err
}

// runGarbageCollector runs Kubernetes' garbage collector. It deletes objects whose owners
// are all gone, and completes deletions in the foreground and those that orphan. It
// ignores events, as in Kubernetes, and the resources in ignored. It holds the names and
// owners of all other objects in memory.
func runGarbageCollector(ignored []schema.GroupResource) genericapiserver.PostStartHookFunc {
	ignore := maps.Clone(garbagecollector.DefaultIgnoredResources())
	for _, resource := range ignored {
		ignore[resource] = struct{}{}
	}
	return func(ctx genericapiserver.PostStartHookContext) error {
		client, objects, err := controllerClients(ctx)
		if err != nil {
			return err
		}
		mapper := ownersMapper{restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())), workloads()}
		watched := metadatainformer.NewSharedInformerFactoryWithOptions(objects, 0, metadatainformer.WithTransform(onlyOwners))
		started := make(chan struct{})
		close(started) // no other controller's start is awaited
		collector, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper, ignore, garbageInformers{watched}, started)
		if err != nil {
			return err
		}
		go collector.Run(ctx, garbageWorkers, garbageResync)
		go collector.Sync(ctx, client.Discovery(), garbageResync)
		return nil
	}
}

// ownersMapper does not know the kinds that have no objects here: the collector would take the
// owners of pods that were copied from a cluster for gone, and delete the pods.
type ownersMapper struct {
	meta.ResettableRESTMapper
	workloads map[schema.GroupVersion]map[string]rest.Storage
}

// RESTMapping is part of meta.RESTMapper.
func (m ownersMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := m.ResettableRESTMapper.RESTMapping(kind, versions...)
	if err != nil {
		return nil, err
	}
	if _, empty := m.workloads[mapping.Resource.GroupVersion()][mapping.Resource.Resource]; empty || mapping.Resource == replicationControllers {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return mapping, nil
}

type garbageInformers struct {
	metadatainformer.SharedInformerFactory
}

// ForResource returns an informer of the metadata of a resource.
func (g garbageInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	return g.SharedInformerFactory.ForResource(resource), nil
}

// onlyOwners drops the fields that the collector does not use.
func onlyOwners(obj any) (any, error) {
	if object, ok := obj.(*metav1.PartialObjectMetadata); ok {
		object.Labels, object.Annotations, object.ManagedFields = nil, nil, nil
	}
	return obj, nil
}
