package importer

import (
	"context"
	"fmt"
	"log/slog"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
)

// renewPage is how many Images Renew has in memory at a time: an Image is up to 12 MiB, usually some
// 20 KiB.
const renewPage = 10

// ListedImages are Images that can be listed, too.
type ListedImages interface {
	Images
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// Renew brings the references of stored Images to the canonical form, has the server make their
// fields printable, and returns how many times it changed an Image. Field selectors find the Images
// that it has to change, so it can be stopped at any moment, goes on where it was, and reads nothing
// when nothing is left. It logs and leaves an Image that cannot be changed.
func Renew(ctx context.Context, images ListedImages) (renewed int, err error) {
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

// renewSelected changes the Images that selector finds.
func renewSelected(ctx context.Context, images ListedImages, selector fields.Selector, change func(*imagev1.Image) (changed bool)) (renewed int, err error) {
	options := metav1.ListOptions{Limit: renewPage, FieldSelector: selector.String()}
	for began := 0; ; {
		list, err := images.List(ctx, options)
		if apierrors.IsResourceExpired(err) && renewed > began {
			options.Continue, began = "", renewed // it took longer than history is kept: start again
			continue
		}
		if err != nil {
			return renewed, fmt.Errorf("listing images that are stored in an old form (%s): %w", selector, err)
		}
		for i := range list.Items {
			changed, err := Change(ctx, images, list.Items[i].Name, change)
			if changed {
				renewed++
			}
			if ctx.Err() != nil {
				return renewed, ctx.Err()
			}
			if err != nil {
				slog.Error("An image stays in an old form", "image", list.Items[i].Name, "form", selector.String(), "err", err)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return renewed, nil
		}
	}
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
