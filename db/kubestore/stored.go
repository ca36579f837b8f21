package kubestore

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
)

// ReadStored returns the stored bytes of the object called name below the Store's prefix,
// and its revision. The bytes have no resourceVersion and must not be changed. If has is not nil
// and reports true for the revision, because the caller has the object, ReadStored may return only
// the revision.
func (s *Store) ReadStored(ctx context.Context, name string, has func(rev int64) bool) (data []byte, rev int64, err error) {
	key, err := s.prepareKey(s.resourcePrefix+name, false)
	if err != nil {
		return nil, 0, err
	}
	held := false
	kv, ok, err := s.db.GetUnless(ctx, key, func(rev int64) bool {
		held = has != nil && has(rev)
		return held
	})
	if err != nil {
		return nil, 0, s.interpret(err)
	}
	if !ok {
		return nil, 0, storage.NewKeyNotFoundError(key, 0)
	}
	if held && kv.Value == nil && kv.Err == nil {
		return nil, kv.Rev, nil
	}
	data, _, err = s.plain(ctx, kv)
	return data, kv.Rev, err
}

// ScanStored calls each with the objects at revision rev, 0 for now, in the order of their names
// below the Store's prefix. It begins with the name from, and ends after limit objects or size
// bytes. With size 0 it reads no data. An object that cannot be read has err and no data.
// ScanStored returns the revision that it has read, whether more objects follow, and, if count is
// true, how many. The next call continues with the last name and a zero byte as from.
func (s *Store) ScanStored(ctx context.Context, from string, rev int64, limit, size int, count bool,
	each func(name string, rev int64, data []byte, err error)) (at int64, more bool, remaining int64, err error) {
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return 0, false, 0, err
	}
	page, err := s.db.Range(ctx, db.RangeOptions{Prefix: prefix, From: prefix + from, Rev: rev, Limit: limit, Bytes: size, KeysOnly: size == 0, Count: count})
	if err != nil {
		return 0, false, 0, s.interpretList(err, rev, from != "", prefix+from, prefix)
	}
	for _, kv := range page.KVs {
		var data []byte
		var err error
		if size > 0 {
			if data, _, err = s.plain(ctx, kv); err != nil {
				err = fmt.Errorf("unable to read key %q: %w", kv.Key, err)
			}
		}
		each(strings.TrimPrefix(kv.Key, prefix), kv.Rev, data, err)
	}
	return page.Rev, page.More, page.Remaining, nil
}

// Hold keeps the objects at revision rev, and the changes after it, readable until release is
// called, for an hour at most; see db.DB.Hold.
func (s *Store) Hold(rev int64) (release func()) { return s.db.Hold(rev) }

// Totals returns how many objects there are now, and their bytes.
func (s *Store) Totals(ctx context.Context) (objects, bytes int64, err error) {
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return 0, 0, err
	}
	objects, bytes, err = s.db.Totals(ctx, prefix)
	if err != nil {
		return 0, 0, s.interpret(err)
	}
	return objects, bytes, nil
}
