package image

import (
	"cmp"
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Stored are the images as they are stored, for those that the storage of images is made from:
// streams and answers. It selects references as images record them, not by where tags lead now, and
// creates and deletes nothing.
type Stored struct{ *REST }

// NewREST returns the storage of images.
func NewREST(stored *Stored, streams Streams, answers Answers) *REST {
	r := *stored.REST
	images, artifacts := *r.Store, *r.artifacts
	r.Store, r.artifacts, r.streams, r.answers = &images, &artifacts, streams, answers
	images.TableConvertor = tableConvertor{&r}
	artifacts.TableConvertor = images.TableConvertor
	return &r
}

// NewStored returns the images that are stored in g.
func NewStored(g generic.RESTOptionsGetter, opts Options) (*Stored, error) {
	f := newFacts(opts)
	s := &imageStrategy{ClusterWide: strategy.NewClusterWide(opts.Scheme), verifier: opts.Verifier}
	served := &REST{Facts: f, observer: opts.Observer, packages: opts.Packages, answering: cmp.Or[Answering](opts.Answering, created{})}
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
		by := func(field string) func(ctx context.Context, digest string) ([]string, error) {
			return func(ctx context.Context, digest string) (names []string, err error) {
				obj, err := images.ListPredicate(ctx, f.predicate(labels.Everything(), fields.OneTermEqualSelector(field, digest)), &internalversion.ListOptions{Limit: maxAbove})
				if err != nil {
					return nil, err
				}
				for i := range obj.(*imagev1.ImageList).Items {
					names = append(names, obj.(*imagev1.ImageList).Items[i].Name)
				}
				return names, nil
			}
		}
		f.indexes = followIndexes(f.usage, s.get, by(listsField), by(configField))
		f.named.tag = func(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error) {
			obj, err := opts.Tags.Get(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), &metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return obj.(*imagev1.ImageTag), nil
		}
		f.named.revision = func(ctx context.Context) (uint64, error) {
			return opts.Tags.Storage.Storage.GetCurrentResourceVersion(ctx)
		}
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
		if opts.Observer != nil && len(verifiedRepositories(index)) > 0 {
			opts.Observer.IndexVerdictChanged(index)
		}
	}
	if opts.Verifier != nil {
		current := func(ctx context.Context) (genericregistry.FinishFunc, error) {
			if err := opts.Verifier.Current(ctx); err != nil {
				return nil, apierrors.NewServiceUnavailable("the policies in force are not known, so the image cannot be judged: " + err.Error())
			}
			return func(context.Context, bool) {}, nil
		}
		images.BeginCreate = func(ctx context.Context, _ runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			return current(ctx)
		}
		images.BeginUpdate = func(ctx context.Context, _, _ runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
			return current(ctx)
		}
	}
	served.Store, served.artifacts = images, artifacts
	return &Stored{served}, nil
}
