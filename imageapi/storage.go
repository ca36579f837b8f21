package imageapi

import (
	"context"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Options of the storage.
type Options struct {
	// Scheme is one that Install was called with. Required.
	Scheme *runtime.Scheme
	// Verifier judges signatures whenever they are written; nil judges none.
	Verifier Verifier
	// Summarize reads the verdicts stored in an image: verified is True, False, Unknown or Unsigned;
	// signers, distinct, are whom its trusted signatures are from. It is an index function: it
	// depends on the image alone, and one that changes its mind needs the index built anew. nil
	// knows no verdicts: what is signed is Unknown.
	Summarize func(image *imagev1.Image) (verified string, signers []string)
	// Attested reads the same of attestations: True, False, Unknown or ByIndex, "" where an image has none and none is
	// demanded. It is an index function, too. nil knows no verdicts.
	Attested func(image *imagev1.Image) string
	// VerdictChanged is told of each write after which Summarize says something else of an image than
	// before, by whomever it was: a new image that is signed, a signature that was added, policies
	// that changed. It must not wait. nil is told nothing.
	VerdictChanged func(image *imagev1.Image, verified string, signers []string)
	// Vouches is told of each write of an index after which it is verified in other repositories than before, or
	// in none: what it lists is to be judged again. It must not wait. nil is told nothing.
	Vouches func(index *imagev1.Image)
	// AnswerCreation, if set, is asked before a creation for the context to create with, and after it for
	// what to answer with: the object, or one that knows its encoding (runtime.CacheableObject).
	AnswerCreation func(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object)
	// Usage counts the pods that use an image; nil when there are none to count.
	Usage Usage
	// Authorizer decides whether the writer of a stream may see what it follows in other namespaces, and delete with a tag of
	// a stream what is known of it; nil lets everybody.
	Authorizer Authorizer
	// Registry is the host[:port] of the registry whose image API this server is, as OpenShift's is of its own: in its
	// canonical form, and as that registry knows itself. A stream that says nothing else is the repository
	// <namespace>/<name> there. "" is none, and then mappings are refused.
	Registry string
	// Pushed is told of what Registry has stored here, after that: of the tag and the digest of each mapping, and of what has a
	// subject by the tag of the subject's referrers. Signatures and attestations are to be looked for in the registry then. It
	// does not wait for that; an error is the answer to the registry, so that the push is done again. It is not told if
	// AllowedRegistries leave Registry out. nil is told nothing.
	Pushed func(ctx context.Context, ref reference.Reference) error
	// Importer imports for imagestreamimports; nil imports nothing. Where there is one, what TagImports tells of is to be
	// imported, too.
	Importer Importer
	// AllowedRegistries are those that whoever may not create images may have asked by an imagestreamimport, and that anybody
	// may by a tag of a stream; none for all.
	AllowedRegistries []configv1.RegistryLocation
}

// Storage returns the REST storage of image.openshift.io/v1, by resource: "images",
// "imagesignatures", "imagetags", "imagetags/status", "imagestreams", "imagestreams/status", "imagestreams/layers",
// "imagestreams/secrets", "imagestreamtags", "imagestreamimages", "imagestreammappings" and "imagestreamimports".
func Storage(g generic.RESTOptionsGetter, opts Options) (map[string]rest.Storage, error) {
	if opts.Scheme == nil {
		return nil, fmt.Errorf("imageapi: Options.Scheme is required")
	}
	f := newFacts(opts)
	s := &strategy{clusterScoped: clusterScoped{newCommonStrategy(opts.Scheme)}, verifier: opts.Verifier}
	images := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &imagev1.Image{} },
		NewListFunc:               func() runtime.Object { return &imagev1.ImageList{} },
		PredicateFunc:             f.predicate,
		DefaultQualifiedResource:  imagev1.Resource("images"),
		SingularQualifiedResource: imagev1.Resource("image"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            tableConvertor{f},
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
	s.index = func(ctx context.Context, repository, digest string) (*imagev1.Image, error) {
		field := fields.OneTermEqualSelector(vouchesField, repository+"@"+digest)
		obj, err := images.ListPredicate(ctx, f.predicate(labels.Everything(), field), &internalversion.ListOptions{Limit: 1})
		if err != nil {
			return nil, err
		}
		for i := range obj.(*imagev1.ImageList).Items {
			return &obj.(*imagev1.ImageList).Items[i], nil
		}
		return nil, nil
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
		if opts.Vouches != nil && len(vouchesIn(index)) > 0 {
			opts.Vouches(index)
		}
	}
	tagged, status, err := newImageTags(g, opts.Scheme)
	if err != nil {
		return nil, err
	}
	served := &imagesREST{Store: images, artifacts: artifacts, tags: tagged, facts: f, verdictChanged: opts.VerdictChanged, vouches: opts.Vouches, answerCreation: opts.AnswerCreation}
	if served.answerCreation == nil {
		served.answerCreation = func(ctx context.Context) (context.Context, func(runtime.Object) runtime.Object) {
			return ctx, func(obj runtime.Object) runtime.Object { return obj }
		}
	}
	shown := &streamReader{images: served, tags: tagged, authorizer: opts.Authorizer, registry: opts.Registry, imports: opts.Importer != nil}
	served.shown = shown
	if opts.Pushed != nil && opts.Registry != "" && (allowedRegistry(opts.AllowedRegistries, opts.Registry, false) || allowedRegistry(opts.AllowedRegistries, opts.Registry, true)) {
		shown.pushed = opts.Pushed
	}
	streams, streamStatus, err := newImageStreams(g, opts.Scheme, shown)
	if err != nil {
		return nil, err
	}
	streamTags := newImageStreamTags(opts.Scheme, shown)
	return map[string]rest.Storage{
		"images": served,
		"imagesignatures": &signaturesREST{
			images:   served,
			strategy: signatureStrategy{clusterScoped{newCommonStrategy(opts.Scheme)}},
		},
		"imagetags":            newImageTagsOfStreams(tagged, streamTags),
		"imagetags/status":     status,
		"imagestreams":         streams,
		"imagestreams/status":  streamStatus,
		"imagestreams/layers":  &streamLayersREST{shown},
		"imagestreams/secrets": &streamSecretsREST{shown},
		"imagestreamtags":      streamTags,
		"imagestreamimages":    &streamImagesREST{streamImageTable, shown},
		"imagestreamimports":   newImageStreamImports(opts, shown),
		"imagestreammappings":  &streamMappingsREST{shown, served, status, streamMappingStrategy{namespaceScoped{newCommonStrategy(opts.Scheme)}}},
	}, nil
}
