package imageapi

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// Options of the storage.
type Options struct {
	// Scheme is one that Install was called with. Required.
	Scheme *runtime.Scheme
	// Verifier judges signatures whenever they are written; nil judges none.
	Verifier Verifier
}

// Storage returns the REST storage of image.openshift.io/v1, by resource: "images" and
// "imagesignatures".
func Storage(g generic.RESTOptionsGetter, opts Options) (map[string]rest.Storage, error) {
	if opts.Scheme == nil {
		return nil, fmt.Errorf("imageapi: Options.Scheme is required")
	}
	s := &strategy{ObjectTyper: opts.Scheme, NameGenerator: names.SimpleNameGenerator, verifier: opts.Verifier}
	images := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &imagev1.Image{} },
		NewListFunc:               func() runtime.Object { return &imagev1.ImageList{} },
		PredicateFunc:             predicate,
		DefaultQualifiedResource:  imagev1.Resource("images"),
		SingularQualifiedResource: imagev1.Resource("image"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            tableConvertor{},
	}
	s.get = func(ctx context.Context, name string) *imagev1.Image {
		obj, err := images.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return obj.(*imagev1.Image)
	}
	if err := images.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: g,
		AttrFunc:    attributes,
		TriggerFunc: selectableFields,
		Indexers:    indexers(),
	}); err != nil {
		return nil, fmt.Errorf("imageapi: %w", err)
	}
	return map[string]rest.Storage{
		"images": images,
		"imagesignatures": &signaturesREST{
			images:   images,
			strategy: signatureStrategy{ObjectTyper: opts.Scheme, NameGenerator: names.SimpleNameGenerator},
		},
	}, nil
}
