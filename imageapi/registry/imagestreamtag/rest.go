// Package imagestreamtag serves the tags of streams, as imagestreamtags and as the imagetags of a
// namespace.
package imagestreamtag

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// REST serves the tags of streams one by one, each with its image. No tag is stored by itself: it
// is part of its stream, and has the stream's resourceVersion.
type REST struct {
	virtual.Resource
	rest.TableConvertor
	resource schema.GroupResource // in errors
	shown    *imagestream.Reader
	forget   *genericregistry.Store // streams, written by forgetStrategy
	strategy streamTagStrategy
}

// NewREST returns the storage of ImageStreamTags; shown are the streams that they are of.
func NewREST(scheme *runtime.Scheme, shown *imagestream.Reader) *REST {
	forget := *shown.Streams
	forget.UpdateStrategy = imagestream.ForgetStrategy{Strategy: shown.Streams.UpdateStrategy.(imagestream.Strategy)}
	return &REST{virtual.Resource{Object: &imagev1.ImageStreamTag{}, Namespaced: true, Singular: "imagestreamtag"}, streamTagTable, imagev1.Resource("imagestreamtags"), shown, &forget, streamTagStrategy{strategy.NewNamespaced(scheme)}}
}

var (
	_ rest.Lister               = &REST{}
	_ rest.CreaterUpdater       = &REST{}
	_ rest.Patcher              = &REST{}
	_ rest.GracefulDeleter      = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewList is part of rest.Lister.
func (*REST) NewList() runtime.Object { return &imagev1.ImageStreamTagList{} }

// ShortNames is part of rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"istag"} }

// splitStreamTag reads the name of an ImageStreamTag, <stream>:<tag>.
func splitStreamTag(name string) (stream, tag string, err error) {
	stream, tag, ok := strings.Cut(name, ":")
	if !ok || stream == "" || !reference.IsTag(tag) {
		return "", "", apierrors.NewBadRequest(fmt.Sprintf("%q is not the name of an image stream tag: it must be <stream>:<tag>", name))
	}
	return stream, tag, nil
}

func (r *REST) noTag(name string) error { return apierrors.NewNotFound(r.resource, name) }

// Get is part of rest.Getter. A tag that leads nowhere is not found.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	shown, tag, err := r.stream(ctx, name, options)
	if err != nil {
		return nil, err
	}
	history := imagestream.HistoryOf(shown, tag)
	if !imagestream.Leads(history) {
		return nil, r.noTag(name)
	}
	return r.withImage(ctx, shown, tag)
}

// stream returns the stream of a tag, with the image that the tag leads to.
func (r *REST) stream(ctx context.Context, name string, options *metav1.GetOptions) (shown *imagev1.ImageStream, tag string, err error) {
	streamName, tag, err := splitStreamTag(name)
	if err != nil {
		return nil, "", err
	}
	obj, err := r.shown.Streams.Get(ctx, streamName, options)
	if apierrors.IsNotFound(err) {
		return nil, "", r.noTag(name)
	}
	if err != nil {
		return nil, "", err
	}
	shown, err = r.shown.Named(ctx, obj.(*imagev1.ImageStream), tag)
	return shown, tag, err
}

// streamTag returns a tag of a stream. Of its image it has the name and the reference only. history
// may be nil.
func streamTag(stream *imagev1.ImageStream, tag string, history *imagev1.NamedTagEventList) *imagev1.ImageStreamTag {
	out := &imagev1.ImageStreamTag{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stream.Namespace, Name: stream.Name + ":" + tag, UID: stream.UID, ResourceVersion: stream.ResourceVersion,
			CreationTimestamp: stream.CreationTimestamp, Labels: stream.Labels,
		},
		LookupPolicy: stream.Spec.LookupPolicy,
	}
	if spec := imagestream.SpecTag(stream, tag); spec != nil {
		out.Tag = spec.DeepCopy()
		out.Annotations = maps.Clone(spec.Annotations)
	}
	if history == nil {
		return out
	}
	out.Conditions = history.Conditions
	if len(history.Items) > 0 {
		event := &history.Items[0]
		out.CreationTimestamp, out.Generation = event.Created, event.Generation
		out.Image.Name, out.Image.DockerImageReference = event.Image, event.DockerImageReference
	}
	return out
}

// withImage returns a tag of a stream with the image that it leads to, without manifest and config,
// as OpenShift does, and with the annotations of the tag. An image that is not stored has a name
// only.
func (r *REST) withImage(ctx context.Context, stream *imagev1.ImageStream, name string) (*imagev1.ImageStreamTag, error) {
	history := imagestream.HistoryOf(stream, name)
	tag := streamTag(stream, name, history)
	if tag.Image.Name == "" {
		return tag, nil
	}
	image, err := r.shown.Image(ctx, tag.Image.Name, tag.Image.DockerImageReference)
	tag.Image.DockerImageReference = r.shown.PulledBy(stream, name, &history.Items[0])
	if err != nil || image == nil {
		return tag, err
	}
	if len(tag.Annotations) > 0 {
		image.Annotations = maps.Clone(image.Annotations)
		if image.Annotations == nil {
			image.Annotations = map[string]string{}
		}
		maps.Copy(image.Annotations, tag.Annotations)
	}
	image.DockerImageReference = tag.Image.DockerImageReference
	tag.Image = *image
	return tag, nil
}

// Create is part of rest.Creater. It makes the stream if there is none. It refuses a tag that the
// stream's spec has. A tag that only the stream's repository has gets an entry in the spec.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	tag, ok := obj.(*imagev1.ImageStreamTag)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageStreamTag: %T", obj))
	}
	shown, err := r.create(ctx, tag, validate, options)
	if err != nil {
		return nil, err
	}
	return r.withImage(ctx, shown, tag.Tag.Name)
}

// create is Create, and returns the stream.
func (r *REST) create(ctx context.Context, tag *imagev1.ImageStreamTag, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (*imagev1.ImageStream, error) {
	rest.FillObjectMetaSystemFields(&tag.ObjectMeta)
	if err := rest.BeforeCreate(r.strategy, ctx, tag); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, tag.DeepCopy()); err != nil {
			return nil, err
		}
	}
	shown, _, _, err := r.write(ctx, tag.Name, options.DryRun, func(_ context.Context, stream *imagev1.ImageStream, spec *imagev1.TagReference) (*imagev1.TagReference, error) {
		if spec != nil {
			return nil, apierrors.NewAlreadyExists(r.resource, tag.Name)
		}
		return tag.Tag, nil
	})
	return shown, err
}

// Update is part of rest.Updater. Without a resourceVersion it makes the tag if it is not there,
// and the stream, too. A resourceVersion is the stream's.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	shown, tag, created, err := r.update(ctx, name, info, validateCreate, validateUpdate, options)
	if err != nil {
		return nil, false, err
	}
	out, err := r.withImage(ctx, shown, tag)
	return out, created, err
}

// update is Update, and returns the stream and the tag's name in it.
func (r *REST) update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, options *metav1.UpdateOptions) (shown *imagev1.ImageStream, tag string, created bool, err error) {
	return r.write(ctx, name, options.DryRun, func(ctx context.Context, stream *imagev1.ImageStream, spec *imagev1.TagReference) (*imagev1.TagReference, error) {
		old, there, err := r.before(ctx, stream, name)
		if err != nil {
			return nil, err
		}
		obj, err := info.UpdatedObject(ctx, old)
		if err != nil {
			return nil, err
		}
		tag, ok := obj.(*imagev1.ImageStreamTag)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageStreamTag: %T", obj))
		}
		if p := info.Preconditions(); p != nil && p.UID != nil && *p.UID != stream.UID {
			return nil, apierrors.NewConflict(r.resource, name, fmt.Errorf("the precondition's UID is %s but the stream's is %q", *p.UID, stream.UID))
		}
		switch given := tag.ResourceVersion; {
		case given != "" && stream.ResourceVersion == "":
			return nil, r.noTag(name)
		case given != "" && given != stream.ResourceVersion:
			return nil, apierrors.NewConflict(r.resource, name, fmt.Errorf("its stream has been modified, to resourceVersion %s: get the tag again and apply your changes to that", stream.ResourceVersion))
		}
		if !there {
			rest.WipeObjectMetaSystemFields(&tag.ObjectMeta)
			rest.FillObjectMetaSystemFields(&tag.ObjectMeta)
			if err := rest.BeforeCreate(r.strategy, ctx, tag); err != nil {
				return nil, err
			}
			if validateCreate != nil {
				err = validateCreate(ctx, tag.DeepCopy())
			}
			return tag.Tag, err
		}
		tag.ResourceVersion = old.ResourceVersion
		if err := rest.BeforeUpdate(r.strategy, ctx, tag, old); err != nil {
			return nil, err
		}
		if validateUpdate != nil {
			if err := validateUpdate(ctx, tag.DeepCopy(), old.DeepCopy()); err != nil {
				return nil, err
			}
		}
		return tag.Tag, nil
	})
}

// before returns the tag as it is in a stream, which may not exist yet; there is false if the
// stream has no such tag.
func (r *REST) before(ctx context.Context, stream *imagev1.ImageStream, name string) (tag *imagev1.ImageStreamTag, there bool, err error) {
	_, tagName, err := splitStreamTag(name)
	if err != nil {
		return nil, false, err
	}
	shown, err := r.shown.Named(ctx, stream, tagName)
	if err != nil {
		return nil, false, err
	}
	history := imagestream.HistoryOf(shown, tagName)
	if imagestream.SpecTag(stream, tagName) == nil && !imagestream.Leads(history) {
		// Without a UID the object does not exist, so most patches are answered 404.
		return &imagev1.ImageStreamTag{}, false, nil
	}
	return streamTag(shown, tagName, history), true, nil
}

// write has change give the spec entry of a tag in a stream, and returns the stream after that.
// change gets the stream, without a resourceVersion if it is new, and the entry from before, nil
// for none. It is called again when another write was faster. created reports whether there was no
// entry.
func (r *REST) write(ctx context.Context, name string, dryRun []string, change func(context.Context, *imagev1.ImageStream, *imagev1.TagReference) (*imagev1.TagReference, error)) (shown *imagev1.ImageStream, tag string, created bool, err error) {
	streamName, tagName, err := splitStreamTag(name)
	if err != nil {
		return nil, "", false, err
	}
	transform := func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		if stream.Name == "" {
			stream.Namespace, stream.Name = genericapirequest.NamespaceValue(ctx), streamName
		}
		at := slices.IndexFunc(stream.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == tagName })
		created = at < 0
		if created {
			spec, err := change(ctx, stream, nil)
			if err != nil {
				return nil, err
			}
			stream.Spec.Tags = append(stream.Spec.Tags, *spec)
			return stream, nil
		}
		spec, err := change(ctx, stream, &stream.Spec.Tags[at])
		if err != nil {
			return nil, err
		}
		stream.Spec.Tags[at] = *spec
		return stream, nil
	}
	obj, _, err := r.shown.Streams.Update(ctx, streamName, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{DryRun: dryRun})
	if err != nil {
		return nil, "", false, err
	}
	shown, err = r.shown.Named(ctx, obj.(*imagev1.ImageStream), tagName)
	return shown, tagName, created, err
}

// Delete is part of rest.GracefulDeleter. It removes a tag from its stream, with its history. The
// record of the registry's tag is kept elsewhere, and stays. But a tag that the stream has only
// from its repository goes with its ImageTag, if the user may delete that in the namespace of
// ImageTags.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	streamName, tagName, err := splitStreamTag(name)
	if err != nil {
		return nil, false, err
	}
	options = cmp.Or(options, &metav1.DeleteOptions{})
	done := &metav1.Status{Status: metav1.StatusSuccess}
	var ofRepository *imagev1.ImageTag
	said := false // by the stream itself
	transform := func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		stored := old.(*imagev1.ImageStream)
		ofRepository, said = nil, imagestream.SpecTag(stored, tagName) != nil || imagestream.HistoryOf(stored, tagName) != nil
		tag, there, err := r.before(ctx, stored, name)
		if err != nil {
			return nil, err
		}
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != stored.UID || p.ResourceVersion != nil && *p.ResourceVersion != stored.ResourceVersion) {
			return nil, apierrors.NewConflict(imagev1.Resource("imagestreamtags"), name, fmt.Errorf("the preconditions do not match its stream, with UID %s and resourceVersion %s", stored.UID, stored.ResourceVersion))
		}
		if validate != nil && there {
			if err := validate(ctx, tag); err != nil {
				return nil, err
			}
		}
		if imagestream.IsGuarded(tag.Tag) { // a new tag of the name would have no guard
			return nil, r.undeletable(stored, tagName, fmt.Sprintf("the tag moves only to what a policy verifies: take the annotation %s off it in the stream first", imagestream.PromotionAnnotation))
		}
		if _, own := r.shown.Own(stored); own || !said {
			if ofRepository, err = r.ofRepository(ctx, stored, tagName); err == nil && ofRepository == nil && !said {
				err = r.noTag(name)
			}
			if err != nil {
				return nil, err
			}
		}
		return r.without(ctx, stored, tagName)
	}
	_, _, err = r.forget.Update(ctx, streamName, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: options.DryRun})
	if apierrors.IsNotFound(err) {
		return nil, false, r.noTag(name)
	}
	if err != nil || ofRepository == nil {
		return done, err == nil, err
	}
	err = r.shown.ForgetTag(ctx, ofRepository, options.DryRun)
	switch {
	case apierrors.IsNotFound(err) && said:
		err = nil
	case apierrors.IsNotFound(err):
		return nil, false, r.noTag(name)
	}
	return done, err == nil, err
}

// without returns a stream without a tag and its history. The tags that follow it keep what they
// lead to.
func (r *REST) without(ctx context.Context, stored *imagev1.ImageStream, tag string) (*imagev1.ImageStream, error) {
	var followers []string
	for name, source := range imagestream.SourcesOf(stored) {
		if source == tag && name != tag {
			followers = append(followers, name)
		}
	}
	shown, err := r.shown.Named(ctx, stored, followers...)
	if err != nil {
		return nil, err
	}
	stream := stored.DeepCopy()
	for _, name := range followers {
		imagestream.KeepHistory(stream, shown, name)
	}
	stream.Spec.Tags = slices.DeleteFunc(stream.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == tag })
	stream.Status.Tags = slices.DeleteFunc(stream.Status.Tags, func(t imagev1.NamedTagEventList) bool { return t.Tag == tag })
	return stream, nil
}

// ofRepository returns the ImageTag behind a tag that a stream shows for its repository, or nil. It
// refuses a user who may not delete the ImageTag.
func (r *REST) ofRepository(ctx context.Context, stream *imagev1.ImageStream, name string) (*imagev1.ImageTag, error) {
	repository, err := reference.Parse(stream.Spec.DockerImageRepository)
	if err != nil {
		return nil, nil
	}
	tag, err := r.shown.Tag(ctx, repository.WithTag(name))
	if err != nil || tag == nil {
		return nil, err
	}
	reason, may := "", false
	if _, own := r.shown.Own(stream); own {
		return tag, nil // of a push to this stream
	}
	if stream.Namespace == tags.Namespace {
		reason, may = r.shown.May(ctx, authorizer.AttributesRecord{Verb: "delete", Namespace: tag.Namespace, Resource: "imagetags", Name: tag.Name})
	}
	if why := imagetag.WhyNotAccept(ctx, r.shown.Authorizer, tag.Name); may && why != "" { // see MayForget
		reason, may = why, false
	}
	if may {
		return tag, nil
	}
	return nil, r.undeletable(stream, name, fmt.Sprintf("the stream has this tag of its repository: delete it in the registry, or have the imagetag %s of namespace %s deleted %s", tag.Name, tag.Namespace, reason))
}

// undeletable refuses to delete a tag of a stream. The error is not 403: after a 403, oc tag -d
// looks for the tag in the spec, and removes it there or reports that there is none.
func (r *REST) undeletable(stream *imagev1.ImageStream, tag, why string) error {
	kind := "ImageStreamTag"
	if r.resource == imagev1.Resource("imagetags") {
		kind = "ImageTag"
	}
	return apierrors.NewInvalid(imagev1.GroupVersion.WithKind(kind).GroupKind(), stream.Name+":"+tag, field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"), why)})
}

// streamTagStrategy prepares and validates an ImageStreamTag. Users write what it follows and its
// annotations; the rest is the stream's.
type streamTagStrategy struct{ strategy.Namespaced }

var (
	_ rest.RESTCreateStrategy = streamTagStrategy{}
	_ rest.RESTUpdateStrategy = streamTagStrategy{}
)

// AllowCreateOnUpdate is true.
func (streamTagStrategy) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate is true.
func (streamTagStrategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (streamTagStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	tag := obj.(*imagev1.ImageStreamTag)
	tag.Image, tag.Conditions, tag.Generation, tag.LookupPolicy = imagev1.Image{}, nil, 0, imagev1.ImageLookupPolicy{}
	if tag.Tag == nil {
		return
	}
	_, tag.Tag.Name, _ = strings.Cut(tag.Name, ":")
	if tag.Tag.Annotations == nil {
		tag.Tag.Annotations = tag.Annotations
	}
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy. It lets users read a tag, change its
// annotations and write it back, without changing the annotations of the spec as well.
func (streamTagStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	tag, before := obj.(*imagev1.ImageStreamTag), old.(*imagev1.ImageStreamTag)
	tag.Image, tag.Conditions, tag.Generation, tag.LookupPolicy = before.Image, before.Conditions, before.Generation, before.LookupPolicy
	if len(tag.Labels) == 0 {
		tag.Labels = before.Labels
	}
	if tag.Tag == nil {
		tag.Tag = before.Tag.DeepCopy()
	}
	if tag.Tag != nil {
		_, tag.Tag.Name, _ = strings.Cut(tag.Name, ":")
		if imagestream.IsGuarded(before.Tag) {
			// oc tag sends no annotations, and must not take the guard off
			metav1.SetMetaDataAnnotation(&tag.ObjectMeta, imagestream.PromotionAnnotation, imagestream.PromotionVerified)
		}
		tag.Tag.Annotations = tag.Annotations
	}
}

// Validate reports what is wrong with a new tag. Where it leads is looked up when its stream is
// written.
func (streamTagStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	tag := obj.(*imagev1.ImageStreamTag)
	errs := validation.ValidateObjectMeta(&tag.ObjectMeta, true, imagetag.ValidateName, field.NewPath("metadata"))
	if len(tag.Labels) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "labels"), "they are those of the stream: change it"))
	}
	return append(errs, validateStreamTagSpec(tag)...)
}

// ValidateUpdate reports what is wrong with a changed tag.
func (streamTagStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	tag, before := obj.(*imagev1.ImageStreamTag), old.(*imagev1.ImageStreamTag)
	errs := validation.ValidateObjectMetaUpdate(&tag.ObjectMeta, &before.ObjectMeta, field.NewPath("metadata"))
	if !apiequality.Semantic.DeepEqual(tag.Labels, before.Labels) {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "labels"), "they are those of the stream: change it"))
	}
	return append(errs, validateStreamTagSpec(tag)...)
}

func validateStreamTagSpec(tag *imagev1.ImageStreamTag) (errs field.ErrorList) {
	at := field.NewPath("tag")
	if tag.Tag == nil {
		return field.ErrorList{field.Required(at, "what the tag follows, because the stream's spec does not say it")}
	}
	if !apiequality.Semantic.DeepEqual(tag.Tag.Annotations, tag.Annotations) {
		errs = append(errs, field.Invalid(at.Child("annotations"), "<map>", "must be those of metadata, or none"))
	}
	return append(errs, imagestream.ValidateSpecTag(tag.Tag, at)...)
}
