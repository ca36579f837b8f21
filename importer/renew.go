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
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
)

// renewPage is how many Images Renew has in memory at a time: one is up to 12 MiB,
// usually some 20 KiB.
const renewPage = 50

// ListedImages are Images that can be listed, too.
type ListedImages interface {
	Images
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// Renew brings the references of stored Images to the canonical form, and returns
// how many Images it changed. What it means to do is what the field selector
// selectors.Warnings finds, so it can be stopped at any moment, goes on where it
// was, and reads nothing when nothing is left. An Image that cannot be changed is
// logged and left.
func Renew(ctx context.Context, images ListedImages) (renewed int, err error) {
	options := metav1.ListOptions{Limit: renewPage, FieldSelector: fields.OneTermEqualSelector(selectors.Warnings, selectors.WarningOldReferences).String()}
	for began := 0; ; {
		list, err := images.List(ctx, options)
		if apierrors.IsResourceExpired(err) && renewed > began {
			options.Continue, began = "", renewed // too slow for the history kept: start again
			continue
		}
		if err != nil {
			return renewed, fmt.Errorf("listing images whose references are stored in an old form: %w", err)
		}
		for i := range list.Items {
			changed, err := Change(ctx, images, list.Items[i].Name, renew)
			if changed {
				renewed++
			}
			if ctx.Err() != nil {
				return renewed, ctx.Err()
			}
			if err != nil {
				slog.Error("The references of an image stay in an old form", "image", list.Items[i].Name, "err", err)
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
	if image.Annotations[annotation.References] != "" {
		annotation.SetKnown(image.Annotations, annotation.Known(image.Annotations))
	}
	if image.Annotations[annotation.Gone] != "" {
		annotation.SetMissing(image.Annotations, annotation.Missing(image.Annotations))
	}
	return true
}
