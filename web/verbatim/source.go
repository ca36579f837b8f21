package verbatim

import (
	"context"

	"k8s.io/apiserver/pkg/storage"
)

// Source is a storage of cluster-scoped objects that can also be read as bytes. Revisions
// are resource versions; no two changes have the same.
type Source interface {
	storage.Interface

	// ReadStored returns what is stored of the object called name, without a
	// resourceVersion, and its revision. One that does not exist is a
	// storage.StorageError, as from Get.
	ReadStored(ctx context.Context, name string) (data []byte, rev int64, err error)

	// ScanStored calls each for the objects of revision rev, 0 for now, in the order of
	// their names, from the name from on, until there were limit of them or size bytes. With size 0 data
	// is not read. err, and not data, is given of an object that cannot be read.
	// It returns the revision it has read; whether objects follow, which a call from the
	// last name and a zero byte returns; and how many, if count asks for it.
	ScanStored(ctx context.Context, from string, rev int64, limit, size int, count bool,
		each func(name string, rev int64, data []byte, err error)) (at int64, more bool, remaining int64, err error)

	// Hold keeps what exists at revision rev, and the changes after it, from being forgotten
	// until release is called, which may be more than once.
	Hold(rev int64) (release func())

	// Totals returns how many objects there are now, and their bytes.
	Totals(ctx context.Context) (objects, bytes int64, err error)
}
