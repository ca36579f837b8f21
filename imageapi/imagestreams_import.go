package imageapi

import (
	"context"
	"fmt"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// TagImports are the tags of streams that must be imported, as in OpenShift: those that follow a reference of a
// registry (from of the kind DockerImage, and not reference: true) and whose generation in the spec is newer than the
// one in the stream's status. It reads stored streams, and asks no registry.
type TagImports struct {
	shown   *streamReader
	given   *genericregistry.Store // streams, written by forgetStrategy
	allowed []configv1.RegistryLocation
}

// TagImportsOf returns the TagImports of the storage that Storage returned.
func TagImportsOf(storage map[string]rest.Storage) *TagImports {
	imports := storage["imagestreamimports"].(*streamImportsREST)
	return &TagImports{imports.shown, imports.given, imports.allowed}
}

const (
	importPage          = 100  // streams read at a time
	maxConditionMessage = 1024 // bytes of why a tag could not be imported
)

// Each calls use with the references that each stream has to be imported, in no order, and returns the resourceVersion
// at which all were read. A reference of several tags comes several times.
func (t *TagImports) Each(ctx context.Context, use func([]reference.Reference) error) (version string, err error) {
	return t.each(ctx, &internalversion.ListOptions{}, func(stream *imagev1.ImageStream) error { return t.tell(ctx, stream, use) })
}

// Watch calls use with the references that a stream has to be imported, for each stream that is written after a
// resourceVersion, until the watch ends or ctx is done. It returns the version to go on from.
func (t *TagImports) Watch(ctx context.Context, version string, use func([]reference.Reference) error) (string, error) {
	w, err := t.shown.streams.Watch(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return "", fmt.Errorf("watching image streams: %w", err)
	}
	defer w.Stop()
	for {
		var event watch.Event
		var ok bool
		select {
		case event, ok = <-w.ResultChan():
		case <-ctx.Done():
		}
		if !ok {
			return version, nil
		}
		if event.Type == watch.Error {
			return "", fmt.Errorf("watching image streams: %w", apierrors.FromObject(event.Object))
		}
		if shared, is := event.Object.(runtime.CacheableObject); is {
			event.Object = shared.GetObject()
		}
		stream, is := event.Object.(*imagev1.ImageStream)
		if !is {
			continue
		}
		version = stream.ResourceVersion
		if event.Type == watch.Added || event.Type == watch.Modified {
			if err := t.tell(ctx, stream, use); err != nil {
				return "", err
			}
		}
	}
}

// Scheduled calls use with each reference that a tag of a stream wants imported regularly (importPolicy.scheduled). A
// reference of several tags comes several times.
func (t *TagImports) Scheduled(ctx context.Context, use func(reference.Reference) error) error {
	_, err := t.each(ctx, &internalversion.ListOptions{}, func(stream *imagev1.ImageStream) error {
		for i := range stream.Spec.Tags {
			tag := &stream.Spec.Tags[i]
			if ref, ok := t.imports(tag); ok && tag.ImportPolicy.Scheduled && ref.Tag != "" && t.refused(tag, ref) == nil {
				if err := use(ref); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return err
}

// Imported records the result of an import in each stream with a tag that waits for it: failed is an error of the
// Kubernetes API, or nil. Tags that have a result already are left alone.
func (t *TagImports) Imported(ctx context.Context, ref reference.Reference, failed error) error {
	options := &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(selectors.StreamRepository, ref.Name())}
	_, err := t.each(ctx, options, func(stream *imagev1.ImageStream) error { return t.settle(ctx, stream, ref, false, failed) })
	return err
}

// each calls visit with each stream that is selected.
func (t *TagImports) each(ctx context.Context, options *internalversion.ListOptions, visit func(*imagev1.ImageStream) error) (version string, err error) {
	ctx, options.Limit = genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), importPage
	for {
		obj, err := t.shown.streams.List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("listing image streams: %w", err)
		}
		list := obj.(*imagev1.ImageStreamList)
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return "", err
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return list.ResourceVersion, nil
		}
	}
}

// tell calls use with the references that a stream has to be imported. For a tag that may not be imported it records
// why.
func (t *TagImports) tell(ctx context.Context, stream *imagev1.ImageStream, use func([]reference.Reference) error) error {
	var wanted []reference.Reference
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		ref, ok := t.imports(tag)
		switch {
		case !ok || isSettled(stream, tag) || slices.Contains(wanted, ref):
		case t.refused(tag, ref) != nil:
			if err := t.settle(ctx, stream, ref, true, nil); err != nil {
				return err
			}
		default:
			wanted = append(wanted, ref)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return use(wanted)
}

// imports returns the reference that a tag wants imported; ok is false for none. The registry of the streams itself
// reports pushes to it.
func (t *TagImports) imports(tag *imagev1.TagReference) (ref reference.Reference, ok bool) {
	if tag.From == nil || tag.From.Kind != "DockerImage" || tag.Reference {
		return reference.Reference{}, false
	}
	ref, err := reference.Parse(tag.From.Name)
	return ref.Pulled(), err == nil && ref.Host != t.shown.registry
}

// toImport reports whether a tag wants imported what it follows.
func (r *streamReader) toImport(tag *imagev1.TagReference) bool {
	_, imports := (&TagImports{shown: r}).imports(tag)
	return imports && r.imports
}

// refused returns why a tag may not be imported; nil if it may.
func (t *TagImports) refused(tag *imagev1.TagReference, ref reference.Reference) error {
	if allowedRegistry(t.allowed, ref.Host, tag.ImportPolicy.Insecure) {
		return nil
	}
	return apierrors.NewForbidden(imagev1.Resource("imagestreams"), "", fmt.Errorf("%s may not be imported: the configuration has no entry for %s (streams.allowedRegistriesForImport)", ref, ref.Host))
}

// isSettled reports whether a stream has the result of importing a tag as its spec is now.
func isSettled(stream *imagev1.ImageStream, tag *imagev1.TagReference) bool {
	if tag.Generation == nil {
		return true
	}
	for i := range stream.Status.Tags {
		own := &stream.Status.Tags[i]
		if own.Tag != tag.Name {
			continue
		}
		failed := tags.Failed(own)
		return len(own.Items) > 0 && own.Items[0].Generation >= *tag.Generation || failed != nil && failed.Generation >= *tag.Generation
	}
	return false
}

// settle writes the result of the import of a reference into a stream; with refused, only for tags that may not be
// imported.
func (t *TagImports) settle(ctx context.Context, stream *imagev1.ImageStream, ref reference.Reference, refused bool, failed error) error {
	known, err := t.known(ctx, ref)
	if err != nil {
		return err
	}
	if !t.settleTags(stream.DeepCopy(), ref, known, refused, failed) {
		return nil
	}
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		t.settleTags(stream, ref, known, refused, failed)
		return stream, nil
	}
	_, _, err = t.given.Update(genericapirequest.WithNamespace(ctx, stream.Namespace), stream.Name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing into the image stream %s/%s what became of %s: %w", stream.Namespace, stream.Name, ref, err)
	}
	return nil
}

// known returns what a reference leads to; nil if that is not known.
func (t *TagImports) known(ctx context.Context, ref reference.Reference) (*imagev1.TagEvent, error) {
	if ref.Digest != "" {
		return &imagev1.TagEvent{Created: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), DockerImageReference: ref.String(), Image: ref.Digest}, nil
	}
	tag, err := t.shown.tag(ctx, ref)
	if image, ok := tags.Now(tag); err != nil || !ok || image == "" {
		return nil, err
	}
	return &tag.Status.Items[0], nil
}

// settleTags records the result of the import of a reference in the tags of a stream that follow it. It reports whether
// a tag has changed.
func (t *TagImports) settleTags(stream *imagev1.ImageStream, ref reference.Reference, known *imagev1.TagEvent, onlyRefused bool, failed error) (changed bool) {
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if of, ok := t.imports(tag); !ok || of != ref || tag.Generation == nil {
			continue
		}
		own, settled := ownHistory(stream, tag.Name), isSettled(stream, tag)
		err, refused := failed, t.refused(tag, ref)
		if onlyRefused && refused == nil {
			continue
		}
		if refused != nil {
			if err = nil; known == nil || ref.Digest != "" {
				err = refused // if it is known, the tag shows it all the same
			}
		}
		if err == nil && known == nil {
			err = apierrors.NewNotFound(imagev1.Resource("images"), ref.String()) // the registry no longer has it
		}
		switch {
		case settled && tags.Failed(own) == nil: // by this import or another
		case err != nil:
			changed = setFailed(own, statusOf(err), *tag.Generation) || changed
		default:
			lead(own, *known, *tag.Generation)
			changed = true
		}
	}
	return changed
}

// lead starts a stream's own history of a tag with what the tag led to when it was imported. What it leads to since is
// read from the tag that it follows.
func lead(own *imagev1.NamedTagEventList, event imagev1.TagEvent, generation int64) {
	event.Generation = generation
	tags.Add(own, event)
	own.Conditions = nil
}

// setFailed records why a tag could not be imported. It reports whether that is a change.
func setFailed(own *imagev1.NamedTagEventList, status *metav1.Status, generation int64) (changed bool) {
	condition := imagev1.TagEventCondition{
		Type: imagev1.ImportSuccess, Status: corev1.ConditionFalse, Reason: string(status.Reason), Message: printable.Line(status.Message, maxConditionMessage),
		LastTransitionTime: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Generation: generation,
	}
	if had := tags.Failed(own); had != nil && had.Reason == condition.Reason && had.Message == condition.Message && had.Generation == condition.Generation {
		return false
	}
	own.Conditions = []imagev1.TagEventCondition{condition}
	return true
}

// withGeneration returns the history of a tag that follows a reference, with the generation of the spec; own is what
// the stream itself has of it. A failed import is shown until the registry is known to have the reference.
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

type importedKey struct{}

// withImported returns a context for writing a stream whose tags have been imported.
func withImported(ctx context.Context, all []wanted) context.Context {
	return context.WithValue(ctx, importedKey{}, all)
}

// importedNow returns what was imported for a tag by the request that writes its stream; nil for nothing.
func importedNow(ctx context.Context, tag string) *wanted {
	all, _ := ctx.Value(importedKey{}).([]wanted)
	for i := range all {
		if all[i].tag == tag {
			return &all[i]
		}
	}
	return nil
}
