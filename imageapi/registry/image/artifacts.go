package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Artifacts are objects of kind Image that are not images: signatures, attestations, charts.
// OpenShift's registry stores and reads them as it does images. They have a storage of their own,
// so nothing that lists, watches, counts or indexes images meets one, be it by selector, from
// stored bytes or in SQL. The resource images has them by name, and lists them alone with the field
// selector artifact=true.

// artifactsResource is the resource of artifacts in the database: /image.openshift.io/artifacts/.
const artifactsResource = "artifacts"

// isArtifact reports whether an object is marked as an artifact. The mark is the server's: see
// strategy.
func isArtifact(image *imagev1.Image) bool { return image.Annotations[annotation.ArtifactType] != "" }

// artifactType returns what kind of artifact an object's manifest is. It returns "" for an image,
// and for an object without a readable manifest. An index of referrers is known by two things, what
// it lists and its tag: for registries without the referrers API, the distribution-spec has clients
// keep it under that tag, and the index itself does not show it.
func artifactType(image *imagev1.Image) string {
	if image.DockerImageManifest == "" {
		return ""
	}
	m, err := manifest.Of(image)
	if err != nil {
		return ""
	}
	if m.ListsReferrers() && slices.ContainsFunc(annotation.Known(image.Annotations), func(ref reference.Reference) bool { return ReferrersTag.MatchString(ref.Tag) }) {
		return m.MediaType
	}
	return m.TypeOfArtifact()
}

// ReferrersTag is a tag of the referrers tag schema.
var ReferrersTag = regexp.MustCompile(`^sha(256-[0-9a-f]{64}|512-[0-9a-f]{64})$`)

// derive is [manifest.Derive], or [manifest.DeriveArtifact] for an object that is marked as an
// artifact.
func derive(image *imagev1.Image, children ...*imagev1.Image) error {
	if isArtifact(image) {
		return manifest.DeriveArtifact(image)
	}
	return manifest.Derive(image, children...)
}

// artifactsGetter gives the storage of images to another resource.
type artifactsGetter struct{ generic.RESTOptionsGetter }

// GetRESTOptions is part of generic.RESTOptionsGetter. Artifacts are not counted as images.
func (g artifactsGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	resource.Resource = artifactsResource
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.CountMetricPollPeriod = 0
	return options, err
}

// artifactFields are the fields that artifacts are selected by. The fields of verdicts and use are
// of images alone.
var artifactFields = []string{nameField, digestField, referenceField, knownField, recordedField, mediaTypeField, artifactField}

// indexedArtifactFields are the artifactFields that the storage answers from an index.
var indexedArtifactFields = []string{referenceField, knownField}

func (f *facts) artifactPredicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	predicate := f.predicate(label, field)
	predicate.IndexFields = slices.DeleteFunc(slices.Clone(indexedArtifactFields), func(name string) bool { return !slices.Contains(predicate.IndexFields, name) })
	return predicate
}

// asked returns the store that a selector names, artifacts or by default images, and the options
// for it.
func (r *REST) asked(options *internalversion.ListOptions) (store imageStore, _ *internalversion.ListOptions, err error) {
	store = imageStore{r.Store, r.Facts.predicate}
	if options == nil || options.FieldSelector == nil {
		return store, options, nil
	}
	yes, no := false, false
	for _, q := range options.FieldSelector.Requirements() {
		if q.Field == artifactField {
			if q.Value == withArtifacts {
				return store, nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q can be %s only in a list and with no other value: list artifacts and images separately", artifactField, withArtifacts))
			}
			is := (q.Value == "true") != (q.Operator == selection.NotEquals)
			yes, no = yes || is, no || !is
		}
	}
	if !yes && !no {
		return store, options, nil
	}
	if yes && no {
		return store, nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q cannot be true and false", artifactField))
	}
	if yes {
		for _, q := range options.FieldSelector.Requirements() {
			if !slices.Contains(artifactFields, q.Field) {
				return store, nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is not supported for artifacts (%s=true): select them by %s", q.Field, artifactField, strings.Join(artifactFields, ", ")))
			}
		}
		store = imageStore{r.artifacts, r.Facts.artifactPredicate}
	}
	rest := *options
	rest.FieldSelector, err = options.FieldSelector.Transform(func(field, value string) (string, string, error) {
		if field == artifactField {
			return "", "", nil
		}
		return field, value, nil
	})
	return store, &rest, err
}

// withArtifacts is the value of the field artifact that selects images and artifacts. Artifacts
// come after all images of such a list, and secondPart is the prefix of the tokens that continue
// with them.
const withArtifacts, secondPart = "any", "artifacts."

// listWithArtifacts lists images, and then artifacts. It has every artifact that existed when the
// first page was read.
func (r *REST) listWithArtifacts(ctx context.Context, options internalversion.ListOptions) (runtime.Object, error) {
	options.FieldSelector = nil
	images := &imagev1.ImageList{}
	token, second := strings.CutPrefix(options.Continue, secondPart)
	if !second {
		obj, err := r.Store.List(ctx, &options)
		if err != nil {
			return nil, err
		}
		images = obj.(*imagev1.ImageList)
		if images.Continue != "" {
			return images, nil
		}
		if options.Limit > 0 {
			if options.Limit -= int64(len(images.Items)); options.Limit <= 0 {
				images.Continue = secondPart
				return images, nil
			}
		}
		token = ""
	}
	options.Continue = token
	if token == "" {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	obj, err := r.artifacts.List(ctx, &options)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.ErrStatus.Continue != "" {
		status.ErrStatus.Continue = secondPart + status.ErrStatus.Continue
	}
	if err != nil {
		return nil, err
	}
	artifacts := obj.(*imagev1.ImageList)
	artifacts.Items = append(images.Items, artifacts.Items...)
	if images.ResourceVersion != "" {
		artifacts.ResourceVersion = images.ResourceVersion
	}
	if artifacts.Continue != "" {
		artifacts.Continue = secondPart + artifacts.Continue
	}
	return artifacts, nil
}

// Get is part of rest.Getter. It finds artifacts, too.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	if apierrors.IsNotFound(err) {
		return r.artifacts.Get(ctx, name, options)
	}
	return obj, err
}

// Destroy is part of rest.Storage.
func (r *REST) Destroy() {
	r.Store.Destroy()
	r.artifacts.Destroy()
}

// createArtifact stores an artifact.
func (r *REST) createArtifact(ctx context.Context, image *imagev1.Image, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := r.isFree(ctx, r.Store, image.Name); err != nil {
		return nil, err
	}
	return r.artifacts.Create(ctx, image, validate, options)
}

// isFree refuses a name that the other storage has. Names are digests of manifests, so an image and
// an artifact share one only if the image was stored without its manifest, which alone tells the
// two apart.
func (r *REST) isFree(ctx context.Context, in rest.Getter, name string) error {
	if !reference.IsDigest(name) {
		return nil // the other storage does not have it
	}
	_, err := in.Get(ctx, name, &metav1.GetOptions{})
	switch {
	case err == nil:
		return apierrors.NewAlreadyExists(imagev1.Resource("images"), name)
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// updateArtifact updates an artifact, or applies it, which creates one that is not there. done is
// false if the object is an image.
func (r *REST) updateArtifact(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, createOnUpdate bool, options *metav1.UpdateOptions) (obj runtime.Object, created, done bool, err error) {
	_, err = r.artifacts.Get(ctx, name, &metav1.GetOptions{})
	isThere := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, false, true, err
	}
	if !isThere {
		if !createOnUpdate {
			return nil, false, false, nil
		}
		if err := r.isFree(ctx, r.Store, name); err != nil {
			return nil, false, false, nil // an image is there
		}
		applied, err := info.UpdatedObject(ctx, r.New())
		image, ok := applied.(*imagev1.Image)
		if err != nil || !ok || artifactType(image) == "" {
			return nil, false, false, nil // the update of an image returns the error
		}
	}
	obj, created, err = r.artifacts.Update(ctx, name, info, validateCreate, validateUpdate, createOnUpdate, options)
	return obj, created, true, err
}

// imageStore is a storage of images or of artifacts, and how objects are selected there.
type imageStore struct {
	listedStore
	predicate func(labels.Selector, fields.Selector) storage.SelectionPredicate
}

// listedStore is the storage of a list of objects.
type listedStore interface {
	rest.Lister
	rest.Watcher
	rest.CollectionDeleter
	ListPredicate(ctx context.Context, p storage.SelectionPredicate, options *internalversion.ListOptions) (runtime.Object, error)
}

const artifactField = selectors.Artifact

// markArtifact marks an object with the kind of artifact that it is, and unmarks an image.
func markArtifact(image *imagev1.Image, kind string) {
	delete(image.Annotations, annotation.ArtifactType)
	if kind != "" {
		metav1.SetMetaDataAnnotation(&image.ObjectMeta, annotation.ArtifactType, kind)
	}
}

// ChildrenOf returns the digests that an index lists: images, and BuildKit's attestations of them.
func ChildrenOf(image *imagev1.Image) (digests []string) {
	for i := range image.DockerImageManifests {
		digests = append(digests, image.DockerImageManifests[i].Digest)
	}
	return append(digests, attestationsOf(image)...)
}

// attestationsOf returns the digests of the attestations that an index lists.
func attestationsOf(image *imagev1.Image) (digests []string) {
	if image.DockerImageManifest == "" {
		return strings.FieldsFunc(image.Annotations[annotation.AttestationManifests], func(r rune) bool { return r == ',' })
	}
	if isArtifact(image) || len(image.DockerImageManifests) == 0 {
		return nil // dockerImageManifests has all, or it is not an index of images
	}
	m, err := manifest.Of(image)
	if err != nil {
		return nil
	}
	for _, d := range m.Children {
		if d.IsAttestation() && !slices.Contains(digests, d.Digest) && len(digests) < maxAttestations {
			digests = append(digests, d.Digest)
		}
	}
	return digests
}

// maxAttestations bounds how many attestations of an index are known.
const maxAttestations = 256
