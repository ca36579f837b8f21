package image

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
)

// NewREST returns the storage of images. Before it is used, its fields streams and tags must be
// set.
func NewREST(g generic.RESTOptionsGetter, opts Options) (*REST, error) {
	f := newFacts(opts)
	s := &imageStrategy{ClusterWide: strategy.NewClusterWide(opts.Scheme), verifier: opts.Verifier}
	served := &REST{Facts: f, verdictChanged: opts.VerdictChanged, judgedAgain: opts.JudgedAgain, indexVerdictChanged: opts.IndexVerdictChanged, packages: opts.Packages, answerCreation: opts.AnswerCreation}
	images := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &imagev1.Image{} },
		NewListFunc:               func() runtime.Object { return &imagev1.ImageList{} },
		PredicateFunc:             f.predicate,
		DefaultQualifiedResource:  imagev1.Resource("images"),
		SingularQualifiedResource: imagev1.Resource("image"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            tableConvertor{served},
	}
	artifactStrategy := *s
	artifactStrategy.artifacts, artifactStrategy.verifier = true, nil
	artifacts := &genericregistry.Store{
		NewFunc:                   images.NewFunc,
		NewListFunc:               images.NewListFunc,
		PredicateFunc:             f.artifactPredicate,
		DefaultQualifiedResource:  images.DefaultQualifiedResource, // in errors
		SingularQualifiedResource: images.SingularQualifiedResource,
		CreateStrategy:            &artifactStrategy,
		UpdateStrategy:            &artifactStrategy,
		DeleteStrategy:            &artifactStrategy,
		TableConvertor:            images.TableConvertor,
	}
	if err := artifacts.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: artifactsGetter{g},
		AttrFunc:    f.attributes(indexedArtifactFields),
		Indexers:    f.indexers(indexedArtifactFields),
	}); err != nil {
		return nil, fmt.Errorf("imageapi: %w", err)
	}
	s.get = func(ctx context.Context, name string) (*imagev1.Image, error) {
		obj, err := images.Get(ctx, name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return obj.(*imagev1.Image), nil
	}
	served.get = s.get
	s.index = func(ctx context.Context, repository, digest string) (all []*imagev1.Image, err error) {
		field := fields.OneTermEqualSelector(indexVerdictsField, repository+"@"+digest)
		obj, err := images.ListPredicate(ctx, f.predicate(labels.Everything(), field), &internalversion.ListOptions{Limit: maxVerifiedIndexes})
		if err != nil {
			return nil, err
		}
		for i := range obj.(*imagev1.ImageList).Items {
			all = append(all, &obj.(*imagev1.ImageList).Items[i])
		}
		return all, nil
	}
	if err := images.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: g,
		AttrFunc:    f.attributes(indexedFields),
		Indexers:    f.indexers(indexedFields),
	}); err != nil {
		return nil, fmt.Errorf("imageapi: %w", err)
	}
	if f.usage != nil {
		f.indexes = followIndexes(f.usage, s.get, func(ctx context.Context, digest string) ([]string, error) {
			obj, err := images.ListPredicate(ctx, f.predicate(labels.Everything(), fields.OneTermEqualSelector(listsField, digest)), &internalversion.ListOptions{Limit: maxAbove})
			if err != nil {
				return nil, err
			}
			var above []string
			for i := range obj.(*imagev1.ImageList).Items {
				above = append(above, obj.(*imagev1.ImageList).Items[i].Name)
			}
			return above, nil
		})
	}
	images.AfterDelete = func(obj runtime.Object, options *metav1.DeleteOptions) {
		if options != nil && len(options.DryRun) > 0 {
			return
		}
		index := obj.(*imagev1.Image)
		if f.usage != nil {
			f.indexes.deleted(index)
		}
		if opts.Packages != nil {
			forget(opts.Packages, index.Name)
		}
		if opts.IndexVerdictChanged != nil && len(verifiedRepositories(index)) > 0 {
			opts.IndexVerdictChanged(index)
		}
	}
	served.Store, served.artifacts = images, artifacts
	if served.answerCreation == nil {
		served.answerCreation = func(ctx context.Context) (context.Context, func(runtime.Object) runtime.Object) {
			return ctx, func(obj runtime.Object) runtime.Object { return obj }
		}
	}
	return served, nil
}
