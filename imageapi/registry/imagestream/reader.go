package imagestream

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
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Options of a Reader.
type Options struct {
	Images    *imageregistry.Stored
	Answers   imageregistry.Answers
	Tags      *genericregistry.Store // of ImageTags
	TagStatus *imagetag.StatusREST
	// Authorizer decides what a writer may follow and delete; nil allows everything.
	Authorizer authorizer.UnconditionalAuthorizer
	// Registry is the host[:port] of the registry that has this server for its image API; "" if
	// there is none.
	Registry string
	// PublicRegistry is the host[:port] of Registry for clients elsewhere; "" is none.
	PublicRegistry string
	// Imports is true if the server imports the images that tags follow (TagImports).
	Imports bool
	Pushes  Pushes  // gets the pushes to Registry; nil if they are not imported
	Guarded Guarded // nil for none
}

// Reader puts streams together from what is stored of them and from the ImageTags that they follow.
type Reader struct {
	Options
	Streams *genericregistry.Store // as they are stored
}

// Pushes gets what the own registry has stored.
type Pushes interface {
	// Pushed queues a search of the registry for signatures and attestations, and does not wait for
	// it. Its error is the answer to the registry, so that the push is repeated.
	Pushed(ctx context.Context, ref reference.Reference) error
}

// Guarded gets what becomes of guarded tags.
type Guarded interface {
	// Guarded gets what has become of a guarded tag of a stream that was written: it waits, or it
	// has moved.
	Guarded(stream *imagev1.ImageStream, waits bool, message string)
}

// get returns a stream of a namespace.
func (r *Reader) get(ctx context.Context, namespace, name string) (*imagev1.ImageStream, error) {
	obj, err := r.Streams.Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return r.Show(ctx, obj.(*imagev1.ImageStream))
}

// object completes obj with where its tags lead, if it is a stream or a list of streams.
func (r *Reader) object(ctx context.Context, obj runtime.Object, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	switch obj := obj.(type) {
	case *imagev1.ImageStream:
		return r.Show(ctx, obj)
	case *imagev1.ImageStreamList:
		for i := range obj.Items {
			shown, err := r.Show(ctx, &obj.Items[i])
			if err != nil {
				return nil, err
			}
			obj.Items[i] = *shown
		}
	}
	return obj, nil
}

// Show returns a stream as its users see it; stored is not changed.
func (r *Reader) Show(ctx context.Context, stored *imagev1.ImageStream) (*imagev1.ImageStream, error) {
	if ctx.Value(metadataOnly{}) != nil {
		return stored, nil
	}
	return r.show(ctx, stored, true)
}

// Everything returns a stream as Show does, but its guarded tags have what they wait for, too:
// images that belong to the stream.
func (r *Reader) Everything(ctx context.Context, stored *imagev1.ImageStream) (*imagev1.ImageStream, error) {
	return r.show(ctx, stored, false)
}

func (r *Reader) show(ctx context.Context, stored *imagev1.ImageStream, guarded bool) (*imagev1.ImageStream, error) {
	var known []imagev1.ImageTag
	if stored.Spec.DockerImageRepository != "" {
		var err error
		if known, err = r.tagsOf(ctx, stored.Spec.DockerImageRepository); err != nil {
			return nil, err
		}
	}
	return r.compose(ctx, stored, known, guarded)
}

// Named returns a stream that has only the named tags and the tags that they follow. It reads no
// others.
func (r *Reader) Named(ctx context.Context, stored *imagev1.ImageStream, names ...string) (*imagev1.ImageStream, error) {
	return r.named(ctx, stored, true, names...)
}

func (r *Reader) named(ctx context.Context, stored *imagev1.ImageStream, guarded bool, names ...string) (*imagev1.ImageStream, error) {
	sources, wanted, own := SourcesOf(stored), map[string]bool{}, map[string]bool{}
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
			own[tag.Name] = tag.From != nil && !r.TakesPushes(stored, tag)
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
			tag, err := r.Tag(ctx, repository.WithTag(name))
			if err != nil {
				return nil, err
			}
			if tag != nil {
				known = append(known, *tag)
			}
		}
	}
	return r.compose(ctx, &part, known, guarded)
}

// compose returns a stream with where its tags lead; known are the ImageTags of its repository.
// Unless guarded, guarded tags lead to where they would if they were not.
func (r *Reader) compose(ctx context.Context, stored *imagev1.ImageStream, known []imagev1.ImageTag, guarded bool) (*imagev1.ImageStream, error) {
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
	own := map[string]*imagev1.TagReference{} // the tags that have something to follow in spec
	for i := range stored.Spec.Tags {
		if tag := &stored.Spec.Tags[i]; tag.From != nil {
			own[tag.Name] = tag
		}
	}
	for i := range known {
		switch name := TagOf(&known[i]); {
		case own[name] == nil:
			follow(name, &known[i])
		case known[i].Status != nil && r.TakesPushes(stored, own[name]):
			history := histories[name]
			history.Tag, history.Items = name, tags.Pushed(history.Items, known[i].Status.Items)
			histories[name] = history
		}
	}
	for i := range stored.Spec.Tags {
		if ref, ok := followed(&stored.Spec.Tags[i]); ok {
			tag, err := r.Tag(ctx, ref)
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
	hold := func(*imagev1.TagReference) {}
	if guarded {
		hold = func(tag *imagev1.TagReference) {
			if IsGuarded(tag) {
				histories[tag.Name] = held(tag.Name, HistoryOf(stored, tag.Name), histories[tag.Name])
			}
		}
	}
	followTags(stored, histories, hold)

	stream := *stored
	stream.Status = imagev1.ImageStreamStatus{DockerImageRepository: r.registryRepository(stored)}
	if r.PublicRegistry != "" && stream.Status.DockerImageRepository != "" {
		stream.Status.PublicDockerImageRepository = r.PublicRegistry + "/" + stored.Namespace + "/" + stored.Name
	}
	for _, history := range histories {
		if len(history.Items)+len(history.Conditions) > 0 {
			stream.Status.Tags = append(stream.Status.Tags, history)
		}
	}
	slices.SortFunc(stream.Status.Tags, func(a, b imagev1.NamedTagEventList) int { return strings.Compare(a.Tag, b.Tag) })
	return &stream, nil
}

// TagOf returns the tag of an ImageTag.
func TagOf(tag *imagev1.ImageTag) string {
	_, name, _ := strings.Cut(tag.Name, ":")
	return name
}

// SourcesOf returns the tags of a stream that follow other tags of it, each with the tag that it
// follows.
func SourcesOf(stream *imagev1.ImageStream) map[string]string {
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

// followTags has the tags of a stream that follow other tags of it lead to where those lead. hold
// is called with each tag of the spec before others follow it.
func followTags(stream *imagev1.ImageStream, histories map[string]imagev1.NamedTagEventList, hold func(*imagev1.TagReference)) {
	sources := SourcesOf(stream)
	done := map[string]bool{}
	var visit func(tag string)
	visit = func(tag string) {
		spec := SpecTag(stream, tag)
		if spec == nil || done[tag] {
			return
		}
		done[tag] = true // before the call, too, so that a circle ends
		if source, follows := sources[tag]; follows {
			visit(source)
			if history := histories[tag]; len(histories[source].Items) > 0 {
				history.Tag, history.Items = tag, tags.Follow(history.Items, histories[source].Items)
				histories[tag] = history
			}
		}
		hold(spec)
	}
	for i := range stream.Spec.Tags {
		visit(stream.Spec.Tags[i].Name)
	}
}

// TakesPushes reports whether pushes to a stream move a tag of it that has something to follow in
// spec, too. They do if what the tag leads to was looked up when the spec was written: it does not
// move by itself, so the last word counts. Else a push would show until what the tag follows moves.
func (r *Reader) TakesPushes(stream *imagev1.ImageStream, tag *imagev1.TagReference) bool {
	if _, own := r.Own(stream); !own || tag.From == nil || tag.Reference {
		return false
	}
	switch tag.From.Kind {
	case "DockerImage":
		ref, err := reference.Parse(tag.From.Name)
		return err == nil && ref.Digest != ""
	case "ImageStreamTag":
		_, ofStream := SourcesOf(stream)[tag.Name]
		return !ofStream
	}
	return true
}

// covered returns the images to which tags of the followed repository lead, and which the stream
// does not show under these tags: its spec lets the tags follow something else, or guards them.
func (r *Reader) covered(ctx context.Context, stream *imagev1.ImageStream) (images []string, err error) {
	repository, err := reference.Parse(stream.Spec.DockerImageRepository)
	if err != nil {
		return nil, nil
	}
	for i := range stream.Spec.Tags {
		if stream.Spec.Tags[i].From == nil && !IsGuarded(&stream.Spec.Tags[i]) {
			continue
		}
		tag, err := r.Tag(ctx, repository.WithTag(stream.Spec.Tags[i].Name))
		if err != nil {
			return nil, err
		}
		if image, _ := tags.Now(tag); image != "" {
			images = append(images, image)
		}
	}
	return images, nil
}

// splitFrom splits the name that a tag follows: "<stream><sep><rest>", or "<rest>" in the stream
// itself.
func splitFrom(stream, name, sep string) (of, rest string) {
	if of, rest, ok := strings.Cut(name, sep); ok {
		return of, rest
	}
	return stream, name
}

// followed returns the reference in a registry that a tag of a stream follows, whether or not it is
// imported yet.
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

// Tag returns what is known of a tag in a registry; nil for nothing.
func (r *Reader) Tag(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error) {
	obj, err := r.Tags.Get(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTag), nil
}

// tagsOf returns the known tags of a repository.
func (r *Reader) tagsOf(ctx context.Context, repository string) ([]imagev1.ImageTag, error) {
	ref, err := reference.Parse(repository)
	if err != nil {
		return nil, nil // it was stored without validation
	}
	field := fields.OneTermEqualSelector(selectors.TagRepository, ref.Name())
	obj, err := r.Tags.ListPredicate(genericapirequest.WithNamespace(ctx, tags.Namespace), imagetag.Predicate(labels.Everything(), field), nil)
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTagList).Items, nil
}

// event completes the stream of an event with where its tags lead.
func (r *Reader) event(ctx context.Context, event watch.Event) watch.Event {
	if event.Type == watch.Bookmark || event.Type == watch.Error {
		return event
	}
	if shared, ok := event.Object.(runtime.CacheableObject); ok {
		event.Object = shared.GetObject()
	}
	if stream, ok := event.Object.(*imagev1.ImageStream); ok {
		shown, err := r.Show(ctx, stream)
		if err != nil {
			return watch.Event{Type: watch.Error, Object: StatusOf(err)}
		}
		event.Object = shown
	}
	return event
}

func StatusOf(err error) *metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return &s
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
}

// Leads reports whether a tag with this history leads to an image now.
func Leads(history *imagev1.NamedTagEventList) bool {
	return history != nil && len(history.Items) > 0 && history.Items[0].Image != ""
}

// HistoryOf returns what a tag of a stream leads to and led to before; nil if nothing is known
// about that.
func HistoryOf(stream *imagev1.ImageStream, tag string) *imagev1.NamedTagEventList {
	for i := range stream.Status.Tags {
		if stream.Status.Tags[i].Tag == tag {
			return &stream.Status.Tags[i]
		}
	}
	return nil
}

func SpecTag(stream *imagev1.ImageStream, name string) *imagev1.TagReference {
	if stream == nil {
		return nil
	}
	for i := range stream.Spec.Tags {
		if stream.Spec.Tags[i].Name == name {
			return &stream.Spec.Tags[i]
		}
	}
	return nil
}

// withGeneration returns the history of a tag that follows a reference, with the generation of the
// spec; own is what the stream itself has of it. A failed import is shown until the registry is
// known to have the reference.
func withGeneration(own, shown imagev1.NamedTagEventList) imagev1.NamedTagEventList {
	generation := int64(0)
	if len(own.Items) > 0 { // then shown.Items are a copy, see tags.Follow
		generation = own.Items[0].Generation
		for i := range shown.Items {
			if shown.Items[i].Image == own.Items[0].Image && shown.Items[i].Created.Equal(&own.Items[0].Created) {
				break
			}
			shown.Items[i].Generation = generation
		}
	}
	failed := tags.Failed(&own)
	if failed != nil {
		generation = failed.Generation
	}
	switch {
	case len(shown.Conditions) > 0:
		shown.Conditions = slices.Clone(shown.Conditions)
		for i := range shown.Conditions {
			shown.Conditions[i].Generation = generation
		}
	case failed != nil && (len(shown.Items) == 0 || shown.Items[0].Image == ""):
		shown.Conditions = own.Conditions
	}
	return shown
}
