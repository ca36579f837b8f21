// Package pages reads lists of which some objects may be damaged.
//
// Kubernetes' storage fails a whole list for one object that it cannot read.
// The server's own readers go on: an object that nobody can read is nothing that
// they could do anything about, and is mended or deleted by an administrator.
package pages

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// size is how many objects are in memory at once.
const size = 500

// Read reads a list page by page. read gets a page of at most limit objects from
// where the token says and returns the next token, "" at the end. Objects that
// cannot be read are passed over: damaged is called with errors that name them.
func Read(ctx context.Context, read func(ctx context.Context, limit int64, token string) (next string, err error), damaged func(error)) error {
	token, single := "", 0
	for {
		limit := int64(size)
		if single > 0 { // those before the one that cannot be read are read one by one
			limit = 1
			single--
		}
		next, err := read(ctx, limit, token)
		if err != nil {
			next = behind(err)
			switch {
			case next == "":
				return err
			case limit > 1:
				single = size
				continue
			}
			damaged(err)
		}
		if token = next; token == "" {
			return nil
		}
	}
}

// behind is the token with which a list goes on behind what could not be read,
// "" for any other error.
func behind(err error) string {
	var status apierrors.APIStatus
	if apierrors.IsStoreReadError(err) && errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}
