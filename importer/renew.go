package importer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// renewPage is how many Images Renew has in memory at a time: an Image is up to 12 MiB, usually
// some 20 KiB.
const renewPage = 10

// renewTagsPage is the same for ImageTags, which are small.
const renewTagsPage = 100

// ListedImages are Images that can be listed, too.
type ListedImages interface {
	Images
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// Renewed are the Images and ImageTags that Renew changes.
type Renewed interface {
	Tagged
	DeleteTag(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// Renew rewrites the references of stored Images and ImageTags in the canonical form, and makes the
// server derive printable fields of Images. It returns how many times it changed an object. It
// finds the objects to change by field selectors, so it can be stopped at any moment, continues
// where it was, and reads no objects when none is left. It logs and skips an object that it cannot
// change.
func Renew(ctx context.Context, images Renewed) (renewed int, err error) {
	if renewed, err = renewTags(ctx, images); err != nil {
		return renewed, err
	}
	for _, old := range []struct {
		field, value string
		change       func(*imagev1.Image) (changed bool)
	}{
		{selectors.Warnings, selectors.WarningOldReferences, renew},
		{selectors.Unprintable, "true", leaveOutUnprintable},
	} {
		n, err := renewSelected(ctx, images, fields.OneTermEqualSelector(old.field, old.value), old.change)
		if renewed += n; err != nil {
			return renewed, err
		}
	}
	return renewed, nil
}

// renewTags moves ImageTags to the names that their references have now.
func renewTags(ctx context.Context, images Renewed) (renewed int, err error) {
	selector := fields.OneTermEqualSelector(selectors.Warnings, selectors.WarningOldReferences)
	err = pages.Each(ctx, metav1.ListOptions{Limit: renewTagsPage, FieldSelector: selector.String()}, images.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			err := renewTag(ctx, images, &list.Items[i])
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				slog.Error("A tag keeps its old name in storage", "tag", list.Items[i].Name, "err", err)
			default:
				renewed++
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("listing tags that are stored under an old name: %w", err)
	}
	return renewed, err
}

// renewTag writes an ImageTag under the present name of its reference, merged with an ImageTag that
// exists there, and deletes it under its old name. If it is stopped in between, the next run
// repeats both.
func renewTag(ctx context.Context, images Renewed, old *imagev1.ImageTag) error {
	ref, ok := tags.Reference(old)
	if !ok || old.Name == tags.Name(ref) {
		return nil
	}
	var history []imagev1.TagEvent
	if old.Status != nil {
		history = slices.Clone(old.Status.Items)
	}
	for i := range history {
		history[i].DockerImageReference = annotation.Renewed(history[i].DockerImageReference)
	}
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		tag, err := record.GetTag(ctx, ref, images)
		if err != nil {
			return err
		}
		if tag == nil {
			tag = tags.New(ref)
			tag.Spec = old.Spec.DeepCopy()
			tag.Spec.From.Name = ref.String()
			tag.Labels = old.Labels
			tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
			if old.Status != nil {
				tag.Status.Conditions = old.Status.Conditions
			}
		}
		if tag.Status == nil {
			tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
		}
		tags.Inherit(tag, old, history)
		metav1.SetMetaDataAnnotation(&tag.ObjectMeta, tags.Cause, tags.RenamedFrom+old.Name)
		_, err = images.UpdateTag(ctx, tag, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = images.DeleteTag(ctx, old.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// renewSelected changes the Images that selector finds.
func renewSelected(ctx context.Context, images ListedImages, selector fields.Selector, change func(*imagev1.Image) (changed bool)) (renewed int, err error) {
	options := metav1.ListOptions{Limit: renewPage, FieldSelector: selector.String()}
	err = pages.Each(ctx, options, images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			changed, err := record.Change(ctx, images, list.Items[i].Name, change)
			if changed {
				renewed++
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				slog.Error("An image keeps an old storage format", "image", list.Items[i].Name, "form", selector.String(), "err", err)
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("listing images in an old storage format (%s): %w", selector, err)
	}
	return renewed, err
}

// renew brings the references of an Image to the canonical form.
func renew(image *imagev1.Image) (changed bool) {
	if !annotation.IsOld(image.Annotations, image.DockerImageReference) {
		return false
	}
	image.DockerImageReference = annotation.Renewed(image.DockerImageReference)
	if _, ok := image.Annotations[annotation.References]; ok {
		annotation.SetKnown(image.Annotations, annotation.Known(image.Annotations))
	}
	if image.Annotations[annotation.Gone] != "" {
		annotation.SetMissing(image.Annotations, annotation.Missing(image.Annotations))
	}
	return true
}

// leaveOutUnprintable leaves out content that YAML cannot hold. It also clears the metadata, which
// the server then makes printable with the other fields that it derives.
func leaveOutUnprintable(image *imagev1.Image) (changed bool) {
	if image.DockerImageManifest != "" && manifest.Fit(image) != nil {
		return false
	}
	image.DockerImageMetadata.Raw = nil
	return true
}
