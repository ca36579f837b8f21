package imagestreamtag

import (
	"cmp"
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// maxListedTags is the most tags of streams that a list of ImageTags may have, since each has its
// history.
const maxListedTags = 500

// ImageTagsREST serves ImageTags. In the namespace of tags it serves the stored ImageTags of
// registries. In any other namespace it makes them from the spec and status of the namespace's
// streams, as OpenShift does. Lists of all namespaces, and watches, have only the stored ones.
type ImageTagsREST struct {
	*RegistryTags
	streams *REST
}

// RegistryTags are the stored ImageTags of registries.
type RegistryTags struct {
	*genericregistry.Store
	checks Checks // nil for none
}

// NewRegistryTags returns the tags in a store. checks completes what is read of them; it may be
// nil.
func NewRegistryTags(stored *genericregistry.Store, checks Checks) *RegistryTags {
	return &RegistryTags{stored, checks}
}

// Get is part of rest.Getter.
func (r *RegistryTags) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	if err == nil && r.checks != nil {
		r.checks.Complete(ctx, []*imagev1.ImageTag{obj.(*imagev1.ImageTag)})
	}
	return obj, err
}

// List is part of rest.Lister.
func (r *RegistryTags) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := r.Store.List(ctx, options)
	if err != nil || r.checks == nil {
		return obj, err
	}
	list := obj.(*imagev1.ImageTagList)
	all := make([]*imagev1.ImageTag, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	r.checks.Complete(ctx, all)
	return list, nil
}

// Checks completes ImageTags with what was confirmed without a change: see [tags.CheckedAt].
type Checks interface {
	Complete(ctx context.Context, all []*imagev1.ImageTag)
}

var (
	_ rest.StandardStorage      = &ImageTagsREST{}
	_ rest.SingularNameProvider = &ImageTagsREST{}
)

// NewImageTagsREST returns the storage of ImageTags.
func NewImageTagsREST(stored *RegistryTags, streams *REST) *ImageTagsREST {
	ofStreams := *streams
	ofStreams.resource = stored.DefaultQualifiedResource
	return &ImageTagsREST{stored, &ofStreams}
}

// ofStreams reports whether a request is for the tags of a namespace's streams.
func ofStreams(ctx context.Context) bool {
	namespace := genericapirequest.NamespaceValue(ctx)
	return namespace != "" && namespace != tags.Namespace
}

// Get is part of rest.Getter. A tag of a stream has its image, without manifest and config.
func (r *ImageTagsREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if !ofStreams(ctx) {
		return r.RegistryTags.Get(ctx, name, options)
	}
	stream, tag, err := r.streams.stream(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if imagestream.HistoryOf(stream, tag) == nil && imagestream.SpecTag(stream, tag) == nil {
		return nil, r.streams.noTag(name)
	}
	return r.shows(ctx, stream, tag)
}

// shows returns a tag of a stream with its image.
func (r *ImageTagsREST) shows(ctx context.Context, stream *imagev1.ImageStream, tag string) (*imagev1.ImageTag, error) {
	history := imagestream.HistoryOf(stream, tag)
	out := imageTag(stream, tag, history)
	if !imagestream.Leads(history) {
		return out, nil
	}
	var err error
	if out.Image, err = r.streams.shown.Image(ctx, history.Items[0].Image, history.Items[0].DockerImageReference); out.Image != nil {
		out.Image.DockerImageReference = r.streams.shown.PulledBy(stream, tag, &history.Items[0])
	}
	return out, err
}

// imageTag returns a tag of a stream as an ImageTag, without its image. history may be nil.
func imageTag(stream *imagev1.ImageStream, tag string, history *imagev1.NamedTagEventList) *imagev1.ImageTag {
	of := streamTag(stream, tag, history)
	out := &imagev1.ImageTag{ObjectMeta: of.ObjectMeta, Spec: of.Tag}
	if history != nil && len(history.Items)+len(history.Conditions) > 0 {
		out.Status = history.DeepCopy()
	}
	return out
}

// List is part of rest.Lister. Tags of streams have no image.
func (r *ImageTagsREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if !ofStreams(ctx) {
		return r.RegistryTags.List(ctx, options)
	}
	options = cmp.Or(options, &internalversion.ListOptions{})
	l, ctx, err := newStreamTagLister(ctx, options, maxListedTags)
	if err != nil {
		return nil, err
	}
	l.pending = true
	selected := imagetag.Predicate(labels.Everything(), l.fields)
	l.selected = func(tag listedTag) bool {
		is, err := selected.Matches(imageTag(tag.stream, tag.history.Tag, tag.history))
		return is && err == nil
	}
	out := &imagev1.ImageTagList{Items: []imagev1.ImageTag{}}
	err = l.list(ctx, r.streams, options, &out.ListMeta, func(stream *imagev1.ImageStream, history *imagev1.NamedTagEventList) {
		out.Items = append(out.Items, *imageTag(stream, history.Tag, history))
	})
	return out, err
}

// Watch is part of rest.Watcher.
func (r *ImageTagsREST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if ofStreams(ctx) {
		return nil, apierrors.NewMethodNotSupported(r.streams.resource, "watch")
	}
	return r.Store.Watch(ctx, options)
}

// DeleteCollection is part of rest.CollectionDeleter.
func (r *ImageTagsREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	if ofStreams(ctx) {
		return nil, apierrors.NewMethodNotSupported(r.streams.resource, "deletecollection")
	}
	return r.Store.DeleteCollection(ctx, imagetag.MayForget(r.streams.shown.Authorizer, validate), options, list)
}

// Delete is part of rest.GracefulDeleter.
func (r *ImageTagsREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if ofStreams(ctx) {
		return r.streams.Delete(ctx, name, validate, options)
	}
	return r.Store.Delete(ctx, name, imagetag.MayForget(r.streams.shown.Authorizer, validate), options)
}

// Create is part of rest.Creater. For a tag of a stream it adds the tag to the stream's spec, and
// makes the stream if there is none.
func (r *ImageTagsREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if !ofStreams(ctx) {
		return r.Store.Create(ctx, obj, validate, options)
	}
	tag, err := asStreamTag(obj)
	if err != nil {
		return nil, err
	}
	stream, err := r.streams.create(ctx, tag, func(ctx context.Context, obj runtime.Object) error {
		if validate == nil {
			return nil
		}
		return validate(ctx, asImageTag(obj))
	}, options)
	if err != nil {
		return nil, err
	}
	return r.shows(ctx, stream, tag.Tag.Name)
}

// Update is part of rest.Updater. For a tag of a stream it does what an update of an ImageStreamTag
// does.
func (r *ImageTagsREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if !ofStreams(ctx) {
		return r.Store.Update(ctx, name, info, validateCreate, validateUpdate, force, options)
	}
	stream, tag, created, err := r.streams.update(ctx, name, updatedImageTag{info}, func(ctx context.Context, obj runtime.Object) error {
		if validateCreate == nil {
			return nil
		}
		return validateCreate(ctx, asImageTag(obj))
	}, func(ctx context.Context, obj, old runtime.Object) error {
		if validateUpdate == nil {
			return nil
		}
		return validateUpdate(ctx, asImageTag(obj), asImageTag(old))
	}, options)
	if err != nil {
		return nil, false, err
	}
	out, err := r.shows(ctx, stream, tag)
	return out, created, err
}

// updatedImageTag converts the ImageTag of an update for the storage of ImageStreamTags.
type updatedImageTag struct{ rest.UpdatedObjectInfo }

// UpdatedObject is part of rest.UpdatedObjectInfo.
func (u updatedImageTag) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := u.UpdatedObjectInfo.UpdatedObject(ctx, asImageTag(old))
	if err != nil {
		return nil, err
	}
	return asStreamTag(obj)
}

// asStreamTag returns the part of an ImageTag that a user writes, as an ImageStreamTag.
func asStreamTag(obj runtime.Object) (*imagev1.ImageStreamTag, error) {
	tag, ok := obj.(*imagev1.ImageTag)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageTag: %T", obj))
	}
	return &imagev1.ImageStreamTag{ObjectMeta: tag.ObjectMeta, Tag: tag.Spec}, nil
}

// asImageTag is the opposite of asStreamTag.
func asImageTag(obj runtime.Object) *imagev1.ImageTag {
	tag := obj.(*imagev1.ImageStreamTag)
	return &imagev1.ImageTag{ObjectMeta: tag.ObjectMeta, Spec: tag.Tag}
}
