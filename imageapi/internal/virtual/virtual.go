// Package virtual has the common parts of storages that store nothing themselves: storages of kinds
// whose objects the server computes on request, and storages of the subresource status.
package virtual

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Resource is the part of a rest.Storage that describes the resource. It is also a rest.Scoper and
// a rest.SingularNameProvider.
type Resource struct {
	// Object is an empty object of the kind.
	Object     runtime.Object
	Namespaced bool
	Singular   string
}

// New returns an empty object of the kind.
func (r Resource) New() runtime.Object { return r.Object.DeepCopyObject() }

// Destroy has nothing to do: the storages below belong to others.
func (Resource) Destroy() {}

// NamespaceScoped reports whether objects of the kind belong to a namespace.
func (r Resource) NamespaceScoped() bool { return r.Namespaced }

// GetSingularName returns the name of one object in commands.
func (r Resource) GetSingularName() string { return r.Singular }

// BeforeCreate prepares an object of a kind that is not stored, and validates it, as
// [rest.BeforeCreate] and a store do.
func BeforeCreate(ctx context.Context, strategy rest.RESTCreateStrategy, obj runtime.Object, validate rest.ValidateObjectFunc) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	rest.FillObjectMetaSystemFields(object)
	if err := rest.BeforeCreate(strategy, ctx, obj); err != nil || validate == nil {
		return err
	}
	return validate(ctx, obj.DeepCopyObject())
}

// Status serves a subresource status. It is a rest.Patcher and a rest.ResetFieldsStrategy.
type Status struct {
	// Store is the resource's store, with the strategy of the subresource.
	Store *genericregistry.Store
}

// New returns an empty object of the resource.
func (s Status) New() runtime.Object { return s.Store.New() }

// Destroy has nothing to do: the store belongs to the resource.
func (Status) Destroy() {}

// Get returns the object.
func (s Status) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.Store.Get(ctx, name, options)
}

// Update writes the status.
func (s Status) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.Store.Update(ctx, name, info, create, update, force, options)
}

// GetResetFields returns the fields that are not the status.
func (s Status) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.Store.GetResetFields()
}

// ConvertToTable shows the objects of the resource.
func (s Status) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.Store.ConvertToTable(ctx, obj, options)
}
