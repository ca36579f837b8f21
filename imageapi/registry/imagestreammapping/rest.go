// Package imagestreammapping takes what OpenShift's registry reports after a push.
package imagestreammapping

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// REST takes a report of OpenShift's registry after a push: an image, and the tag of a stream that
// leads to it now. It records them as it does a push to any other registry, in the tag's ImageTag,
// which the stream follows, and on the image. So pushes to one stream wait for each other only if
// they are of one tag, and none is refused for that.
type REST struct {
	virtual.Resource
	shown    *imagestream.Reader
	images   *imageregistry.REST
	strategy streamMappingStrategy
}

// NewREST returns the storage of ImageStreamMappings; shown are the streams that they are of.
func NewREST(scheme *runtime.Scheme, shown *imagestream.Reader, images *imageregistry.REST) *REST {
	return &REST{virtual.Resource{Object: &imagev1.ImageStreamMapping{}, Namespaced: true, Singular: "imagestreammapping"}, shown, images, streamMappingStrategy{strategy.NewNamespaced(scheme)}}
}

var (
	_ rest.Creater              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// Create is part of rest.Creater. It stores the image if it is not there, and records that the tag
// leads to it.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	mapping, ok := obj.(*imagev1.ImageStreamMapping)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageStreamMapping: %T", obj))
	}
	options = cmp.Or(options, &metav1.CreateOptions{})
	if err := virtual.BeforeCreate(ctx, r.strategy, mapping, validate); err != nil {
		return nil, err
	}
	stream, err := r.stream(ctx, mapping, options.DryRun)
	if err != nil {
		return nil, err
	}
	repository, _ := r.shown.Own(stream)
	ref := repository.WithTag(mapping.Tag)
	if err := r.store(ctx, mapping, ref, options.DryRun); err != nil {
		return nil, err
	}
	if err := r.shown.Lead(ctx, ref, mapping.Image.Name, "push", metav1.NewTime(time.Now().UTC().Truncate(time.Second)), options.DryRun); err != nil {
		return nil, err
	}
	if len(options.DryRun) == 0 {
		pushed := ref
		pushed.Digest = mapping.Image.Name
		if err := r.shown.Pushed(ctx, pushed); err != nil {
			return nil, err
		}
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// follows reports whether a tag of a stream moves with a reference of a registry.
func follows(spec *imagev1.TagReference, ref reference.Reference) bool {
	from, err := reference.Parse(spec.From.Name)
	return err == nil && spec.From.Kind == "DockerImage" && !spec.Reference && from.Pulled() == ref
}

// stream returns the stream of a mapping, if the stream takes any. OpenShift's registry makes a
// stream that is not found if the error is about imagestreammappings and has the stream's name.
func (r *REST) stream(ctx context.Context, mapping *imagev1.ImageStreamMapping, dryRun []string) (*imagev1.ImageStream, error) {
	obj, err := r.shown.Streams.Get(ctx, mapping.Name, &metav1.GetOptions{})
	if err == nil && r.shown.Registry != "" && obj.(*imagev1.ImageStream).Spec.DockerImageRepository == "" {
		// The stream was written before the registry was configured: any write completes it.
		asItIs := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) { return old, nil })
		obj, _, err = r.shown.Streams.Update(ctx, mapping.Name, asItIs, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	}
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(imagev1.Resource("imagestreammappings"), mapping.Name)
	}
	if err != nil {
		return nil, err
	}
	stream := obj.(*imagev1.ImageStream)
	var errs field.ErrorList
	repository, own := r.shown.Own(stream)
	switch {
	case r.shown.Registry == "":
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "this server is not the image API of a registry: name the registry that pushes come from in the configuration (streams.registry)"))
	case !own:
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), fmt.Sprintf("the stream follows %s, so a push to %s does not change it: remove its spec.dockerImageRepository", stream.Spec.DockerImageRepository, repository.Name())))
	}
	if spec := imagestream.SpecTag(stream, mapping.Tag); spec != nil && spec.From != nil && !follows(spec, repository.WithTag(mapping.Tag)) && !r.shown.TakesPushes(stream, spec) {
		errs = append(errs, field.Forbidden(field.NewPath("tag"), fmt.Sprintf("the stream says that %s follows %s: push to another tag, or delete this one first", mapping.Tag, spec.From.Name)))
	}
	image := &mapping.Image
	if image.DockerImageReference == "" {
		image.DockerImageReference = repository.WithDigest(image.Name).String()
	}
	if ref, err := reference.Parse(image.DockerImageReference); own && (err != nil || ref.Bare() != repository) {
		errs = append(errs, field.Invalid(field.NewPath("image", "dockerImageReference"), image.DockerImageReference, "must be in the stream's repository, "+repository.Name()+": streams.registry of the configuration must be the address by which the registry knows itself"))
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(imagev1.GroupVersion.WithKind("ImageStreamMapping").GroupKind(), mapping.Name, errs)
	}
	return stream, nil
}

// store stores an image that was pushed. If the image exists, store records that the registry has
// it in this repository as well, if the mapping brings the image or that is known. A writer of
// mappings needs the same right on images: else knowing a digest would be enough to see an image of
// others, and have the registry serve its layers.
func (r *REST) store(ctx context.Context, mapping *imagev1.ImageStreamMapping, ref reference.Reference, dryRun []string) error {
	clusterWide := genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	image := mapping.Image.DeepCopy()
	may := func(verb string) error {
		reason, may := r.shown.May(ctx, authorizer.AttributesRecord{Verb: verb, Resource: "images", Name: image.Name})
		if may {
			return nil
		}
		return apierrors.NewForbidden(imagev1.Resource("imagestreammappings"), mapping.Name, fmt.Errorf("%s", strings.TrimSpace(fmt.Sprintf("%s may not %s images: the role tidewaiter:registry allows it %s", strategy.UserOf(ctx), verb, reason))))
	}
	if _, err := r.images.Get(clusterWide, image.Name, &metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if err := may("create"); err != nil {
			return err
		}
		if image.Annotations == nil {
			image.Annotations = map[string]string{}
		}
		annotation.SetKnown(image.Annotations, []reference.Reference{ref})
		if _, err = r.images.CreateOnly(clusterWide, image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun}); err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := may("get"); err != nil {
		return err
	}
	whole, refused := imagestream.IsWhole(&mapping.Image), false
	_, err := r.shown.ChangeImage(ctx, image.Name, dryRun, func(image *imagev1.Image) {
		if refused = !whole && !imageregistry.IsIn(image, ref.Bare()); !refused {
			imagestream.Know(image, ref)
		}
	})
	if err == nil && refused {
		err = apierrors.NewInvalid(imagev1.GroupVersion.WithKind("ImageStreamMapping").GroupKind(), mapping.Name, field.ErrorList{field.Required(field.NewPath("image", "dockerImageManifest"),
			"the image is not known to be in "+ref.Bare().String()+": send its manifest and config, as a registry does")})
	}
	return err
}

// streamMappingStrategy prepares and validates an ImageStreamMapping.
type streamMappingStrategy struct{ strategy.Namespaced }

var _ rest.RESTCreateStrategy = streamMappingStrategy{}

// PrepareForCreate is part of rest.RESTCreateStrategy. Signatures are added through images and
// imagesignatures alone.
func (streamMappingStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	mapping := obj.(*imagev1.ImageStreamMapping)
	mapping.Image.Signatures = nil
	mapping.Image.Namespace = ""
	mapping.Tag = cmp.Or(mapping.Tag, imagev1.DefaultImageTag)
}

// Validate reports what is wrong with a mapping. The image is validated when it is stored.
func (streamMappingStrategy) Validate(_ context.Context, obj runtime.Object) (errs field.ErrorList) {
	mapping := obj.(*imagev1.ImageStreamMapping)
	if !reference.IsTag(mapping.Tag) {
		errs = append(errs, field.Invalid(field.NewPath("tag"), mapping.Tag, "must be a tag"))
	}
	if !reference.IsDigest(mapping.Image.Name) {
		errs = append(errs, field.Invalid(field.NewPath("image", "metadata", "name"), mapping.Image.Name, "must be the digest of the image's manifest"))
	}
	return errs
}
