package importer

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Change changes a stored Image, unless change returns false because there is nothing to
// do. It calls change again with the newer Image when others write at the same time. It
// does nothing if the Image is not stored.
func (im *Importer) Change(ctx context.Context, images Images, name string, change func(*imagev1.Image) bool) (changed bool, err error) {
	unlock, err := im.lockImage(ctx, name)
	if err != nil {
		return false, err
	}
	defer unlock()
	return changeImage(ctx, images, name, change)
}

// changeImage is Change where no Importer writes.
func changeImage(ctx context.Context, images Images, name string, change func(*imagev1.Image) bool) (changed bool, err error) {
	err = retry.RetryOnConflict(conflictBackoff, func() error {
		changed = false
		image, err := images.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !change(image) {
			return nil
		}
		_, err = images.Update(ctx, image, metav1.UpdateOptions{})
		changed = err == nil
		return err
	})
	return changed, storing(name, err)
}
