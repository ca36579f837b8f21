package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// The mark is a key below the prefix. It shows that the prefix is taken, and which format a server
// must at least be able to read. Only a Store sees it: it is not an object.
const markKey = "/tidewaiter.dev/format"

// The formats; docs/tasks/scale.md lists them. If a release writes what an earlier one would
// misread, it gets the next number.
const (
	formatAsIs   = 1 // uncompressed values, with or without a time of expiry
	formatZipped = 2 // also compressed values
	// Format is the newest format that this release reads.
	Format = formatZipped
)

// mark is the value of markKey.
type mark struct {
	Format int `json:"format"`
	// Release is the release of the server that raised the format.
	Release string `json:"release"`
}

// scanKeys is the page size of the search for marks below the prefix.
const scanKeys = 10_000

// ClaimError says why a prefix cannot be used, and what to do.
type ClaimError struct {
	Reason, Hint string
	newer        bool // a later release has raised the format above what this one reads
}

func (e *ClaimError) Error() string { return e.Reason }

func asClaim(err error) bool {
	_, ok := errors.AsType[*ClaimError](err)
	return ok
}

func newer(err error) bool {
	e, ok := errors.AsType[*ClaimError](err)
	return ok && e.newer
}

// overlaps returns the error for a prefix that is above or below another.
func overlaps(prefix, other string) error {
	return &ClaimError{
		Reason: fmt.Sprintf("the prefix %s in etcd cannot be used: other servers use %s, and each would take the other's objects for its own", shown(prefix), shown(other)),
		Hint:   "give an --etcd-prefix that is neither above nor below another",
	}
}

// shown returns a prefix in the form of --etcd-prefix.
func shown(prefix string) string { return cmp.Or(prefix, "/") }

// Claim claims the prefix for this store's servers. It fails with a *ClaimError if the prefix
// overlaps another or this release cannot read its format. If etcd does not answer, it fails with
// another error.
func (s *Store) Claim(ctx context.Context, release string) error {
	s.release.Store(&release)
	if _, err := s.Identity(ctx); err != nil {
		return err
	}
	have, _, err := s.readMark(ctx)
	if err != nil {
		return err
	}
	if have == nil {
		// Check first, so that a refused prefix gets no mark: the mark would block others.
		if err := s.checkPrefix(ctx, true); err != nil {
			return err
		}
		if err := s.raise(ctx, formatAsIs); err != nil {
			return err
		}
	}
	err = s.checkPrefix(ctx, have == nil) // if two servers start at once, at least one sees the other's mark
	if asClaim(err) && have == nil {
		_, removal := s.client.KV.Delete(ctx, s.prefix+markKey)
		err = errors.Join(err, removal)
	}
	return err
}

// Readable fails with a *ClaimError if a later release has raised the format above what this one
// reads.
func (s *Store) Readable(ctx context.Context) error {
	_, _, err := s.readMark(ctx)
	return err
}

// raise raises the format in the mark, so that servers that cannot read it do not start.
func (s *Store) raise(ctx context.Context, format int) error {
	release := ""
	if r := s.release.Load(); r != nil {
		release = *r
	}
	value, err := json.Marshal(mark{format, release})
	if err != nil {
		return err
	}
	for {
		have, rev, err := s.readMark(ctx)
		if err != nil || have != nil && have.Format >= format {
			return err
		}
		if _, err = s.commit(ctx, markKey, rev, clientv3.OpPut(s.prefix+markKey, string(value))); !errors.Is(err, truth.ErrConflict) {
			return err
		}
	}
}

// zips reports whether to compress a value. Before the first compressed value it raises the format.
func (s *Store) zips(ctx context.Context, value []byte) bool {
	if !s.compress.Load() || len(value) < minZipped {
		return false
	}
	if !s.raised.Load() {
		s.raised.Store(s.raise(ctx, formatZipped) == nil) // if this fails, the next value tries again
	}
	return s.raised.Load()
}

// get reads a key or a range from etcd.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.client.KV.Get(ctx, key, opts...)
}

// readMark returns the mark of the prefix, nil if there is none.
func (s *Store) readMark(ctx context.Context) (m *mark, rev int64, err error) {
	r, err := s.get(ctx, s.prefix+markKey)
	if err != nil || len(r.Kvs) == 0 {
		return nil, 0, err
	}
	m, err = s.parseMark(r.Kvs[0].Value)
	return m, r.Kvs[0].ModRevision, err
}

// parseMark parses the mark. It fails with a *ClaimError if this release does not read the format.
func (s *Store) parseMark(value []byte) (*mark, error) {
	m := &mark{}
	switch err := json.Unmarshal(value, m); {
	case err != nil || m.Format < formatAsIs:
		return nil, &ClaimError{
			Reason: fmt.Sprintf("the key %s in etcd does not say which format the data has", s.prefix+markKey),
			Hint:   fmt.Sprintf(`if all servers are of this release, write {"format":%d} to it with etcdctl`, Format),
		}
	case m.Format > Format:
		return nil, &ClaimError{
			Reason: fmt.Sprintf("the data below %s in etcd has format %d, written by Tidewaiter %.40q, and this release reads formats up to %d", shown(s.prefix), m.Format, m.Release, Format),
			Hint:   "run that release, or a later one", newer: true,
		}
	}
	return m, nil
}

// isMark reports whether a key is the mark, which copies leave out. If a later release has raised
// the format, and the mark in etcd still shows it, isMark fails with a *ClaimError: this release
// would misread later values.
func (s *Store) isMark(ctx context.Context, kv *mvccpb.KeyValue, deleted bool) (is bool, err error) {
	if key, ok := strings.CutPrefix(string(kv.Key), s.prefix); !ok || key != markKey {
		return false, nil
	}
	_, err = s.parseMark(kv.Value)
	if deleted || !newer(err) {
		return true, nil // the next start reports any other fault of the mark
	}
	if _, _, err = s.readMark(ctx); err != nil && !newer(err) && asClaim(err) {
		err = nil
	}
	return true, err
}

// checkPrefix fails with *ClaimError if there is a mark above the prefix, or, if below is set,
// below it.
func (s *Store) checkPrefix(ctx context.Context, below bool) error {
	for i := strings.LastIndexByte(s.prefix, '/'); i >= 0; i = strings.LastIndexByte(s.prefix[:i], '/') {
		above := s.prefix[:i]
		switch r, err := s.get(ctx, above+markKey, clientv3.WithKeysOnly()); {
		case code(err) == codes.PermissionDenied: // then servers above cannot write here, either
		case err != nil:
			return err
		case len(r.Kvs) > 0:
			return overlaps(s.prefix, above)
		}
	}
	if !below {
		return nil
	}
	end := clientv3.GetPrefixRangeEnd(s.prefix + "/")
	for from := s.prefix + "/"; ; {
		r, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(scanKeys), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		for _, kv := range r.Kvs {
			if other, ok := strings.CutSuffix(string(kv.Key), markKey); ok && other != s.prefix {
				return overlaps(s.prefix, other)
			}
		}
		if !r.More {
			return nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}
