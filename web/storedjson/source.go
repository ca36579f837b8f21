package storedjson

import (
	"context"

	"k8s.io/apiserver/pkg/storage"
)

// Source is a storage of cluster-scoped objects that can also be read as bytes. Revisions are
// resource versions. No two changes have the same revision.
type Source interface {
	storage.Interface

	// ReadStored returns the stored bytes of the object called name, without a
	// resourceVersion, and its revision. If the object does not exist, the error is a
	// storage.StorageError, as from Get. If has is not nil and reports true for the revision, because
	// the caller has the object, ReadStored may return only the revision.
	ReadStored(ctx context.Context, name string, has func(rev int64) bool) (data []byte, rev int64, err error)

	// ScanStored calls each with the objects as of revision rev, 0 for now, in the order of their
	// names. It begins with the name from, and ends after limit objects or size bytes. With size 0 it
	// reads no data. An object that cannot be read has err in place of data. ScanStored returns the
	// revision that it has read, whether more objects follow, and, if count is true, how many. To
	// continue, call it with the last name and a zero byte as from.
	ScanStored(ctx context.Context, from string, rev int64, limit, size int, count bool,
		each func(name string, rev int64, data []byte, err error)) (at int64, more bool, remaining int64, err error)

	// Hold keeps the objects at revision rev, and the changes after it, readable until release is
	// called. release may be called more than once.
	Hold(rev int64) (release func())

	// Totals returns how many objects there are now, and their bytes.
	Totals(ctx context.Context) (objects, bytes int64, err error)
}
