package kubestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/db"
)

// Config describes the objects of one Store.
type Config struct {
	DB *db.DB
	// Codec encodes objects for storage and decodes what is stored.
	Codec runtime.Codec
	// New and NewList return an empty object and list.
	New, NewList func() runtime.Object
	// Prefix is prepended to every key; "" is "/".
	Prefix string
	// ResourcePrefix is the prefix of every key given to the Store; it starts with "/" and is longer.
	ResourcePrefix string
	GroupResource  schema.GroupResource
	// Transformer changes values on their way to and from the file. Default identity.
	Transformer value.Transformer
	// Triggers and Indexers are kept as indexes in the database. A list whose predicate
	// names one of them reads only what matches.
	Triggers storage.IndexerFuncs
	Indexers cache.Indexers
	// Unconverted is true if objects have the same Go type in memory and in storage, so that a written
	// object is returned without decoding it.
	Unconverted bool
	// ProgressInterval is the pause between progress notifications of a watch that requests them.
	// Default 5 seconds.
	ProgressInterval time.Duration
	// BookmarkInterval is the pause between bookmarks of a watch that allows
	// them. Default 1 minute.
	BookmarkInterval time.Duration

	// budget is shared by the Stores of a Getter. If it is nil, the Store makes its own.
	budget *budget
}

// Store keeps the objects of one resource in a db.DB. It implements
// storage.Interface with the semantics of the etcd3 store of k8s.io/apiserver.
type Store struct {
	db             *db.DB
	codec          runtime.Codec
	versioner      storage.Versioner
	transformer    value.Transformer
	pathPrefix     string
	resourcePrefix string
	groupResource  schema.GroupResource
	newFunc        func() runtime.Object
	unconverted    bool
	indexes        []*index
	recents        recents
	budget         *budget
	progress       time.Duration
	bookmark       time.Duration

	mu          sync.Mutex
	watches     map[*watchChan]struct{}
	sizeEnabled bool
}

var _ storage.Interface = (*Store)(nil)

// New returns the Store that cfg describes.
func New(cfg Config) (*Store, error) {
	switch rp := cfg.ResourcePrefix; {
	case rp == "":
		return nil, errors.New("resourcePrefix cannot be empty")
	case rp == "/":
		return nil, errors.New("resourcePrefix cannot be /")
	case !strings.HasPrefix(rp, "/"):
		return nil, errors.New("resourcePrefix needs to start from /")
	}
	s := &Store{
		db:             cfg.DB,
		codec:          cfg.Codec,
		versioner:      storage.APIObjectVersioner{},
		transformer:    cfg.Transformer,
		pathPrefix:     path.Join("/", cfg.Prefix),
		resourcePrefix: cfg.ResourcePrefix,
		groupResource:  cfg.GroupResource,
		newFunc:        cfg.New,
		unconverted:    cfg.Unconverted,
		progress:       cmp.Or(cfg.ProgressInterval, 5*time.Second),
		bookmark:       cmp.Or(cfg.BookmarkInterval, time.Minute),
		watches:        map[*watchChan]struct{}{},
		budget:         cfg.budget,
	}
	if s.budget == nil {
		s.budget = newBudget(nil, nil, nil, nil)
	}
	if s.transformer == nil {
		s.transformer = identity.NewEncryptCheckTransformer()
	}
	if unsafeDeletionEnabled() {
		s.transformer = markingTransformer{s.transformer}
	}
	if !strings.HasSuffix(s.pathPrefix, "/") {
		s.pathPrefix += "/"
	}
	if err := s.declareIndexes(cfg.Triggers, cfg.Indexers); err != nil {
		return nil, err
	}
	return s, nil
}

// keyContext ties a transformed value to its key, as etcd3's store does, so
// that an encrypted value cannot be moved to another key.
type keyContext string

func (k keyContext) AuthenticatedData() []byte { return []byte(k) }

// prepareKey returns the key in the database. For an invalid key it returns 400.
func (s *Store) prepareKey(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(s.resourcePrefix, key, recursive)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	key = s.pathPrefix + strings.TrimPrefix(key, "/")
	if len(key) > db.MaxKeySize {
		return "", apierrors.NewBadRequest(fmt.Sprintf("the name is too long: with its resource and namespace it has %d bytes, and at most %d are stored", len(key), db.MaxKeySize))
	}
	return key, nil
}

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// decode decodes stored bytes into obj and gives it the revision.
func (s *Store) decode(ctx context.Context, kv db.KV, obj runtime.Object) error {
	data, _, err := s.plain(ctx, kv)
	if err != nil {
		return storage.NewInternalError(err)
	}
	return s.decodeData(data, obj, kv.Rev)
}

// plain returns the encoded object of a stored value, and whether the
// transformer wants it rewritten.
func (s *Store) plain(ctx context.Context, kv db.KV) (data []byte, stale bool, err error) {
	if kv.Err != nil {
		return nil, false, markDamaged(kv.Err, kv.Rev)
	}
	return s.transformer.TransformFromStorage(ctx, kv.Value, keyContext(kv.Key))
}

func (s *Store) decodeData(data []byte, obj runtime.Object, rev int64) error {
	if _, _, err := s.codec.Decode(data, nil, obj); err != nil {
		return markUndecodable(err, rev)
	}
	return s.versioner.UpdateObject(obj, uint64(rev))
}

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	since, err := s.since(opts.ResourceVersion)
	if err != nil {
		return err
	}
	kv, ok, rev, err := s.db.GetSince(ctx, key, since)
	if err != nil {
		return s.interpret(err)
	}
	s.budget.read(ctx, 1, len(kv.Value))
	if err := s.checkMinimum(opts.ResourceVersion, rev); err != nil {
		return err
	}
	if !ok {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	return s.decode(ctx, kv, out)
}

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	if rv, err := s.versioner.ObjectResourceVersion(obj); err == nil && rv != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := runtime.Encode(s.codec, obj)
	if err != nil {
		return err
	}
	rev, err := s.put(ctx, key, 0, data, obj, ttl)
	if errors.Is(err, db.ErrConflict) {
		return storage.NewKeyExistsError(key, 0)
	}
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	return s.returnWritten(key, data, obj, out, rev)
}

// returnWritten sets out to the object that was written at rev: obj, whose encoding is data.
func (s *Store) returnWritten(key string, data []byte, obj, out runtime.Object, rev int64) error {
	if !s.unconverted || reflect.TypeOf(obj) != reflect.TypeOf(out) {
		err := s.decodeData(data, out, rev)
		if err == nil && !s.unconverted {
			s.recents.add(key, out, rev, data)
		}
		return err
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj.DeepCopyObject()).Elem())
	return s.versioner.UpdateObject(out, uint64(rev))
}

// put writes the encoded obj. Errors other than db.ErrConflict are interpreted.
func (s *Store) put(ctx context.Context, key string, expect int64, data []byte, obj runtime.Object, ttl uint64) (int64, error) {
	stored, err := s.transformer.TransformToStorage(ctx, data, keyContext(key))
	if err != nil {
		return 0, storage.NewInternalError(err)
	}
	entries, err := s.indexEntries(obj)
	if err != nil {
		return 0, err
	}
	resume := s.budget.pause(ctx)
	rev, err := s.db.Put(ctx, key, expect, stored, db.PutOptions{TTL: seconds(ttl), Index: entries})
	resume()
	if err != nil && !errors.Is(err, db.ErrConflict) {
		err = s.interpret(err)
	}
	return rev, err
}

// seconds converts a TTL without overflow; 0 means no TTL.
func seconds(ttl uint64) time.Duration {
	const most = uint64(100 * 365 * 24 * time.Hour / time.Second)
	return time.Duration(min(ttl, most)) * time.Second
}

// since returns the oldest revision that a request with a resource version may read; 0 means a
// state that is not older than the request.
func (s *Store) since(resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	rev, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return max(1, int64(rev)), nil
}

// checkMinimum enforces "not older than": a client that has seen a later revision than have gets an
// error to try again later.
func (s *Store) checkMinimum(resourceVersion string, have int64) error {
	if resourceVersion == "" {
		return nil
	}
	want, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if want > uint64(have) {
		return storage.NewTooLargeResourceVersionError(want, uint64(have), 0)
	}
	return nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	if err := s.db.CatchUp(ctx, 0); err != nil {
		return 0, s.interpret(err)
	}
	return uint64(s.db.Revision()), nil
}

// CompactRevision implements storage.Interface.
func (s *Store) CompactRevision() int64 { return s.db.CompactedRevision() }

// ReadinessCheck implements storage.Interface.
func (s *Store) ReadinessCheck() error { return nil }
