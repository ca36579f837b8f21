package clusters

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Naming lists the stored pods that name or run an image, by a value of the field "image": a
// digest, a repository, or a repository with a tag. more is true if there are more than most.
// Fields of a container that are not stored are left out.
func (c *Clusters) Naming(ctx context.Context, image string, most int) (pods []ClusterPod, more bool, err error) {
	obj, err := c.pods.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(imageField, image), Limit: int64(most),
	})
	if err != nil {
		return nil, false, err
	}
	list := obj.(*ClusterPodList)
	return list.Items, list.Continue != "", nil
}

// Runs returns what a container runs: the digest that the cluster tells, else the image of its
// spec.
func Runs(c *ClusterPodContainer) reference.Reference { return podimages.Runs(c.Image, c.ImageID) }
