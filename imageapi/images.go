package imageapi

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// imagesREST is the storage of images: the generic one, and a guard before selectors by use.
//
// Whether an image is used is decided when it is asked: pods come and go without a change of any
// image. A list by it therefore looks at every image that the rest of the selector leaves.
type imagesREST struct {
	*genericregistry.Store
	facts *facts
}

// List is part of rest.Lister.
func (r *imagesREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := r.canSelect(options); err != nil {
		return nil, err
	}
	return r.Store.List(ctx, options)
}

// DeleteCollection is part of rest.CollectionDeleter.
func (r *imagesREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *internalversion.ListOptions) (runtime.Object, error) {
	if err := r.canSelect(listOptions); err != nil {
		return nil, err
	}
	return r.Store.DeleteCollection(ctx, validate, options, listOptions)
}

// Watch is part of rest.Watcher. A watch tells of changes of images, so it would miss that a pod
// came or went: better none than one that is wrong.
func (r *imagesREST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if selectsByUse(options) {
		return nil, apierrors.NewBadRequest(`field label "` + usedField + `" cannot be watched, because it changes without a change of the image: list images by it, or watch pods`)
	}
	return r.Store.Watch(ctx, options)
}

// canSelect refuses a selector by use when use is not known. To answer that nothing is used would
// have somebody delete what is.
func (r *imagesREST) canSelect(options *internalversion.ListOptions) error {
	switch {
	case !selectsByUse(options):
		return nil
	case r.facts.usage == nil:
		return apierrors.NewBadRequest(`field label "` + usedField + `" is not supported for images: this server knows no pods`)
	case !r.facts.usage.Synced():
		return apierrors.NewServiceUnavailable(`images cannot be selected by "` + usedField + `" yet, pods are still being read: try again in a moment`)
	}
	return nil
}

func selectsByUse(options *internalversion.ListOptions) bool {
	if options == nil || options.FieldSelector == nil {
		return false
	}
	for _, r := range options.FieldSelector.Requirements() {
		if r.Field == usedField {
			return true
		}
	}
	return false
}
