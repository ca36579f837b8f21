package coreapi

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
)

// The registry releases the addresses that an update no longer needs before the update is
// written. If another writer was faster, another service may have these addresses by now:
// an update is first tried with an object from before that writer, or from before a
// deletion, and then once more. So the addresses that a try hands out and releases are
// settled when the update is over, and every try but the last is undone.

// settled is the service resource with updates whose addresses are settled at the end.
type settled struct{ *servicestore.REST }

func settleUpdates(r *servicestore.REST, refusals func() [3]*apierrors.StatusError) settled {
	create, update := r.Store.BeginCreate, r.Store.BeginUpdate
	r.Store.BeginCreate = func(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		dropUnused(obj)
		return try(ctx, func() (genericregistry.FinishFunc, error) {
			return explain(refusals, func() (genericregistry.FinishFunc, error) { return create(ctx, obj, opts) })
		})
	}
	r.Store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, opts *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		dropUnused(obj)
		return try(ctx, func() (genericregistry.FinishFunc, error) {
			return explain(refusals, func() (genericregistry.FinishFunc, error) { return update(ctx, obj, old, opts) })
		})
	}
	return settled{r}
}

// dropUnused takes out of a service what its type has no use for. The registry does that only when
// it reads a service, and so neither for watches, which deliver what is stored, nor for the answer
// to a change of the status.
func dropUnused(obj runtime.Object) {
	if s, ok := obj.(*api.Service); ok && s.Spec.Type == api.ServiceTypeExternalName {
		s.Spec.InternalTrafficPolicy = nil
	}
}

// explain corrects the error of a begin that failed because a range refused to hand out a
// number: it is 503 with the reason, while the registry calls the service invalid.
// The refusal may have been another request's; then this request gets an error to retry,
// too.
func explain(refusals func() [3]*apierrors.StatusError, begin func() (genericregistry.FinishFunc, error)) (genericregistry.FinishFunc, error) {
	before := refusals()
	finish, err := begin()
	if err == nil {
		return finish, nil
	}
	for i, refusal := range refusals() {
		if refusal != before[i] {
			return nil, refusal
		}
	}
	return nil, err
}

// Update changes a service, or creates it.
func (s settled) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreation rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, forceCreation bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	last := &lastTry{}
	written := false
	defer func() { last.settle(ctx, written) }()
	obj, created, err := s.REST.Update(context.WithValue(ctx, lastTryKey{}, last), name, info, validateCreation, validateUpdate, forceCreation, opts)
	written = err == nil
	return obj, created, err
}

// lastTry settles the last try of an update that came to the point of being written.
type lastTry struct {
	finish genericregistry.FinishFunc // nil when there is nothing to settle
}

type lastTryKey struct{}

func (l *lastTry) settle(ctx context.Context, written bool) {
	if l.finish != nil {
		l.finish(ctx, written)
		l.finish = nil
	}
}

// try begins a try of the update that ctx belongs to. A creation belongs to no update;
// the registry finishes it once it is written.
func try(ctx context.Context, begin func() (genericregistry.FinishFunc, error)) (genericregistry.FinishFunc, error) {
	last, ok := ctx.Value(lastTryKey{}).(*lastTry)
	if !ok {
		return begin()
	}
	last.settle(ctx, false) // the try before was not written
	finish, err := begin()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, success bool) {
		if success {
			last.finish = finish
			return
		}
		finish(ctx, false)
	}, nil
}
