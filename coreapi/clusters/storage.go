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
	s := Strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator}
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

// ReadOnlyREST is a storage as clients see it, of objects that the server alone writes.
type ReadOnlyREST struct {
	rest.Storage
	rest.Getter
	rest.Lister
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
	shortNames []string
}

// ReadOnly returns a storage as clients see it.
func ReadOnly(s *genericregistry.Store, shortNames ...string) *ReadOnlyREST {
	return &ReadOnlyREST{s, s, s, s, s, s, shortNames}
}

// ConvertToTable is part of rest.Lister and of rest.TableConvertor.
func (r *ReadOnlyREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.Lister.ConvertToTable(ctx, obj, options)
}

// ShortNames is part of rest.ShortNamesProvider.
func (r *ReadOnlyREST) ShortNames() []string { return r.shortNames }

// Strategy leaves objects as the server wrote them.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	// Namespaced is false for objects of clusters, because a cluster's namespaces are not this
	// server's.
	Namespaced bool
}

var (
	_ rest.RESTCreateStrategy = Strategy{}
	_ rest.RESTUpdateStrategy = Strategy{}
)

// NamespaceScoped is part of both.
func (s Strategy) NamespaceScoped() bool { return s.Namespaced }

// AllowCreateOnUpdate is true: a write does not ask what is stored.
func (Strategy) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate is true: there is one writer.
func (Strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (Strategy) PrepareForCreate(context.Context, runtime.Object) {}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (Strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// Validate is part of rest.RESTCreateStrategy.
func (Strategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (Strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// Canonicalize is part of both.
func (Strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate is part of rest.RESTCreateStrategy.
func (Strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate is part of rest.RESTUpdateStrategy.
func (Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
