package ranges

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // RangeAllocation, in the scheme
	"k8s.io/kubernetes/pkg/registry/core/rangeallocation"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
)

// Resource is the group-resource under which bitmaps are stored. It is never
// served.
var Resource = schema.GroupResource{Resource: "rangeallocations"}

// ErrNotReady means that the stored bitmap does not exist yet: the repair controller writes it when
// the server starts.
var ErrNotReady = errors.New("nothing can be allocated before the first repair has run; try again when the server is ready")

// errTaken ends an update that found nothing to hand out; it never leaves the
// package.
var errTaken = errors.New("already allocated")

// Store hands out numbers of one range and stores which ones. It is safe for concurrent
// use, by one process and by several over one storage.
type Store struct {
	storage storage.Interface
	destroy func()
	key     string
	name    string

	mu     sync.Mutex
	bitmap allocator.Snapshottable
	// current is the resource version of bitmap; empty when bitmap may differ from every
	// stored version.
	current string

	refused atomic.Pointer[apierrors.StatusError]
}

var (
	_ allocator.Interface           = (*Store)(nil)
	_ rangeallocation.RangeRegistry = (*Store)(nil)
)

// New opens the bitmap called name (such as "serviceips") in the storage that g gives for
// [Resource]. The empty bitmap fixes the size of the range and how the next free number
// is chosen.
func New(g generic.RESTOptionsGetter, name string, bitmap allocator.Snapshottable) (*Store, error) {
	opts, err := g.GetRESTOptions(Resource, &api.RangeAllocation{})
	if err != nil {
		return nil, fmt.Errorf("opening the storage of %s: %w", Resource, err)
	}
	key := "/" + opts.ResourcePrefix + "/" + name
	if opts.ResourcePrefix == "" || opts.ResourcePrefix[0] == '/' {
		key = key[1:]
	}
	s, destroy, err := opts.Decorator(opts.StorageConfig, opts.ResourcePrefix,
		func(runtime.Object) (string, error) { return key, nil },
		func() runtime.Object { return &api.RangeAllocation{} },
		func() runtime.Object { return &api.List{} },
		storage.AttrFunc(storage.DefaultClusterScopedAttr), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("opening the storage of %s: %w", Resource, err)
	}
	return &Store{storage: s, destroy: sync.OnceFunc(destroy), key: key, name: name, bitmap: bitmap}, nil
}

// Allocate hands out the number at offset, and reports whether it was free.
func (s *Store) Allocate(offset int) (bool, error) {
	err := s.update(func() error {
		ok, err := s.bitmap.Allocate(offset)
		if err == nil && !ok {
			err = errTaken
		}
		return err
	})
	if errors.Is(err, errTaken) {
		return false, nil
	}
	return err == nil, err
}

// AllocateNext hands out a free number, and reports whether there was one.
func (s *Store) AllocateNext() (offset int, ok bool, err error) {
	err = s.update(func() error {
		var err error
		offset, ok, err = s.bitmap.AllocateNext()
		if err == nil && !ok {
			err = errTaken
		}
		return err
	})
	if errors.Is(err, errTaken) {
		return 0, false, nil
	}
	return offset, err == nil, err
}

// Release takes back the number at offset; a free number is not an error.
func (s *Store) Release(offset int) error {
	return s.update(func() error { return s.bitmap.Release(offset) })
}

// update changes the bitmap and stores it, repeatedly until no other writer comes in
// between.
func (s *Store) update(change func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	stored := &api.RangeAllocation{}
	err := s.storage.GuaranteedUpdate(context.TODO(), s.key, stored, true, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			existing := obj.(*api.RangeAllocation)
			if existing.ResourceVersion == "" {
				return nil, fmt.Errorf("range %s: %w", s.name, ErrNotReady)
			}
			if existing.ResourceVersion != s.current {
				if err := s.bitmap.Restore(existing.Range, existing.Data); err != nil {
					return nil, fmt.Errorf("range %s: reading the stored bitmap: %w", s.name, err)
				}
			}
			// From here on the bitmap is ahead of the stored one.
			s.current = ""
			if err := change(); err != nil {
				return nil, err
			}
			existing.Range, existing.Data = s.bitmap.Snapshot()
			return existing, nil
		}), nil)
	if err != nil {
		err = storeerr.InterpretUpdateError(err, Resource, s.name)
		s.remember(err)
		return err
	}
	s.current = stored.ResourceVersion
	return nil
}

// remember keeps err for LastRefusal if a later attempt may succeed.
func (s *Store) remember(err error) {
	var status *apierrors.StatusError
	switch {
	case errors.Is(err, ErrNotReady):
		s.refused.Store(apierrors.NewServiceUnavailable(err.Error()))
	case errors.As(err, &status) && apierrors.IsServiceUnavailable(status):
		s.refused.Store(status)
	}
}

// LastRefusal returns the last temporary reason, such as a full disk, why a number could
// not be handed out: a 503, which is another value each time; nil if there was none.
// Kubernetes' registry of services answers 422 for every error of an allocator.
func (s *Store) LastRefusal() *apierrors.StatusError { return s.refused.Load() }

// Get returns the stored bitmap; one that was never stored has no resource version. It removes a
// bitmap that cannot be read: users cannot, because it is not served. The repair controller makes
// it again from the services.
func (s *Store) Get() (*api.RangeAllocation, error) {
	stored := &api.RangeAllocation{}
	err := s.storage.Get(context.TODO(), s.key, storage.GetOptions{IgnoreNotFound: true}, stored)
	if storage.IsCorruptObject(err) {
		slog.Error("Recreated a number range", "range", s.name, "err", err)
		stored = &api.RangeAllocation{}
		err = s.storage.Delete(context.TODO(), s.key, &api.RangeAllocation{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{ExpectTransformOrDecodeError: true})
	}
	if err != nil {
		return nil, storeerr.InterpretGetError(err, Resource, s.name)
	}
	return stored, nil
}

// CreateOrUpdate replaces the stored bitmap by snapshot, a changed result of
// Get. It is a conflict when another writer came between, or when snapshot has
// no resource version and the bitmap exists already.
func (s *Store) CreateOrUpdate(snapshot *api.RangeAllocation) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	stored := &api.RangeAllocation{}
	err := s.storage.GuaranteedUpdate(context.TODO(), s.key, stored, true, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			existing := obj.(*api.RangeAllocation)
			if existing.ResourceVersion != snapshot.ResourceVersion {
				return nil, apierrors.NewConflict(Resource, s.name,
					fmt.Errorf("stored resource version is %q, not %q", existing.ResourceVersion, snapshot.ResourceVersion))
			}
			existing.Range, existing.Data = snapshot.Range, snapshot.Data
			return existing, nil
		}), nil)
	if err != nil {
		return storeerr.InterpretUpdateError(err, Resource, s.name)
	}
	s.current = ""
	if err := s.bitmap.Restore(stored.Range, stored.Data); err != nil {
		return fmt.Errorf("range %s: %w", s.name, err)
	}
	s.current = stored.ResourceVersion
	return nil
}

// ForEach calls fn with each offset that this process last saw handed out.
func (s *Store) ForEach(fn func(offset int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bitmap.ForEach(fn)
}

// Has reports whether this process last saw the number at offset handed out.
func (s *Store) Has(offset int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bitmap.Has(offset)
}

// Free returns how many numbers this process last saw free.
func (s *Store) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bitmap.Free()
}

// Destroy releases the storage; it may be called more than once.
func (s *Store) Destroy() { s.destroy() }
