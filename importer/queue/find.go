package queue

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
)

// listPage is how many Images ListFinder has in memory at a time: an Image is up to 12 MiB,
// usually some 20 KiB. tagsPage is the same for ImageTags, which are small.
const listPage, tagsPage = 10, 100

// ListFinder is a Finder that lists the Images whose field selectors.RecordedReferences has the
// reference among its values.
type ListFinder struct{ Images Lister }

// FindImages implements Finder.
func (f ListFinder) FindImages(ctx context.Context, ref reference.Reference, visit func(*imagev1.Image) error) error {
	options := metav1.ListOptions{Limit: listPage, FieldSelector: fields.OneTermEqualSelector(selectors.RecordedReferences, ref.String()).String()}
	for {
		list, err := f.Images.List(ctx, options)
		if err != nil {
			if apierrors.IsResourceExpired(err) && options.Continue != "" {
				options.Continue = "" // it took longer than history is kept: start again
				continue
			}
			return fmt.Errorf("listing images: %w", err)
		}
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}
