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
)

// FileAnnotation names the file, and the document within it, that the server shows as this object.
const FileAnnotation = "tidewaiter.dev/policy-file"

// MaxPolicies bounds the objects, those that show files included. It is the most that OpenShift's list may hold.
const MaxPolicies = 1000

// Storage returns the REST storage of config.openshift.io/v1, by resource, for which keeper then keeps what is in force.
// scheme is one that Install was called with.
func Storage(g generic.RESTOptionsGetter, scheme *runtime.Scheme, keeper *Keeper) (map[string]rest.Storage, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, keeper: keeper}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ClusterImagePolicy{} },
		NewListFunc:               func() runtime.Object { return &ClusterImagePolicyList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: GroupVersion.WithResource("clusterimagepolicy").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            table,
		AfterCreate:               func(runtime.Object, *metav1.CreateOptions) { keeper.written() },
		AfterUpdate:               func(runtime.Object, *metav1.UpdateOptions) { keeper.written() },
		AfterDelete:               func(runtime.Object, *metav1.DeleteOptions) { keeper.written() },
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g}); err != nil {
		return nil, fmt.Errorf("policyapi: %w", err)
	}
	status := *store
	status.UpdateStrategy, status.AfterUpdate = statusStrategy{s}, nil
	keeper.store, keeper.status = store, &status
	return map[string]rest.Storage{
		"clusterimagepolicies":        &policiesREST{store, keeper},
		"clusterimagepolicies/status": statusREST{store},
	}, nil
}

// policiesREST is what clients reach: they write no object that shows a file.
type policiesREST struct {
	*genericregistry.Store
	keeper *Keeper
}

// Create is part of rest.Creater.
func (r *policiesREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, r.creatable(validate), options)
}

func (r *policiesREST) creatable(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		p := obj.(*ClusterImagePolicy)
		switch held := r.keeper.fromFile(p.Name); {
		case held != nil:
			return readFrom(p.Name, fileOf(held))
		case r.keeper.full():
			return apierrors.NewForbidden(resource, p.Name, fmt.Errorf("there are %d policies already, the most that can be: delete some, or give one more scopes", MaxPolicies))
		case p.Annotations[FileAnnotation] != "":
			return claimsFile(p.Name)
		}
		return validate(ctx, obj)
	}
}

// Update is part of rest.Updater.
func (r *policiesREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, createOnUpdate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	// Asked before the update is validated, which would find fault with the same thing less plainly.
	info = rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if before, ok := old.(*ClusterImagePolicy); ok && before.Annotations[FileAnnotation] != "" {
			return nil, readFrom(name, before.Annotations[FileAnnotation])
		}
		if obj.(*ClusterImagePolicy).Annotations[FileAnnotation] != "" {
			return nil, claimsFile(name)
		}
		return obj, nil
	})
	return r.Store.Update(ctx, name, info, r.creatable(create), validate, createOnUpdate, options)
}

// Delete is part of rest.GracefulDeleter.
func (r *policiesREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return r.Store.Delete(ctx, name, deletable(validate), options)
}

// DeleteCollection is part of rest.CollectionDeleter. It ends at the first object that shows a file.
func (r *policiesREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	return r.Store.DeleteCollection(ctx, deletable(validate), options, list)
}

func deletable(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if p := obj.(*ClusterImagePolicy); p.Annotations[FileAnnotation] != "" {
			return readFrom(p.Name, p.Annotations[FileAnnotation])
		}
		return validate(ctx, obj)
	}
}

func readFrom(name, file string) error {
	return apierrors.NewForbidden(resource, name, fmt.Errorf("this policy is read from %s: change it there, and the object follows within seconds", file))
}

func claimsFile(name string) error {
	return apierrors.NewForbidden(resource, name, fmt.Errorf("the annotation %s is set by the server alone, on what it reads from files: leave it out", FileAnnotation))
}

// statusREST shows the subresource status. The server writes it, nobody else does.
type statusREST struct{ store *genericregistry.Store }

var _ rest.Getter = statusREST{}

// New is part of rest.Storage.
func (statusREST) New() runtime.Object { return &ClusterImagePolicy{} }

// Destroy is part of rest.Storage. The storage belongs to the resource.
func (statusREST) Destroy() {}

// Get is part of rest.Getter.
func (r statusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// ConvertToTable is part of rest.TableConvertor.
func (r statusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
