package imagestream

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Referrers returns where the registry of streams lists an object that belongs to another, its
// subject, by the referrers tag schema. It returns false if the object is elsewhere or has no
// subject. The registry lists the object there before it serves it.
func (r *Reader) Referrers(image *imagev1.Image) (reference.Reference, bool) {
	if r.Pushes == nil || image == nil || image.DockerImageManifest == "" {
		return reference.Reference{}, false
	}
	ref, err := reference.Parse(image.DockerImageReference)
	if err != nil || ref.Host != r.Registry {
		return reference.Reference{}, false
	}
	m, err := manifest.Of(image)
	if err != nil || m.Subject == nil {
		return reference.Reference{}, false
	}
	ref = ref.WithTag(strings.Replace(m.Subject.Digest, ":", "-", 1))
	return ref, imageregistry.ReferrersTag.MatchString(ref.Tag)
}

// Pushed returns the callback for what the own registry has stored by this reference.
func (r *Reader) Pushed(ctx context.Context, ref reference.Reference) error {
	if r.Pushes == nil {
		return nil
	}
	return r.Pushes.Pushed(ctx, ref)
}

// PushedAgain records that the own registry has an image, which is stored, in the repository of its
// reference as well. The registry posts whatever is pushed by digest, such as the images of an
// index before the index, and is answered that the image exists if it was pushed to another
// repository before. So what an index lists is known where it was pushed, and nowhere else: the
// registry takes an index that lists anything.
func (r *Reader) PushedAgain(ctx context.Context, sent *imagev1.Image) error {
	ref, err := reference.Parse(sent.DockerImageReference)
	if err != nil || r.Registry == "" || ref.Host != r.Registry || !IsWhole(sent) {
		return nil
	}
	if _, may := r.May(ctx, authorizer.AttributesRecord{Verb: "get", Resource: "images", Name: sent.Name}); !may {
		return nil
	}
	_, err = r.ChangeImage(ctx, sent.Name, nil, func(image *imagev1.Image) { Know(image, ref.Bare().WithDigest(image.Name)) })
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// IsWhole reports whether an object brings the manifest that it is named after and, if it is an
// image, the config.
func IsWhole(image *imagev1.Image) bool {
	if image.DockerImageManifest == "" {
		return false
	}
	m, err := manifest.Of(image)
	if err != nil || m.Verify(image.Name) != nil {
		return false
	}
	return m.Kind != manifest.KindImage || m.VerifyConfig([]byte(image.DockerImageConfig)) == nil
}

// Know records that an image is known by a reference, which the registry has.
func Know(image *imagev1.Image, ref reference.Reference) {
	if ref.Tag == "" && imageregistry.IsIn(image, ref.Bare()) {
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

// Lead records that a tag of the own registry leads to an image, and takes it off the image that it
// led to before.
func (r *Reader) Lead(ctx context.Context, ref reference.Reference, image, cause string, at metav1.Time, dryRun []string) error {
	var left string
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		tag := old.(*imagev1.ImageTag).DeepCopy()
		if tag.Name == "" {
			tag = tags.New(ref)
		}
		if tag.Status == nil {
			tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
		}
		left, _ = tags.Now(tag)
		led, failed := tags.Lead(tag, ref, image, at), tags.Fail(tag, "", "", at)
		if led || failed {
			metav1.SetMetaDataAnnotation(&tag.ObjectMeta, tags.Cause, cause)
		}
		return tag, nil
	}
	_, _, err := r.TagStatus.Update(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	if err != nil || left == "" || left == image {
		return err
	}
	return r.leave(ctx, left, ref, dryRun)
}

// written returns what is done when a stream was written.
func (r *Reader) written(obj, old runtime.Object, dryRun []string) genericregistry.FinishFunc {
	return func(ctx context.Context, success bool) {
		if !success || len(dryRun) > 0 {
			return
		}
		stream := obj.(*imagev1.ImageStream)
		before, _ := old.(*imagev1.ImageStream)
		r.leadPushed(ctx, stream, before)
		r.reportGuarded(stream, before)
	}
}

// leadPushed moves pushed tags in the registry, too, if the spec of a stream now leads them
// elsewhere: the registry serves what the stream shows. If a tag cannot be written, the stream
// shows its spec ([tags.Pushed]).
func (r *Reader) leadPushed(ctx context.Context, stream, before *imagev1.ImageStream) {
	repository, own := r.Own(stream)
	if !own {
		return
	}
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if !r.TakesPushes(stream, tag) || !tagChanged(SpecTag(before, tag.Name), tag, stream.Namespace) {
			continue
		}
		history := HistoryOf(stream, tag.Name)
		if !Leads(history) || IsGuarded(tag) && tag.Generation != nil && history.Items[0].Generation < *tag.Generation {
			// it waits
			continue
		}
		if err := r.leadKnown(ctx, repository.WithTag(tag.Name), history.Items[0]); err != nil {
			slog.Warn("The record of a tag of the registry is out of date", "tag", repository.WithTag(tag.Name).String(), "leads", history.Items[0].Image, "err", err)
		}
	}
}

// leadKnown records where a tag of the own registry leads, if it is known there. The image is known
// by the tag if it is known to be in the repository: a writer of streams may name any digest.
func (r *Reader) leadKnown(ctx context.Context, ref reference.Reference, event imagev1.TagEvent) error {
	if known, err := r.Tag(ctx, ref); err != nil || known == nil {
		return err
	}
	if err := r.Lead(ctx, ref, event.Image, "tag", event.Created, nil); err != nil {
		return err
	}
	_, err := r.ChangeImage(ctx, event.Image, nil, func(image *imagev1.Image) {
		if imageregistry.IsIn(image, ref.Bare()) {
			Know(image, ref)
		}
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Own returns the repository of a stream in the registry whose image API this server is, and
// whether the stream follows it.
func (r *Reader) Own(stream *imagev1.ImageStream) (repository reference.Reference, follows bool) {
	if r.Registry == "" {
		return reference.Reference{}, false
	}
	repository = reference.Reference{Host: r.Registry, Repository: stream.Namespace + "/" + stream.Name}
	followed, err := reference.ParseRepository(stream.Spec.DockerImageRepository)
	return repository, err == nil && followed == repository
}

// registryRepository returns where a stream is in the registry whose image API this server is,
// whatever the stream follows: from there that registry serves its images. It is "" if there is no
// registry. Clients send the credentials of this server to the host that the status of a stream
// names (oc registry login), so no other host is ever named there.
func (r *Reader) registryRepository(stream *imagev1.ImageStream) string {
	repository, _ := r.Own(stream)
	if _, err := reference.ParseRepository(repository.Name()); err != nil {
		// some names are not the path of a repository
		return ""
	}
	return repository.Name()
}

// PulledBy returns the reference with which clients pull the image to which a tag of a stream
// leads: the reference in the registry of the streams, if there is one and the tag's spec wants it
// (referencePolicy: Local).
func (r *Reader) PulledBy(stream *imagev1.ImageStream, tag string, event *imagev1.TagEvent) string {
	spec, place := SpecTag(stream, tag), r.registryRepository(stream)
	if spec == nil || spec.ReferencePolicy.Type != imagev1.LocalTagReferencePolicy || place == "" || event.Image == "" {
		return event.DockerImageReference
	}
	return place + "@" + event.Image
}

// ChangeImage changes an image, and writes it if it is different then.
func (r *Reader) ChangeImage(ctx context.Context, name string, dryRun []string, change func(*imagev1.Image)) (*imagev1.Image, error) {
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		image := *old.(*imagev1.Image)
		before := image.Annotations
		image.Annotations = map[string]string{}
		maps.Copy(image.Annotations, before)
		if change(&image); apiequality.Semantic.DeepEqual(image.Annotations, before) {
			return old, nil
		}
		return &image, nil
	}
	obj, _, err := r.Images.Update(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

// leave removes a tag from an image that it no longer leads to. The image stays known in the tag's
// repository. leave does nothing if the image is not stored, or if the tag leads to it again.
func (r *Reader) leave(ctx context.Context, image string, ref reference.Reference, dryRun []string) error {
	var failed error
	_, err := r.ChangeImage(ctx, image, dryRun, func(image *imagev1.Image) {
		tag, err := r.Tag(ctx, ref)
		if now, _ := tags.Now(tag); err != nil || now == image.Name {
			failed = err
			return
		}
		if annotation.Leave(image.Annotations, ref) {
			Know(image, ref.Bare().WithDigest(image.Name))
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

// ForgetTag deletes the ImageTag of a tag in a registry. If mappings report the pushes to that
// registry, it also removes the tag from the image to which it leads, because no other code does.
func (r *Reader) ForgetTag(ctx context.Context, tag *imagev1.ImageTag, dryRun []string) error {
	if _, _, err := r.Tags.Delete(genericapirequest.WithNamespace(ctx, tag.Namespace), tag.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: dryRun}); err != nil {
		return err
	}
	ref, ok := tags.Reference(tag)
	image, _ := tags.Now(tag)
	if !ok || ref.Host != r.Registry || image == "" || len(dryRun) > 0 {
		return nil
	}
	return r.leave(ctx, image, ref, nil)
}

// forgetPushes deletes the records of pushes to a stream that is deleted.
func (r *Reader) forgetPushes(stream *imagev1.ImageStream) {
	repository, own := r.Own(stream)
	if !own {
		return
	}
	ctx, cancel := context.WithTimeout(genericapirequest.NewContext(), forgetTimeout)
	defer cancel()
	known, err := r.tagsOf(ctx, repository.Name())
	for i := range known {
		if failed := r.ForgetTag(ctx, &known[i], nil); failed != nil && !apierrors.IsNotFound(failed) {
			err = failed
		}
	}
	if err != nil {
		slog.Warn("Tags of a deleted image stream stay: delete their imagetags", "repository", repository.Name(), "namespace", tags.Namespace, "err", err)
	}
}

// forgetTimeout bounds how long the deletion of a stream may spend on its tags.
const forgetTimeout = time.Minute
