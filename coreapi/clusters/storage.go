package clusters

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// newStores returns the storages of both kinds for the server's own writes. scheme is a scheme that
// Install was called with.
func newStores(g generic.RESTOptionsGetter, scheme *runtime.Scheme) (clusters, pods *genericregistry.Store, err error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator}
	clusters = &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &Cluster{} },
		NewListFunc:               func() runtime.Object { return &ClusterList{} },
		DefaultQualifiedResource:  clustersResource,
		SingularQualifiedResource: GroupVersion.WithResource("cluster").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            clusterTable,
	}
	if err := clusters.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g}); err != nil {
		return nil, nil, fmt.Errorf("clusters: %w", err)
	}
	pods = &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ClusterPod{} },
		NewListFunc:               func() runtime.Object { return &ClusterPodList{} },
		DefaultQualifiedResource:  podsResource,
		SingularQualifiedResource: GroupVersion.WithResource("clusterpod").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		PredicateFunc:             podPredicate,
		TableConvertor:            podTable,
	}
	if err := pods.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: podAttributes, Indexers: podIndexers()}); err != nil {
		return nil, nil, fmt.Errorf("clusterpods: %w", err)
	}
	return clusters, pods, nil
}

// readOnlyREST is a storage as clients see it.
type readOnlyREST struct {
	rest.Storage
	rest.Getter
	rest.Lister
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
	shortNames []string
}

func readOnly(s *genericregistry.Store, shortNames ...string) *readOnlyREST {
	return &readOnlyREST{s, s, s, s, s, s, shortNames}
}

// ConvertToTable is part of rest.Lister and of rest.TableConvertor.
func (r *readOnlyREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.Lister.ConvertToTable(ctx, obj, options)
}

// ShortNames is part of rest.ShortNamesProvider.
func (r *readOnlyREST) ShortNames() []string { return r.shortNames }

// strategy leaves objects as the server wrote them.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateStrategy = strategy{}
	_ rest.RESTUpdateStrategy = strategy{}
)

// NamespaceScoped is false: a cluster's namespaces are not those of this server.
func (strategy) NamespaceScoped() bool { return false }

// AllowCreateOnUpdate is true: a write does not ask what is stored.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate is true: there is one writer.
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (strategy) PrepareForCreate(context.Context, runtime.Object) {}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// Validate is part of rest.RESTCreateStrategy.
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// Canonicalize is part of both.
func (strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate is part of rest.RESTCreateStrategy.
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate is part of rest.RESTUpdateStrategy.
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
