package policyapi

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Options of the storages.
type Options struct {
	// Live has the policies in force, at first only those from files. Required.
	Live *signatures.Live
	// Clock is the time. Required.
	Clock clock.WithTicker
	// Changes returns the changes of the stored objects; nil if no other server writes them. New calls
	// it after it has created the storages.
	Changes func() (Changes, error)
	// Changed is called each time the policies in force change. It must not wait. Required.
	Changed func()
	// Registerer gets the metrics; may be nil.
	Registerer meter.Registerer
}

// Storages are the storages of config.openshift.io/v1, and the Keeper that puts their objects in
// force.
type Storages struct {
	ClusterPolicies, Policies *REST
	ClusterStatus, Status     *StatusREST
	Keeper                    *Keeper
}

// New returns the storages over g. Install must have been called with scheme.
func New(g generic.RESTOptionsGetter, scheme *runtime.Scheme, o Options) (*Storages, error) {
	keeper := newKeeper(o)
	cluster, err := newStore(g, scheme, keeper, false)
	if err != nil {
		return nil, fmt.Errorf("policyapi: %w", err)
	}
	namespaced, err := newStore(g, scheme, keeper, true)
	if err != nil {
		return nil, fmt.Errorf("policyapi: %w", err)
	}
	keeper.cluster, keeper.namespaced = storesOf(cluster), storesOf(namespaced)
	if o.Changes != nil {
		if keeper.changes, err = o.Changes(); err != nil {
			return nil, fmt.Errorf("policyapi: %w", err)
		}
	}
	return &Storages{
		ClusterPolicies: &REST{cluster, keeper}, ClusterStatus: &StatusREST{cluster},
		Policies: &REST{namespaced, keeper}, Status: &StatusREST{namespaced},
		Keeper: keeper,
	}, nil
}

// Resources are the storages by resource.
func (s *Storages) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"clusterimagepolicies":        s.ClusterPolicies,
		"clusterimagepolicies/status": s.ClusterStatus,
		"imagepolicies":               s.Policies,
		"imagepolicies/status":        s.Status,
	}
}

// newStore makes the store of one of the two kinds.
func newStore(g generic.RESTOptionsGetter, scheme *runtime.Scheme, keeper *Keeper, namespaced bool) (*genericregistry.Store, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, keeper: keeper, namespaced: namespaced}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ClusterImagePolicy{} },
		NewListFunc:               func() runtime.Object { return &ClusterImagePolicyList{} },
		DefaultQualifiedResource:  clusterResource,
		SingularQualifiedResource: GroupVersion.WithResource("clusterimagepolicy").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            policyTable,
		AfterCreate:               func(o runtime.Object, _ *metav1.CreateOptions) { keeper.written(o) },
		AfterUpdate:               func(o runtime.Object, _ *metav1.UpdateOptions) { keeper.written(o) },
		AfterDelete:               func(o runtime.Object, _ *metav1.DeleteOptions) { keeper.written(o) },
	}
	if namespaced {
		store.NewFunc = func() runtime.Object { return &ImagePolicy{} }
		store.NewListFunc = func() runtime.Object { return &ImagePolicyList{} }
		store.DefaultQualifiedResource = resource
		store.SingularQualifiedResource = GroupVersion.WithResource("imagepolicy").GroupResource()
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g})
}

// storesOf returns the stores for the keeper. They do not call the keeper, because the policies
// that it writes are in force already.
func storesOf(store *genericregistry.Store) stores {
	objects := *store
	objects.AfterCreate, objects.AfterUpdate, objects.AfterDelete = nil, nil, nil
	status := objects
	status.UpdateStrategy = statusStrategy{store.UpdateStrategy.(strategy)}
	return stores{&objects, &status}
}

// REST is the storage for clients. They cannot write an object that shows a file.
type REST struct {
	*genericregistry.Store
	keeper *Keeper
}

// Create is part of rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, r.creatable(validate), options)
}

func (r *REST) creatable(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		p := obj.(object)
		switch held := r.keeper.fromFile(keyOf(p)); {
		case held != nil:
			return r.readFrom(p.GetName(), fileOf(held))
		case r.keeper.full():
			return apierrors.NewForbidden(r.DefaultQualifiedResource, p.GetName(), fmt.Errorf("there are %d policies already, which is the limit: delete some, or give one of them more scopes", maxPolicies))
		case p.GetAnnotations()[FileAnnotation] != "":
			return r.claimsFile(p.GetName())
		}
		return validate(ctx, obj)
	}
}

// Update is part of rest.Updater.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, createOnUpdate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	// Check this before validation, which would refuse the update, too, but with a less clear message.
	info = rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if before, ok := old.(object); ok && before.GetAnnotations()[FileAnnotation] != "" {
			return nil, r.readFrom(name, before.GetAnnotations()[FileAnnotation])
		}
		if obj.(object).GetAnnotations()[FileAnnotation] != "" {
			return nil, r.claimsFile(name)
		}
		return obj, nil
	})
	return r.Store.Update(ctx, name, info, r.creatable(create), validate, createOnUpdate, options)
}

// Delete is part of rest.GracefulDeleter.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return r.Store.Delete(ctx, name, r.deletable(validate), options)
}

// DeleteCollection is part of rest.CollectionDeleter. It stops at the first object that shows a
// file.
func (r *REST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	return r.Store.DeleteCollection(ctx, r.deletable(validate), options, list)
}

func (r *REST) deletable(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if p := obj.(object); p.GetAnnotations()[FileAnnotation] != "" {
			return r.readFrom(p.GetName(), p.GetAnnotations()[FileAnnotation])
		}
		return validate(ctx, obj)
	}
}

func (r *REST) readFrom(name, file string) error {
	return apierrors.NewForbidden(r.DefaultQualifiedResource, name, fmt.Errorf("this policy is read from %s: change it there, and the object follows within seconds", file))
}

func (r *REST) claimsFile(name string) error {
	return apierrors.NewForbidden(r.DefaultQualifiedResource, name, fmt.Errorf("only the server sets the annotation %s, on policies that it reads from files: remove it", FileAnnotation))
}

// StatusREST serves the subresource status. Only the server writes it.
type StatusREST struct{ store *genericregistry.Store }

var _ rest.Getter = &StatusREST{}

// New is part of rest.Storage.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy is part of rest.Storage. The storage belongs to the resource.
func (*StatusREST) Destroy() {}

// Get is part of rest.Getter.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// ConvertToTable is part of rest.TableConvertor.
func (r *StatusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
