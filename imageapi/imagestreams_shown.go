package imageapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/relay"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// streamReader puts streams together from what is stored of them and from the ImageTags that they follow.
type streamReader struct {
	images     *imagesREST
	tags       *genericregistry.Store
	streams    *genericregistry.Store // set once the store is made
	authorizer Authorizer
	registry   string // Options.Registry
	// publicRegistry is Options.PublicRegistry.
	publicRegistry string
	imports        bool // tags have what they follow imported (TagImports)
	// pushed is Options.Pushed; nil if nobody is told.
	pushed func(ctx context.Context, ref reference.Reference) error
}

// get returns a stream of a namespace.
func (r *streamReader) get(ctx context.Context, namespace, name string) (*imagev1.ImageStream, error) {
	obj, err := r.streams.Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return r.show(ctx, obj.(*imagev1.ImageStream))
}

// object completes obj with where its tags lead, if it is a stream or a list of streams.
func (r *streamReader) object(ctx context.Context, obj runtime.Object, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	switch obj := obj.(type) {
	case *imagev1.ImageStream:
		return r.show(ctx, obj)
	case *imagev1.ImageStreamList:
		for i := range obj.Items {
			shown, err := r.show(ctx, &obj.Items[i])
			if err != nil {
				return nil, err
			}
			obj.Items[i] = *shown
		}
	}
	return obj, nil
}

// show returns a stream as its users see it; stored is not changed.
func (r *streamReader) show(ctx context.Context, stored *imagev1.ImageStream) (*imagev1.ImageStream, error) {
	if ctx.Value(metadataOnly{}) != nil {
		return stored, nil
	}
	var known []imagev1.ImageTag
	if stored.Spec.DockerImageRepository != "" {
		var err error
		if known, err = r.tagsOf(ctx, stored.Spec.DockerImageRepository); err != nil {
			return nil, err
		}
	}
	return r.compose(ctx, stored, known)
}

// named returns a stream that has only the named tags and the tags that they follow. It reads no others.
func (r *streamReader) named(ctx context.Context, stored *imagev1.ImageStream, names ...string) (*imagev1.ImageStream, error) {
	sources, wanted, own := sourcesOf(stored), map[string]bool{}, map[string]bool{}
	for _, name := range names {
		for more := true; more && !wanted[name]; name, more = sources[name] {
			wanted[name] = true
		}
	}
	part := *stored
	part.Spec.Tags, part.Status.Tags = nil, nil
	for i := range stored.Spec.Tags {
		if tag := &stored.Spec.Tags[i]; wanted[tag.Name] {
			part.Spec.Tags = append(part.Spec.Tags, *tag)
			own[tag.Name] = tag.From != nil
		}
	}
	for i := range stored.Status.Tags {
		if wanted[stored.Status.Tags[i].Tag] {
			part.Status.Tags = append(part.Status.Tags, stored.Status.Tags[i])
		}
	}
	var known []imagev1.ImageTag
	if repository, err := reference.Parse(stored.Spec.DockerImageRepository); err == nil {
		for name := range wanted {
			if own[name] || !reference.IsTag(name) {
				continue
			}
			tag, err := r.tag(ctx, repository.WithTag(name))
			if err != nil {
				return nil, err
			}
			if tag != nil {
				known = append(known, *tag)
			}
		}
	}
	return r.compose(ctx, &part, known)
}

// compose returns a stream with where its tags lead; known are the ImageTags of its repository.
func (r *streamReader) compose(ctx context.Context, stored *imagev1.ImageStream, known []imagev1.ImageTag) (*imagev1.ImageStream, error) {
	histories := map[string]imagev1.NamedTagEventList{}
	for _, own := range stored.Status.Tags {
		histories[own.Tag] = own
	}
	follow := func(name string, tag *imagev1.ImageTag) {
		if tag.Status == nil {
			return
		}
		history := histories[name]
		history.Tag, history.Items = name, tags.Follow(history.Items, tag.Status.Items)
		if len(tag.Status.Items)+len(tag.Status.Conditions) > 0 {
			history.Conditions = tag.Status.Conditions
		}
		histories[name] = history
	}
	own := map[string]bool{} // the tags that have something to follow in spec
	for i := range stored.Spec.Tags {
		own[stored.Spec.Tags[i].Name] = stored.Spec.Tags[i].From != nil
	}
	for i := range known {
		if name := tagOf(&known[i]); !own[name] {
			follow(name, &known[i])
		}
	}
	for i := range stored.Spec.Tags {
		if ref, ok := followed(&stored.Spec.Tags[i]); ok {
			tag, err := r.tag(ctx, ref)
			if err != nil {
				return nil, err
			}
			if tag != nil {
				name := stored.Spec.Tags[i].Name
				had := histories[name]
				follow(name, tag)
				histories[name] = withGeneration(had, histories[name])
			}
		}
	}
	followTags(stored, histories)

	stream := *stored
	stream.Status = imagev1.ImageStreamStatus{DockerImageRepository: stored.Spec.DockerImageRepository}
	if repository, follows := r.own(stored); follows && r.publicRegistry != "" {
		stream.Status.PublicDockerImageRepository = r.publicRegistry + "/" + repository.Repository
	}
	for _, history := range histories {
		if len(history.Items)+len(history.Conditions) > 0 {
			stream.Status.Tags = append(stream.Status.Tags, history)
		}
	}
	slices.SortFunc(stream.Status.Tags, func(a, b imagev1.NamedTagEventList) int { return strings.Compare(a.Tag, b.Tag) })
	return &stream, nil
}

// tagOf returns the tag of an ImageTag.
func tagOf(tag *imagev1.ImageTag) string {
	_, name, _ := strings.Cut(tag.Name, ":")
	return name
}

// sourcesOf returns the tags of a stream that follow other tags of it, each with the tag that it follows.
func sourcesOf(stream *imagev1.ImageStream) map[string]string {
	sources := map[string]string{}
	for i := range stream.Spec.Tags {
		from := stream.Spec.Tags[i].From
		if from == nil || from.Kind != "ImageStreamTag" || from.Namespace != "" && from.Namespace != stream.Namespace {
			continue
		}
		if name, tag := splitFrom(stream.Name, from.Name, ":"); name == stream.Name {
			sources[stream.Spec.Tags[i].Name] = tag
		}
	}
	return sources
}

// followTags has the tags of a stream that follow other tags of it lead to where those lead.
func followTags(stream *imagev1.ImageStream, histories map[string]imagev1.NamedTagEventList) {
	sources := sourcesOf(stream)
	done := map[string]bool{}
	var visit func(tag string)
	visit = func(tag string) {
		source, follows := sources[tag]
		if !follows || done[tag] {
			return
		}
		done[tag] = true // before the call, too, so that a circle ends
		visit(source)
		if history := histories[tag]; len(histories[source].Items) > 0 {
			history.Tag, history.Items = tag, tags.Follow(history.Items, histories[source].Items)
			histories[tag] = history
		}
	}
	for i := range stream.Spec.Tags {
		visit(stream.Spec.Tags[i].Name)
	}
}

// splitFrom splits the name that a tag follows: "<stream><sep><rest>", or "<rest>" in the stream itself.
func splitFrom(stream, name, sep string) (of, rest string) {
	if of, rest, ok := strings.Cut(name, sep); ok {
		return of, rest
	}
	return stream, name
}

// followed returns the reference in a registry that a tag of a stream follows, whether or not it is imported yet.
func followed(tag *imagev1.TagReference) (ref reference.Reference, ok bool) {
	if tag.From == nil || tag.From.Kind != "DockerImage" || tag.Reference {
		return reference.Reference{}, false
	}
	ref, err := reference.Parse(tag.From.Name)
	if err != nil || ref.Digest != "" {
		return reference.Reference{}, false
	}
	return ref.Pulled(), true
}

// tag returns what is known of a tag in a registry; nil for nothing.
func (r *streamReader) tag(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error) {
	obj, err := r.tags.Get(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTag), nil
}

// tagsOf returns the known tags of a repository.
func (r *streamReader) tagsOf(ctx context.Context, repository string) ([]imagev1.ImageTag, error) {
	ref, err := reference.Parse(repository)
	if err != nil {
		return nil, nil // stored by nobody that validates
	}
	field := fields.OneTermEqualSelector(selectors.TagRepository, ref.Name())
	obj, err := r.tags.ListPredicate(genericapirequest.WithNamespace(ctx, tags.Namespace), tagPredicate(labels.Everything(), field), nil)
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTagList).Items, nil
}

// watch completes the streams that a watch of stored reports.
func (r *streamReader) watch(ctx context.Context, stored watch.Interface) watch.Interface {
	return relay.New(stored, func(event watch.Event) watch.Event { return r.event(ctx, event) }, func() {})
}

// event completes the stream of an event with where its tags lead.
func (r *streamReader) event(ctx context.Context, event watch.Event) watch.Event {
	if event.Type == watch.Bookmark || event.Type == watch.Error {
		return event
	}
	if shared, ok := event.Object.(runtime.CacheableObject); ok {
		event.Object = shared.GetObject()
	}
	if stream, ok := event.Object.(*imagev1.ImageStream); ok {
		shown, err := r.show(ctx, stream)
		if err != nil {
			return watch.Event{Type: watch.Error, Object: statusOf(err)}
		}
		event.Object = shown
	}
	return event
}

func statusOf(err error) *metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return &s
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
}
