package imageapi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// streamMappingsREST takes a report of OpenShift's registry after a push: an image, and the tag of a stream that leads
// to it now. It records them as it does a push to any other registry, in the tag's ImageTag, which the stream follows,
// and on the image. So pushes to one stream wait for each other only if they are of one tag, and none is refused for
// that.
type streamMappingsREST struct {
	shown     *streamReader
	images    *imagesREST
	tagStatus rest.Updater
	strategy  streamMappingStrategy
}

var (
	_ rest.Creater              = &streamMappingsREST{}
	_ rest.Scoper               = &streamMappingsREST{}
	_ rest.SingularNameProvider = &streamMappingsREST{}
)

// New is part of rest.Storage.
func (*streamMappingsREST) New() runtime.Object { return &imagev1.ImageStreamMapping{} }

// Destroy is part of rest.Storage. The storage is that of streams, tags and images.
func (*streamMappingsREST) Destroy() {}

// NamespaceScoped is part of rest.Scoper.
func (*streamMappingsREST) NamespaceScoped() bool { return true }

// GetSingularName is part of rest.SingularNameProvider.
func (*streamMappingsREST) GetSingularName() string { return "imagestreammapping" }

// Create is part of rest.Creater. It stores the image if it is not there, and records that the tag leads to it.
func (r *streamMappingsREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	mapping, ok := obj.(*imagev1.ImageStreamMapping)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageStreamMapping: %T", obj))
	}
	if options == nil {
		options = &metav1.CreateOptions{}
	}
	rest.FillObjectMetaSystemFields(&mapping.ObjectMeta)
	if err := rest.BeforeCreate(r.strategy, ctx, mapping); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, mapping.DeepCopy()); err != nil {
			return nil, err
		}
	}
	stream, err := r.stream(ctx, mapping, options.DryRun)
	if err != nil {
		return nil, err
	}
	repository, _ := r.shown.own(stream)
	ref := repository.WithTag(mapping.Tag)
	if err := r.store(ctx, mapping, ref, options.DryRun); err != nil {
		return nil, err
	}
	left, err := r.lead(ctx, ref, mapping.Image.Name, options.DryRun)
	if err != nil {
		return nil, err
	}
	if left != "" && left != mapping.Image.Name {
		if err := r.shown.leave(ctx, left, ref, options.DryRun); err != nil {
			return nil, err
		}
	}
	if r.shown.pushed != nil && len(options.DryRun) == 0 {
		pushed := ref
		pushed.Digest = mapping.Image.Name
		if err := r.shown.pushed(ctx, pushed); err != nil {
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

// stream returns the stream of a mapping, if the stream takes any. OpenShift's registry makes a stream that is not
// found if the error is about imagestreammappings and has the stream's name.
func (r *streamMappingsREST) stream(ctx context.Context, mapping *imagev1.ImageStreamMapping, dryRun []string) (*imagev1.ImageStream, error) {
	obj, err := r.shown.streams.Get(ctx, mapping.Name, &metav1.GetOptions{})
	if err == nil && r.shown.registry != "" && obj.(*imagev1.ImageStream).Spec.DockerImageRepository == "" {
		// The stream was written before the registry was configured: any write completes it.
		asItIs := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) { return old, nil })
		obj, _, err = r.shown.streams.Update(ctx, mapping.Name, asItIs, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	}
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(imagev1.Resource("imagestreammappings"), mapping.Name)
	}
	if err != nil {
		return nil, err
	}
	stream := obj.(*imagev1.ImageStream)
	var errs field.ErrorList
	repository, own := r.shown.own(stream)
	switch {
	case r.shown.registry == "":
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "this server is the image API of no registry: name the one that pushes come from in its configuration (streams.registry)"))
	case !own:
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), fmt.Sprintf("the stream follows %s, so a push to %s changes nothing of it: leave out its spec.dockerImageRepository", stream.Spec.DockerImageRepository, repository.Name())))
	}
	if spec := specTag(stream, mapping.Tag); spec != nil && spec.From != nil && !follows(spec, repository.WithTag(mapping.Tag)) {
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

// store stores an image that was pushed. If the image exists, store records that the registry has it, and the images
// that it lists, in this repository as well. A writer of mappings needs the same right on images: else whoever knows a
// digest would see an image of others, and have the registry serve its layers.
func (r *streamMappingsREST) store(ctx context.Context, mapping *imagev1.ImageStreamMapping, ref reference.Reference, dryRun []string) error {
	clusterWide := genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	image := mapping.Image.DeepCopy()
	may := func(verb string) error {
		reason, may := r.shown.may(ctx, authorizer.AttributesRecord{Verb: verb, Resource: "images", Name: image.Name})
		if may {
			return nil
		}
		return apierrors.NewForbidden(imagev1.Resource("imagestreammappings"), mapping.Name, fmt.Errorf("%s", strings.TrimSpace(fmt.Sprintf("%s may not %s images: the role tidewaiter:registry allows it %s", userOf(ctx), verb, reason))))
	}
	if _, err := r.images.Get(clusterWide, image.Name, &metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if err := may("create"); err != nil {
			return err
		}
		if image.Annotations == nil {
			image.Annotations = map[string]string{}
		}
		annotation.SetKnown(image.Annotations, []reference.Reference{ref})
		if _, err = r.images.create(clusterWide, image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun}); err == nil {
			if may("get") != nil {
				return nil
			}
			return r.knowChildren(ctx, image, ref, dryRun)
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
	stored, err := r.shown.changeImage(ctx, image.Name, dryRun, func(image *imagev1.Image) { know(image, ref) })
	if err != nil {
		return err
	}
	return r.knowChildren(ctx, stored, ref, dryRun)
}

// knowChildren records that the registry has the images that an index lists in the repository of ref as well. Images
// that are stored were pushed before, maybe to another repository: then the registry reports no more than the index.
func (r *streamMappingsREST) knowChildren(ctx context.Context, index *imagev1.Image, ref reference.Reference, dryRun []string) error {
	children := childrenOf(index)
	for _, child := range children[:min(len(children), maxChildLookups)] {
		if _, err := r.shown.changeImage(ctx, child, dryRun, func(image *imagev1.Image) { know(image, ref.Bare().WithDigest(child)) }); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// know records that an image is known by a reference, which the registry has.
func know(image *imagev1.Image, ref reference.Reference) {
	if ref.Tag == "" && isIn(image, ref.Bare()) {
		return
	}
	known := annotation.Known(image.Annotations)
	missing := annotation.Missing(image.Annotations)
	delete(missing, ref)
	delete(missing, ref.Bare().WithDigest(image.Name))
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	annotation.SetMissing(image.Annotations, missing)
	if !slices.Contains(known, ref) {
		annotation.SetKnown(image.Annotations, append(known, ref))
	}
}

// lead records that a tag leads to an image, and returns the image that it led to before; "" for none.
func (r *streamMappingsREST) lead(ctx context.Context, ref reference.Reference, image string, dryRun []string) (left string, err error) {
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		tag := old.(*imagev1.ImageTag).DeepCopy()
		if tag.Name == "" {
			tag = tags.New(ref)
		}
		if tag.Status == nil {
			tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
		}
		left, _ = tags.Now(tag)
		led, failed := tags.Lead(tag, ref, image, now), tags.Fail(tag, "", "", now)
		if led || failed {
			setTagCause(tag, "push")
		}
		return tag, nil
	}
	_, _, err = r.tagStatus.Update(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	return left, err
}

func setTagCause(tag *imagev1.ImageTag, cause string) {
	if tag.Annotations == nil {
		tag.Annotations = map[string]string{}
	}
	tag.Annotations[tags.Cause] = cause
}

// own returns the repository of a stream in the registry whose image API this server is, and whether the stream follows
// it.
func (r *streamReader) own(stream *imagev1.ImageStream) (repository reference.Reference, follows bool) {
	if r.registry == "" {
		return reference.Reference{}, false
	}
	repository = reference.Reference{Host: r.registry, Repository: stream.Namespace + "/" + stream.Name}
	followed, err := reference.ParseRepository(stream.Spec.DockerImageRepository)
	return repository, err == nil && followed == repository
}

// changeImage changes an image, and writes it if it is different then.
func (r *streamReader) changeImage(ctx context.Context, name string, dryRun []string, change func(*imagev1.Image)) (*imagev1.Image, error) {
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		image := *old.(*imagev1.Image)
		before := image.Annotations
		image.Annotations = map[string]string{}
		for key, value := range before {
			image.Annotations[key] = value
		}
		if change(&image); apiequality.Semantic.DeepEqual(image.Annotations, before) {
			return old, nil
		}
		return &image, nil
	}
	obj, _, err := r.images.Update(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

// leave removes a tag from an image that it no longer leads to. The image stays known in the tag's repository. leave
// does nothing if the image is not stored, or if the tag leads to it again.
func (r *streamReader) leave(ctx context.Context, image string, ref reference.Reference, dryRun []string) error {
	var failed error
	_, err := r.changeImage(ctx, image, dryRun, func(image *imagev1.Image) {
		tag, err := r.tag(ctx, ref)
		if now, _ := tags.Now(tag); err != nil || now == image.Name {
			failed = err
			return
		}
		if annotation.Leave(image.Annotations, ref) {
			know(image, ref.Bare().WithDigest(image.Name))
		}
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = failed
	}
	return err
}

// forgetTag deletes what is known of a tag in a registry. If mappings report the pushes to that registry, it also
// removes the tag from the image that it leads to, as nothing else would.
func (r *streamReader) forgetTag(ctx context.Context, tag *imagev1.ImageTag, dryRun []string) error {
	if _, _, err := r.tags.Delete(genericapirequest.WithNamespace(ctx, tag.Namespace), tag.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: dryRun}); err != nil {
		return err
	}
	ref, ok := tags.Reference(tag)
	image, _ := tags.Now(tag)
	if !ok || ref.Host != r.registry || image == "" || len(dryRun) > 0 {
		return nil
	}
	return r.leave(ctx, image, ref, nil)
}

// forgetPushes deletes the records of pushes to a stream that is deleted.
func (r *streamReader) forgetPushes(stream *imagev1.ImageStream) {
	repository, own := r.own(stream)
	if !own {
		return
	}
	ctx, cancel := context.WithTimeout(genericapirequest.NewContext(), forgetTimeout)
	defer cancel()
	known, err := r.tagsOf(ctx, repository.Name())
	for i := range known {
		if failed := r.forgetTag(ctx, &known[i], nil); failed != nil && !apierrors.IsNotFound(failed) {
			err = failed
		}
	}
	if err != nil {
		slog.Warn("Tags of a deleted image stream stay: delete their imagetags", "repository", repository.Name(), "namespace", tags.Namespace, "err", err)
	}
}

// forgetTimeout bounds how long the deletion of a stream may spend on its tags.
const forgetTimeout = time.Minute

// streamMappingStrategy prepares and validates an ImageStreamMapping.
type streamMappingStrategy struct{ namespaceScoped }

var _ rest.RESTCreateStrategy = streamMappingStrategy{}

// PrepareForCreate is part of rest.RESTCreateStrategy. Signatures are added through images and imagesignatures alone.
func (streamMappingStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	mapping := obj.(*imagev1.ImageStreamMapping)
	mapping.Image.Signatures = nil
	mapping.Image.Namespace = ""
	if mapping.Tag == "" {
		mapping.Tag = imagev1.DefaultImageTag
	}
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
