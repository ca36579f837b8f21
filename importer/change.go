package importer

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
)

// Change changes a stored Image, unless change returns false because there is nothing to
// do. If another writer was faster, it calls change again with the newer Image. It
// does nothing if the Image is not stored.
func (im *Importer) Change(ctx context.Context, images Images, name string, change func(*imagev1.Image) bool) (changed bool, err error) {
	unlock, err := im.lockImage(ctx, name)
	if err != nil {
		return false, err
	}
	defer unlock()
	return record.Change(ctx, images, name, change)
}
