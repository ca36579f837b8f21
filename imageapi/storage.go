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
	// Scheme is a scheme that Install was called with. Required.
	Scheme *runtime.Scheme
	// Verifier judges signatures whenever they are written; nil judges none.
	Verifier Verifier
	// Summarize reads the verdicts stored in an image: verified is True, False, Unknown or Unsigned; signers are the
	// distinct signers of its trusted signatures. It is an index function: it depends on the image alone, and if it
	// changes its mind the index must be built again. If it is nil there are no verdicts: a signed image is Unknown.
	Summarize func(image *imagev1.Image) (verified string, signers []string)
	// Attested reads the same for attestations: True, False, Unknown or ByIndex, and "" if an image has none and none
	// is demanded. It is an index function, too. If it is nil there are no verdicts.
	Attested func(image *imagev1.Image) string
	// VerdictChanged is called after each write that changes what Summarize says of an image, whoever wrote: a new
	// image that is signed, a signature that was added, policies that changed. It must not wait. It may be nil.
	VerdictChanged func(image *imagev1.Image, verified string, signers []string)
	// Vouches is called after each write of an index that is verified in other repositories than before, or no longer
	// in any: the images that it lists must be judged again. It must not wait. It may be nil.
	Vouches func(index *imagev1.Image)
	// AnswerCreation, if set, is called before a creation and returns the context to create with. answer is called
	// after it and returns the object to answer with: the created one, or one that knows its encoding
	// (runtime.CacheableObject).
	AnswerCreation func(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object)
	// Usage counts the pods that use an image; nil when there are none to count.
	Usage Usage
	// Authorizer decides whether the writer of a stream may see what it follows in other namespaces, and whether they
	// may delete the ImageTag of a tag that they delete. nil allows everything.
	Authorizer Authorizer
	// Registry is the host[:port] of the registry that has this server for its image API, as OpenShift's registry has
	// OpenShift's, in canonical form and as that registry knows itself. A stream whose spec names no repository follows
	// the repository <namespace>/<name> there. If it is "", mappings are refused.
	Registry string
	// PublicRegistry is the host[:port] by which Registry is reached from elsewhere; streams show it. "" is none.
	PublicRegistry string
	// Pushed is called after Registry has stored something here: with the tag and the digest of each mapping, and for
	// an object with a subject with the tag of the subject's referrers. Signatures and attestations should then be
	// looked for in the registry; Pushed does not wait for that. Its error is the answer to the registry, so that the
	// push is repeated. It is not called if AllowedRegistries leave Registry out. It may be nil.
	Pushed func(ctx context.Context, ref reference.Reference) error
	// Importer imports for imagestreamimports; nil imports nothing. If it is set, somebody must also import what
	// TagImports returns.
	Importer Importer
	// AllowedRegistries are the registries that an imagestreamimport of a user who may not create images may ask, and
	// that tags of streams may follow; none allows all.
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
	shown := &streamReader{images: served, tags: tagged, authorizer: opts.Authorizer, registry: opts.Registry, publicRegistry: opts.PublicRegistry, imports: opts.Importer != nil}
	served.shown = shown
	if opts.Pushed != nil && opts.Registry != "" && (allowedRegistry(opts.AllowedRegistries, opts.Registry, false) || allowedRegistry(opts.AllowedRegistries, opts.Registry, true)) {
		shown.pushed = opts.Pushed
	}
	streams, streamStatus, err := newImageStreams(g, opts.Scheme, shown, status)
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
