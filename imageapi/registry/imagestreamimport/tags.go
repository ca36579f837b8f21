package imagestreamimport

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// TagImports are the tags of streams that must be imported, as in OpenShift: those that follow a
// reference of a registry (from of the kind DockerImage, and not reference: true) and whose
// generation in the spec is newer than the one in the stream's status. It reads stored streams, and
// sends no requests to registries.
type TagImports struct {
	shown   *imagestream.Reader
	given   *genericregistry.Store // streams, written by forgetStrategy
	allowed []configv1.RegistryLocation
}

// NewTagImports returns the TagImports of the streams that imports writes.
func NewTagImports(imports *REST) *TagImports {
	return &TagImports{imports.shown, imports.given, imports.allowed}
}

const importPage = 100 // streams read at a time

// Each calls use with the references that each stream has to be imported, in no order, and returns
// the resourceVersion at which all were read. A reference of several tags comes several times.
func (t *TagImports) Each(ctx context.Context, use func([]reference.Reference) error) (version string, err error) {
	return t.each(ctx, &internalversion.ListOptions{}, func(stream *imagev1.ImageStream) error { return t.push(ctx, stream, use) })
}

// Watch calls use with the references that a stream has to be imported, for each stream that is
// written after a resourceVersion, until the watch ends or ctx is done. It returns the version to
// go on from.
func (t *TagImports) Watch(ctx context.Context, version string, use func([]reference.Reference) error) (string, error) {
	w, err := t.shown.Streams.Watch(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
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
			if err := t.push(ctx, stream, use); err != nil {
				return "", err
			}
		}
	}
}

// Scheduled calls use with each reference that a tag of a stream wants imported regularly
// (importPolicy.scheduled). A reference of several tags comes several times.
func (t *TagImports) Scheduled(ctx context.Context, use func(reference.Reference) error) error {
	_, err := t.each(ctx, &internalversion.ListOptions{}, func(stream *imagev1.ImageStream) error {
		for i := range stream.Spec.Tags {
			tag := &stream.Spec.Tags[i]
			if ref, ok := t.shown.Imported(tag); ok && tag.ImportPolicy.Scheduled && ref.Tag != "" && t.refused(tag, ref) == nil {
				if err := use(ref); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return err
}

// Imported records the result of an import in each stream with a tag that waits for it: failed is
// an error of the Kubernetes API, or nil. Tags that have a result already are left alone.
func (t *TagImports) Imported(ctx context.Context, ref reference.Reference, failed error) error {
	options := &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(selectors.StreamRepository, ref.Name())}
	_, err := t.each(ctx, options, func(stream *imagev1.ImageStream) error { return t.settle(ctx, stream, ref, false, failed) })
	return err
}

// each calls visit with each stream that is selected.
func (t *TagImports) each(ctx context.Context, options *internalversion.ListOptions, visit func(*imagev1.ImageStream) error) (version string, err error) {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceAll)
	err = pages.Each(ctx, metav1.ListOptions{Limit: importPage}, func(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageStreamList, error) {
		options.Limit, options.Continue = o.Limit, o.Continue
		obj, err := t.shown.Streams.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing image streams: %w", err)
		}
		return obj.(*imagev1.ImageStreamList), nil
	}, func(list *imagev1.ImageStreamList) error {
		// a watch from here reports what is written meanwhile
		version = cmp.Or(version, list.ResourceVersion)
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return version, err
}

// push calls use with the references that a stream has to be imported. For a tag that may not be
// imported it records why.
func (t *TagImports) push(ctx context.Context, stream *imagev1.ImageStream, use func([]reference.Reference) error) error {
	var wanted []reference.Reference
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		ref, ok := t.shown.Imported(tag)
		switch {
		case !ok || imagestream.IsSettled(stream, tag) || slices.Contains(wanted, ref):
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

// refused returns why a tag may not be imported; nil if it may.
func (t *TagImports) refused(tag *imagev1.TagReference, ref reference.Reference) error {
	if imagestream.AllowedRegistry(t.allowed, ref.Host, tag.ImportPolicy.Insecure) {
		return nil
	}
	return apierrors.NewForbidden(imagev1.Resource("imagestreams"), "", fmt.Errorf("%s may not be imported: the configuration has no entry for %s (streams.allowedRegistriesForImport)", ref, ref.Host))
}

// settle writes the result of the import of a reference into a stream; with refused, only for tags
// that may not be imported.
func (t *TagImports) settle(ctx context.Context, stream *imagev1.ImageStream, ref reference.Reference, refused bool, failed error) error {
	known, err := t.known(ctx, ref)
	if err != nil {
		return err
	}
	var unverified error // why guarded tags may not lead there
	if known != nil && imagestream.HasGuarded(stream) {
		why, _, err := t.shown.NotVerified(ctx, stream.Namespace, known)
		if err != nil {
			return err
		}
		if why != nil {
			unverified = apierrors.FromObject(why)
		}
	}
	if !t.settleTags(stream.DeepCopy(), ref, known, refused, failed, unverified) {
		return nil
	}
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		t.settleTags(stream, ref, known, refused, failed, unverified)
		return stream, nil
	}
	_, _, err = t.given.Update(genericapirequest.WithNamespace(ctx, stream.Namespace), stream.Name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("recording in the image stream %s/%s the import of %s: %w", stream.Namespace, stream.Name, ref, err)
	}
	return nil
}

// known returns what a reference leads to; nil if that is not known.
func (t *TagImports) known(ctx context.Context, ref reference.Reference) (*imagev1.TagEvent, error) {
	if ref.Digest != "" {
		return &imagev1.TagEvent{Created: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), DockerImageReference: ref.String(), Image: ref.Digest}, nil
	}
	tag, err := t.shown.Tag(ctx, ref)
	if image, ok := tags.Now(tag); err != nil || !ok || image == "" {
		return nil, err
	}
	return &tag.Status.Items[0], nil
}

// settleTags records the result of the import of a reference in the tags of a stream that follow
// it. It reports whether a tag has changed. unverified is why guarded tags may not lead there.
func (t *TagImports) settleTags(stream *imagev1.ImageStream, ref reference.Reference, known *imagev1.TagEvent, onlyRefused bool, failed, unverified error) (changed bool) {
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if of, ok := t.shown.Imported(tag); !ok || of != ref || tag.Generation == nil {
			continue
		}
		own, settled := imagestream.OwnHistory(stream, tag.Name), imagestream.IsSettled(stream, tag)
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
			// the registry no longer has it
			err = apierrors.NewNotFound(imagev1.Resource("images"), ref.String())
		}
		if err == nil && imagestream.IsGuarded(tag) && (!imagestream.Leads(own) || own.Items[0].Image != known.Image) {
			err = unverified // no other task moves it there
		}
		switch {
		case settled && tags.Failed(own) == nil: // by this import or another
		case err != nil:
			changed = imagestream.SetFailed(own, imagestream.StatusOf(err), *tag.Generation) || changed
		default:
			imagestream.Lead(own, *known, *tag.Generation)
			changed = true
		}
	}
	return changed
}
