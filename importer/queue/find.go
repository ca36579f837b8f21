package queue

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// listPage is how many Images ListFinder has in memory at a time: an Image is up to 12 MiB,
// usually some 20 KiB.
const listPage = 10

// ListFinder is a Finder that lists the Images whose field selectors.RecordedReferences has the
// reference among its values.
type ListFinder struct{ Images Lister }

// FindImages implements Finder.
func (f ListFinder) FindImages(ctx context.Context, ref reference.Reference, visit func(*imagev1.Image) error) error {
	options := metav1.ListOptions{Limit: listPage, FieldSelector: fields.OneTermEqualSelector(selectors.RecordedReferences, ref.String()).String()}
	return pages.Each(ctx, options, f.Images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
}
