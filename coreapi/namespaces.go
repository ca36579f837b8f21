package coreapi

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubernetes/pkg/apis/core"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
)

// The first object in a namespace makes the namespace. Kubernetes refuses objects of a
// namespace that does not exist; here the Namespace is created just before the object, so
// that every namespace with objects can be listed, and deleted with its contents. A dry
// run creates neither. A request that is refused after that leaves an empty namespace
// behind.
//
// As in Kubernetes, nothing can be created in a namespace that is being
// deleted, and the system namespaces cannot be deleted.

// systemNamespaces exist from the start and cannot be deleted.
var systemNamespaces = sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem)

// namespaces is the namespace resource with its subresources.
type namespaces struct {
	rest     *namespacestore.REST
	status   *namespacestore.StatusREST
	finalize *namespacestore.FinalizeREST
	// unreadable deletes namespaces that cannot be read.
	unreadable rest.GracefulDeleter
}

func newNamespaces(g generic.RESTOptionsGetter) (*namespaces, error) {
	store := &genericregistry.Store{
		NewFunc:                  func() runtime.Object { return &api.Namespace{} },
		DefaultQualifiedResource: api.Resource("namespaces"),
	}
	r, status, finalize, err := namespacestore.NewREST(sharing{g, store})
	if err != nil {
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	return &namespaces{r, status, finalize, genericregistry.NewCorruptObjectDeleter(store)}, nil
}

// sharing gives store the storage that a registry is given. Kubernetes' registry of
// namespaces keeps its storage to itself, and cannot delete an object that it cannot
// read.
type sharing struct {
	generic.RESTOptionsGetter
	store *genericregistry.Store
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (s sharing) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := opts.Decorator
	opts.Decorator = func(config *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), one, list func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		to, destroy, err := decorate(config, prefix, key, one, list, attrs, triggers, indexers)
		s.store.Storage.Storage = to
		s.store.KeyFunc = func(ctx context.Context, name string) (string, error) {
			return genericregistry.NoNamespaceKeyFunc(ctx, prefix, name)
		}
		return to, destroy, err
	}
	return opts, err
}

func (n *namespaces) storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"namespaces":          protected{n.rest, n.unreadable},
		"namespaces/status":   n.status,
		"namespaces/finalize": n.finalize,
	}
}

// protected refuses to delete a system namespace, unless it is damaged: then it comes
// back.
type protected struct {
	*namespacestore.REST
	unreadable rest.GracefulDeleter
}

// GetCorruptObjDeleter implements rest.CorruptObjectDeleterProvider.
func (p protected) GetCorruptObjDeleter() rest.GracefulDeleter { return p.unreadable }

// Delete starts to delete a namespace.
func (p protected) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if systemNamespaces.Has(name) {
		return nil, false, apierrors.NewForbidden(api.Resource("namespaces"), name, fmt.Errorf("this namespace may not be deleted"))
	}
	return p.REST.Delete(ctx, name, validate, opts)
}

// ensureBefore returns a function that creates an object's namespace and then calls next,
// which may be nil.
func (n *namespaces) ensureBefore(next genericregistry.BeginCreateFunc) genericregistry.BeginCreateFunc {
	return func(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		if err := n.ensure(ctx, obj, opts); err != nil {
			return nil, err
		}
		if next == nil {
			return func(context.Context, bool) {}, nil
		}
		return next(ctx, obj, opts)
	}
}

func (n *namespaces) ensure(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	exists, err := n.open(ctx, object.GetName())
	if err != nil || exists || dryrun.IsDryRun(opts.DryRun) {
		return err
	}
	err = n.create(ctx, genericapirequest.NamespaceValue(ctx))
	if apierrors.IsInvalid(err) {
		return nil // the object's metadata.namespace is invalid, too, and the registry returns the error
	}
	return err
}

// open reports whether the request's namespace exists. It fails for a namespace that is
// being deleted: nothing can be created there, and the object called name cannot be bound
// there.
func (n *namespaces) open(ctx context.Context, name string) (exists bool, err error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return true, nil // the registry returns the error
	}
	found, err := n.rest.Get(ctx, namespace, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	case found.(*api.Namespace).Status.Phase == api.NamespaceTerminating:
		return true, terminating(ctx, name, namespace)
	}
	return true, nil
}

// create creates the namespace, unless it exists.
func (n *namespaces) create(ctx context.Context, name string) error {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	// Validation reads from the request what is validated.
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIPrefix: "api", APIVersion: "v1", Resource: "namespaces",
	})
	_, err := n.rest.Create(ctx, &api.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{corev1.LabelMetadataName: name},
	}}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// createSystem creates the system namespaces as soon as it can. It does not fail: an
// error would end the process, and a full disk need not stay full.
func (n *namespaces) createSystem(ctx genericapiserver.PostStartHookContext) error {
	for _, name := range sets.List(systemNamespaces) {
		_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
			err := n.create(ctx, name)
			if err != nil {
				slog.Error("Creating a system namespace failed, will retry", "namespace", name, "err", err)
			}
			return err == nil, nil
		})
	}
	return nil
}

// terminating is the error of Kubernetes' NamespaceLifecycle admission, which clients
// know by its cause.
func terminating(ctx context.Context, name, namespace string) error {
	var resource schema.GroupResource
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		resource = schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	}
	err := apierrors.NewForbidden(resource, name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return err
}
