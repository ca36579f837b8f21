package imagestream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Strategy prepares and validates an ImageStream. Users write what it follows, and not where that
// leads.
type Strategy struct {
	strategy.Namespaced
	shown *Reader
}

// GetResetFields returns the fields of a user's object that are ignored.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategy.ResetFields("status")
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (s Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	stream := obj.(*imagev1.ImageStream)
	stream.Status, stream.Generation = imagev1.ImageStreamStatus{}, 1
	delete(stream.Annotations, tags.Moved)
	s.followOwn(stream)
	for i := range stream.Spec.Tags {
		generation := stream.Generation
		stream.Spec.Tags[i].Generation = &generation
	}
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy. A change of the spec raises the generation.
// So does a tag of generation 0 in the spec, with which OpenShift's clients request another import;
// any other generation of a tag is the server's.
func (s Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	stream, before := obj.(*imagev1.ImageStream), old.(*imagev1.ImageStream)
	stream.Status, stream.Generation = *before.Status.DeepCopy(), before.Generation
	keepAnnotation(&stream.ObjectMeta, &before.ObjectMeta, tags.Moved)
	s.followOwn(stream)
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if had := SpecTag(before, tag.Name); had != nil && (tag.Generation == nil || *tag.Generation != 0) {
			tag.Generation = had.Generation
		}
	}
	if apiequality.Semantic.DeepEqual(stream.Spec, before.Spec) {
		return
	}
	stream.Generation++
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if tag.Generation == nil || *tag.Generation == 0 || tagChanged(SpecTag(before, tag.Name), tag, stream.Namespace) {
			generation := stream.Generation
			tag.Generation = &generation
		}
	}
}

// followOwn has a stream follow its own repository if its spec names none and there is a registry
// of streams.
func (s Strategy) followOwn(stream *imagev1.ImageStream) {
	if stream.Spec.DockerImageRepository == "" {
		stream.Spec.DockerImageRepository = s.shown.registryRepository(stream)
	}
}

// keepAnnotation restores an annotation of an object, whatever its writer sends.
func keepAnnotation(m, before *metav1.ObjectMeta, key string) {
	if value, ok := before.Annotations[key]; ok {
		metav1.SetMetaDataAnnotation(m, key, value)
	} else {
		delete(m.Annotations, key)
	}
}

// tagChanged reports whether a tag follows something else than before, or wants another import.
func tagChanged(before, tag *imagev1.TagReference, namespace string) bool {
	from := func(t *imagev1.TagReference) corev1.ObjectReference {
		if t == nil || t.From == nil {
			return corev1.ObjectReference{}
		}
		f := corev1.ObjectReference{Kind: t.From.Kind, Namespace: t.From.Namespace, Name: t.From.Name}
		f.Namespace = cmp.Or(f.Namespace, namespace)
		return f
	}
	return before == nil || from(before) != from(tag) || before.Reference != tag.Reference || before.ImportPolicy.ImportMode != tag.ImportPolicy.ImportMode
}

// Validate reports what is wrong with a new stream. It also records where the tags lead that follow
// no registry: to find that, it looks up what they follow, which may fail.
func (s Strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	stream := obj.(*imagev1.ImageStream)
	errs := validation.ValidateObjectMeta(&stream.ObjectMeta, true, ValidateName, field.NewPath("metadata"))
	if n := len(stream.Namespace) + 1 + len(stream.Name); n > maxRepository {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), stream.Name, fmt.Sprintf("namespace and name must not be longer than %d characters together", maxRepository-1)))
	}
	if errs = append(errs, validateStreamSpec(stream)...); len(errs) > 0 {
		return errs
	}
	return s.recordFollowed(ctx, stream, nil)
}

// ValidateUpdate reports what is wrong with a changed stream, and does the rest of what Validate
// does.
func (s Strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	stream, before := obj.(*imagev1.ImageStream), old.(*imagev1.ImageStream)
	errs := validation.ValidateObjectMetaUpdate(&stream.ObjectMeta, &before.ObjectMeta, field.NewPath("metadata"))
	if apiequality.Semantic.DeepEqual(stream.Spec, before.Spec) {
		return errs
	}
	if errs = append(errs, validateStreamSpec(stream)...); len(errs) > 0 {
		return errs
	}
	return s.recordFollowed(ctx, stream, before)
}

// maxRepository bounds the path of a repository, in characters; <namespace>/<name> is one.
const maxRepository = 255

// streamName matches a part of a repository's path, also with three underscores, which mark a name
// that was cut (tags.Stream).
var streamName = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_{1,3}|-+)[a-z0-9]+)*$`)

func ValidateName(name string, prefix bool) []string {
	if reasons := content.IsPathSegmentName(name); len(reasons) > 0 {
		return reasons
	}
	if !prefix && !streamName.MatchString(name) {
		return []string{"must be in lower case, and of letters, digits and single separators as the path of a repository is: a-z, 0-9, '.', '_', '__' and dashes"}
	}
	return nil
}

// maxSpecTags bounds the tags that a stream's spec names. Where each leads is looked up when the
// stream is read.
const maxSpecTags = 1000

func validateStreamSpec(stream *imagev1.ImageStream) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if repository := stream.Spec.DockerImageRepository; repository != "" {
		if _, err := reference.ParseRepository(repository); err != nil {
			errs = append(errs, field.Invalid(spec.Child("dockerImageRepository"), repository, err.Error()))
		}
	}
	if n := len(stream.Spec.Tags); n > maxSpecTags {
		return append(errs, field.TooMany(spec.Child("tags"), n, maxSpecTags))
	}
	seen := map[string]bool{}
	for i := range stream.Spec.Tags {
		tag, at := &stream.Spec.Tags[i], spec.Child("tags").Key(stream.Spec.Tags[i].Name)
		if seen[tag.Name] {
			errs = append(errs, field.Duplicate(at, tag.Name))
		}
		seen[tag.Name] = true
		errs = append(errs, ValidateSpecTag(tag, at)...)
	}
	return errs
}

func ValidateSpecTag(tag *imagev1.TagReference, at *field.Path) (errs field.ErrorList) {
	if !reference.IsTag(tag.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), tag.Name, "must be a tag"))
	}
	if value, ok := tag.Annotations[PromotionAnnotation]; ok && value != PromotionVerified {
		errs = append(errs, field.NotSupported(at.Child("annotations").Key(PromotionAnnotation), value, []string{PromotionVerified}))
	}
	if from := tag.From; from != nil {
		name := at.Child("from", "name")
		switch from.Kind {
		case "DockerImage":
			if _, err := reference.Parse(from.Name); err != nil {
				errs = append(errs, field.Invalid(name, from.Name, err.Error()))
			}
		case "ImageStreamTag", "ImageStreamImage":
			if _, rest := splitFrom("", from.Name, separator(from.Kind)); rest == "" || strings.HasPrefix(from.Name, separator(from.Kind)) {
				errs = append(errs, field.Invalid(name, from.Name, "must be of the form <tag>, <stream>:<tag>, <image> or <stream>@<image>"))
			}
			if tag.ImportPolicy.Scheduled {
				errs = append(errs, field.Invalid(at.Child("importPolicy", "scheduled"), true, "only what comes from a registry can be imported again"))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("from", "kind"), from.Kind, []string{"DockerImage", "ImageStreamTag", "ImageStreamImage"}))
		}
	}
	if p := tag.ReferencePolicy.Type; p != imagev1.SourceTagReferencePolicy && p != imagev1.LocalTagReferencePolicy {
		errs = append(errs, field.NotSupported(at.Child("referencePolicy", "type"), p, []imagev1.TagReferencePolicyType{imagev1.SourceTagReferencePolicy, imagev1.LocalTagReferencePolicy}))
	}
	if m := tag.ImportPolicy.ImportMode; m != imagev1.ImportModeLegacy && m != imagev1.ImportModePreserveOriginal {
		errs = append(errs, field.NotSupported(at.Child("importPolicy", "importMode"), m, []imagev1.ImportModeType{imagev1.ImportModeLegacy, imagev1.ImportModePreserveOriginal}))
	}
	return errs
}

func separator(kind string) string {
	if kind == "ImageStreamImage" {
		return "@"
	}
	return ":"
}

// recordFollowed checks that the writer of a stream may see what it newly follows. For tags that
// now follow something else, it records what they have led to and what they lead to now.
func (s Strategy) recordFollowed(ctx context.Context, stream, before *imagev1.ImageStream) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if repository := stream.Spec.DockerImageRepository; repository != "" && (before == nil || before.Spec.DockerImageRepository != repository) {
		ref, _ := reference.ParseRepository(repository)
		if _, own := s.shown.Own(stream); own {
			// The pushes to it are the stream's own.
		} else if err := s.shown.MayFollow(ctx, stream.Namespace, tags.Namespace, tags.Stream(ref), spec.Child("dockerImageRepository")); err != nil {
			errs = append(errs, err)
		}
	}
	var shown *imagev1.ImageStream
	if before != nil {
		var err error
		if shown, err = s.shown.Show(ctx, before); err != nil {
			return append(errs, field.InternalError(spec.Child("tags"), err))
		}
	}
	now, led := metav1.NewTime(time.Now().UTC().Truncate(time.Second)), map[string]bool{}
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if was := SpecTag(before, tag.Name); !tagChanged(was, tag, stream.Namespace) {
			if IsGuarded(tag) && !IsGuarded(was) { // it stays where it leads
				KeepHistory(stream, shown, tag.Name)
			}
			continue
		}
		KeepHistory(stream, shown, tag.Name)
		if tag.From == nil {
			continue
		}
		event, err := s.resolve(ctx, stream, shown, tag, spec.Child("tags").Key(tag.Name).Child("from"))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		failed, imported := importedNow(ctx, tag.Name)
		if failed != nil {
			SetFailed(OwnHistory(stream, tag.Name), failed, stream.Generation)
			continue
		}
		if event != nil && IsGuarded(tag) {
			waits, err := s.shown.waits(ctx, stream, tag, event, imported)
			if err != nil {
				errs = append(errs, field.Forbidden(spec.Child("tags").Key(tag.Name).Child("from"), err.Error()))
			}
			if waits || err != nil {
				continue
			}
		}
		if event != nil {
			if event.Generation = *tag.Generation; !imported && s.shown.ToImport(tag) {
				event.Generation = 0 // shown as it is known until it is imported (TagImports)
			}
			if event.Created.IsZero() {
				event.Created = now
			}
			tags.Add(OwnHistory(stream, tag.Name), *event)
			led[tag.Name] = true
		}
	}
	if before != nil {
		for i := range before.Spec.Tags {
			if name := before.Spec.Tags[i].Name; SpecTag(stream, name) == nil {
				KeepHistory(stream, shown, name)
			}
		}
	}
	if len(errs) == 0 {
		if err := s.shown.promote(ctx, stream, led); err != nil {
			errs = append(errs, field.InternalError(spec.Child("tags"), err))
		}
	}
	return errs
}

// KeepHistory stores in a stream what a tag of it has led to, before the tag follows something
// else.
func KeepHistory(stream, shown *imagev1.ImageStream, name string) {
	if shown == nil {
		return
	}
	for i := range shown.Status.Tags {
		if shown.Status.Tags[i].Tag == name {
			OwnHistory(stream, name).Items = slices.Clone(shown.Status.Tags[i].Items)
		}
	}
}

// OwnHistory returns the history of a tag that is stored in the stream itself.
func OwnHistory(stream *imagev1.ImageStream, name string) *imagev1.NamedTagEventList {
	for i := range stream.Status.Tags {
		if stream.Status.Tags[i].Tag == name {
			return &stream.Status.Tags[i]
		}
	}
	stream.Status.Tags = append(stream.Status.Tags, imagev1.NamedTagEventList{Tag: name})
	return &stream.Status.Tags[len(stream.Status.Tags)-1]
}

// resolve finds what a tag leads to that now follows something else; nil if that is not known yet.
func (s Strategy) resolve(ctx context.Context, stream, shown *imagev1.ImageStream, tag *imagev1.TagReference, at *field.Path) (*imagev1.TagEvent, *field.Error) {
	from := tag.From
	if from.Kind == "DockerImage" {
		ref, _ := reference.Parse(from.Name) // validated
		if tag.Reference {
			return &imagev1.TagEvent{DockerImageReference: ref.String()}, nil
		}
		if err := s.shown.MayFollow(ctx, stream.Namespace, tags.Namespace, tags.Stream(ref), at.Child("name")); err != nil {
			return nil, err
		}
		if ref.Digest != "" {
			return &imagev1.TagEvent{DockerImageReference: ref.String(), Image: ref.Digest}, nil
		}
		known, err := s.shown.Tag(ctx, ref.Pulled())
		if err != nil {
			return nil, field.InternalError(at.Child("name"), err)
		}
		if image, ok := tags.Now(known); !ok || image == "" {
			return nil, nil
		}
		event := known.Status.Items[0]
		return &event, nil
	}
	namespace, sep := from.Namespace, separator(from.Kind)
	namespace = cmp.Or(namespace, stream.Namespace)
	name, rest := splitFrom(stream.Name, from.Name, sep)
	source := shown // a new stream knows nothing
	if namespace != stream.Namespace || name != stream.Name {
		if err := s.shown.MayFollow(ctx, stream.Namespace, namespace, name, at); err != nil {
			return nil, err
		}
		var err error
		if source, err = s.shown.get(ctx, namespace, name); apierrors.IsNotFound(err) {
			return nil, field.NotFound(at.Child("name"), from.Name)
		} else if err != nil {
			return nil, field.InternalError(at.Child("name"), err)
		}
	}
	if source == nil {
		return nil, nil
	}
	if from.Kind == "ImageStreamTag" {
		return newestEvent(source, rest), nil
	}
	event, err := imageEvent(source, rest)
	switch {
	case apierrors.IsNotFound(err):
		return nil, field.NotFound(at.Child("name"), from.Name)
	case err != nil:
		return nil, field.Invalid(at.Child("name"), from.Name, err.Error())
	}
	event.Created = metav1.Time{} // it leads there from now on
	return event, nil
}

// newestEvent returns a copy of the event with the image to which a tag leads; nil if it leads
// nowhere.
func newestEvent(stream *imagev1.ImageStream, tag string) *imagev1.TagEvent {
	for i := range stream.Status.Tags {
		if t := &stream.Status.Tags[i]; t.Tag == tag && len(t.Items) > 0 && (t.Items[0].Image != "" || specReference(stream, tag)) {
			event := t.Items[0]
			return &event
		}
	}
	return nil
}

// specReference reports whether a tag names a reference that is not imported.
func specReference(stream *imagev1.ImageStream, tag string) bool {
	spec := SpecTag(stream, tag)
	return spec != nil && spec.Reference
}

// imageEvent returns the newest event of an image in a stream. The image is given by its digest or
// the beginning of that.
func imageEvent(stream *imagev1.ImageStream, image string) (*imagev1.TagEvent, error) {
	var found *imagev1.TagEvent
	for i := range stream.Status.Tags {
		for j := range stream.Status.Tags[i].Items {
			event := &stream.Status.Tags[i].Items[j]
			switch {
			case event.Image == "" || !begins(event.Image, image):
			case found != nil && found.Image != event.Image:
				return nil, ambiguous(stream, image, found.Image, event.Image)
			case found == nil || found.Created.Before(&event.Created):
				found = event
			}
		}
	}
	if found == nil {
		return nil, apierrors.NewNotFound(imagev1.Resource("imagestreamimages"), stream.Name+"@"+image)
	}
	event := *found
	return &event, nil
}

// MayFollow refuses a writer whose stream would show a stream of another namespace from which the
// writer may not pull. The tags of registries count as streams in the namespace of package tags,
// one stream for each repository.
func (r *Reader) MayFollow(ctx context.Context, namespace, other, stream string, at *field.Path) *field.Error {
	if other == namespace {
		return nil
	}
	reason, may := r.May(ctx, authorizer.AttributesRecord{Verb: "get", Namespace: other, Resource: "imagestreams", Subresource: "layers", Name: stream})
	if may {
		return nil
	}
	return field.Forbidden(at, strings.TrimSpace(fmt.Sprintf("%s may not get imagestreams/layers of %s/%s, where that is kept: ask for the role system:image-puller there %s", strategy.UserOf(ctx), other, stream, reason)))
}

// May reports whether the sender of a request may also do what is given, to a resource of this
// group, and why not.
func (r *Reader) May(ctx context.Context, what authorizer.AttributesRecord) (reason string, may bool) {
	return strategy.May(ctx, r.Authorizer, what)
}

// streamStatusStrategy is for the subresource status, with which package streams marks streams.
type streamStatusStrategy struct{ Strategy }

// GetResetFields returns the fields of a writer's object that are ignored.
func (streamStatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategy.ResetFields("spec", "status")
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy. StatusREST has seen to the status.
func (streamStatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	stream, before := obj.(*imagev1.ImageStream), old.(*imagev1.ImageStream)
	moved, ok := stream.Annotations[tags.Moved]
	stream.Spec, stream.Generation, stream.Labels = before.Spec, before.Generation, before.Labels
	stream.Annotations = map[string]string{}
	maps.Copy(stream.Annotations, before.Annotations)
	if ok {
		stream.Annotations[tags.Moved] = moved
	}
}

// ValidateUpdate reports what is wrong with a stream after an update of its status.
func (streamStatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateObjectMetaUpdate(&obj.(*imagev1.ImageStream).ObjectMeta, &old.(*imagev1.ImageStream).ObjectMeta, field.NewPath("metadata"))
}

// SetTagDefaults completes a tag of a stream as OpenShift does.
func SetTagDefaults(tag *imagev1.TagReference) {
	tag.ReferencePolicy.Type = cmp.Or(tag.ReferencePolicy.Type, imagev1.SourceTagReferencePolicy)
	tag.ImportPolicy.ImportMode = cmp.Or(tag.ImportPolicy.ImportMode, imagev1.ImportModeLegacy)
}

// ForgetStrategy writes streams as they are given, after tags were deleted.
type ForgetStrategy struct{ Strategy }

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (ForgetStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	stream, before := obj.(*imagev1.ImageStream), old.(*imagev1.ImageStream)
	stream.Generation = before.Generation
	if !apiequality.Semantic.DeepEqual(stream.Spec, before.Spec) {
		stream.Generation++
	}
}

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (ForgetStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateObjectMetaUpdate(&obj.(*imagev1.ImageStream).ObjectMeta, &old.(*imagev1.ImageStream).ObjectMeta, field.NewPath("metadata"))
}

// AllowedRegistry reports whether a host is allowed, by OpenShift's rule: an empty list allows all
// hosts, a domain name may have asterisks, and a missing port is the protocol's.
func AllowedRegistry(allowed []configv1.RegistryLocation, host string, insecure bool) bool {
	if len(allowed) == 0 {
		return true
	}
	withPort := func(host string, insecure bool) (name, port string) {
		if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
			return host[:i], host[i+1:]
		}
		if insecure {
			return host, "80"
		}
		return host, "443"
	}
	name, port := withPort(host, insecure)
	return slices.ContainsFunc(allowed, func(l configv1.RegistryLocation) bool {
		pattern, onPort := withPort(strings.ToLower(l.DomainName), l.Insecure)
		matched, err := path.Match(pattern, name)
		return (err == nil && matched || pattern == name) && (onPort == port || onPort == "*")
	})
}
