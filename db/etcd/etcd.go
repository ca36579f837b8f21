// Package etcd is a truth.Store in etcd: an object is a key below a prefix, and its revisions are
// etcd's. It uses the same part of etcd's API as Kubernetes.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

const (
	// maxMessage is larger than any etcd's own limit (--max-request-bytes), so that etcd itself
	// refuses a larger object.
	maxMessage = 64 << 20
	// pageKeys is how many keys are read at a time to fill a copy.
	pageKeys = 200
	// A connection to a member that does not answer is closed after keepAlive and keepAliveTimeout.
	// keepAlive is gRPC's minimum.
	keepAlive, keepAliveTimeout = 10 * time.Second, 3 * time.Second
	// writeTimeout bounds a write, and askTimeout each request for a revision to one member; the next
	// request goes to another.
	writeTimeout, askTimeout = 10 * time.Second, time.Second
	// progressAfter is how long to wait for a revision before the watch's progress is requested from
	// etcd: the revision may belong to another prefix.
	progressAfter = 10 * time.Millisecond
	// maxTogether is how many responses of a watch are queued, and how many changes are applied
	// together.
	maxTogether = 64
	// stalledAfter is how long to wait before the watch is restarted at another member. The time
	// doubles up to maxStalled while restarting does not help: kine reports nothing while it reads
	// many changes.
	stalledAfter, maxStalled = 2 * time.Second, 2 * time.Minute
)

// Options of a Store. Their flags are those of kube-apiserver.
type Options struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string // none for plain HTTP
	// Prefix is the prefix of all keys.
	Prefix string
}

// Store is a truth.Store in etcd.
type Store struct {
	client *clientv3.Client
	prefix string // without a slash at its end

	cluster  atomic.Uint64 // the cluster's ID, set by Identity; 0 before
	compress atomic.Bool
	raised   atomic.Bool // the mark allows compressed values
	release  atomic.Pointer[string]

	atLeader *clientv3.Client // sends to one member; nil if there is only one
	route    atomic.Pointer[route]
	finding  atomic.Bool
	found    time.Time // used while finding

	mu     sync.Mutex
	seen   int64         // the watch has reported all changes up to this revision
	limit  time.Duration // how long the watch may report nothing, if longer than stalledAfter
	wanted int64         // callers wait for this revision
	want   chan struct{} // signalled when wanted rises
}

// New returns a Store. It does not wait for etcd.
func New(o Options) (*Store, error) {
	config := clientv3.Config{
		Endpoints:            o.Servers,
		DialTimeout:          20 * time.Second,
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTimeout,
		PermitWithoutStream:  true,
		MaxCallSendMsgSize:   maxMessage,
		MaxCallRecvMsgSize:   1<<31 - 1,
		BackoffWaitBetween:   50 * time.Millisecond,
		Logger:               zap.NewNop(), // callers report failures
		MaxUnaryRetries:      2,
	}
	if len(o.Servers) == 0 {
		return nil, errors.New("etcd: no servers are given")
	}
	if o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" {
		var err error
		config.TLS, err = transport.TLSInfo{TrustedCAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	s := &Store{client: client, prefix: strings.TrimSuffix("/"+strings.Trim(o.Prefix, "/"), "/"), want: make(chan struct{}, 1)}
	s.route.Store(&route{kv: client.KV})
	if len(o.Servers) > 1 {
		config.Endpoints = o.Servers[:1]
		if s.atLeader, err = clientv3.New(config); err != nil {
			return nil, errors.Join(fmt.Errorf("etcd: %w", err), client.Close())
		}
	}
	return s, nil
}

// Compress sets whether the Store compresses large values that it writes. The first compressed
// value locks out servers of releases that cannot read it. So before turning it on, the caller must
// know that no such server is running.
func (s *Store) Compress(on bool) { s.compress.Store(on) }

// Close ends all calls.
func (s *Store) Close() error {
	err := s.client.Close()
	if s.atLeader != nil {
		err = errors.Join(err, s.atLeader.Close())
	}
	return err
}

// Identity is a hash of the cluster's ID and the prefix. A restored cluster has the same ID if its
// members have the same names and addresses. After this call, other calls fail with
// truth.ErrReplaced if another cluster answers.
func (s *Store) Identity(ctx context.Context) (int64, error) {
	r, err := s.linearizableRead(ctx)
	if err != nil {
		return 0, err
	}
	s.cluster.Store(r.ClusterId)
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%d %s", r.ClusterId, s.prefix)
	return int64(sum.Sum64()>>2) | 1, nil
}

// linearizableRead sends an empty linearizable read. If a member does not answer, it tries the
// next.
func (s *Store) linearizableRead(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		route := s.route.Load()
		r, err := route.kv.Get(attempt, s.prefix+"/", clientv3.WithLimit(1), clientv3.WithKeysOnly())
		cancel()
		switch {
		case err == nil:
			s.heard(r.Header.RaftTerm)
			return r.Header, nil
		case route.term != 0:
			s.lost(route)
		case !passing(err):
			return nil, err
		case ctx.Err() != nil:
			return nil, fmt.Errorf("etcd at %s has not answered: %w", strings.Join(s.client.Endpoints(), ", "), err)
		}
	}
}

// passing reports whether another member may answer after this error.
func passing(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || code(err) == codes.DeadlineExceeded || code(err) == codes.Unavailable
}

func code(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}

// known fails if an answer is not from the cluster that Identity returned.
func (s *Store) known(h *etcdserverpb.ResponseHeader) error {
	if want := s.cluster.Load(); want != h.ClusterId {
		return fmt.Errorf("%w: its cluster ID is %x, and was %x", truth.ErrReplaced, h.ClusterId, want)
	}
	return nil
}

// Head is part of truth.Store.
func (s *Store) Head(ctx context.Context) (int64, error) {
	h, err := s.linearizableRead(ctx)
	if err == nil {
		err = s.known(h)
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = max(s.wanted, h.Revision)
	s.pressIfBehind()
	return h.Revision, nil
}

// pressIfBehind wakes press if callers wait for the watch. The caller holds mu.
func (s *Store) pressIfBehind() {
	if s.wanted > s.seen {
		select {
		case s.want <- struct{}{}:
		default:
		}
	}
}

// Put is part of truth.Store.
func (s *Store) Put(ctx context.Context, key string, expect int64, value []byte, expires int64) (int64, error) {
	return s.commit(ctx, key, expect, clientv3.OpPut(s.prefix+key, string(pack(value, expires, s.zips(ctx, value)))))
}

// Delete is part of truth.Store.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	if expect == 0 { // etcd would compare with a key that does not exist
		return 0, truth.ErrConflict
	}
	return s.commit(ctx, key, expect, clientv3.OpDelete(s.prefix+key))
}

// commit writes a key if it is at a revision. The transaction has the form of Kubernetes' own,
// which is the only form that replacements of etcd support.
func (s *Store) commit(ctx context.Context, key string, expect int64, write clientv3.Op) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.prefix+key), "=", expect)).
		Then(write).Else(clientv3.OpGet(s.prefix+key, clientv3.WithKeysOnly())).Commit()
	if err == nil {
		if err := s.known(r.Header); err != nil {
			return 0, &truth.UnknownError{Err: err}
		}
		if !r.Succeeded {
			return r.Header.Revision, truth.ErrConflict
		}
		return r.Header.Revision, nil
	}
	return 0, refusal(err)
}

// refusal returns the error of package truth for a failed write.
func refusal(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return &truth.RefusedError{Reason: "etcd has no space left and accepts only deletions: see --quota-backend-bytes of etcd, compact and defragment it, and end the alarm (etcdctl alarm disarm)", Err: err}
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return &truth.TooLargeError{Reason: "the object is too large for etcd: see its flag --max-request-bytes", Err: err}
	}
	switch code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.FailedPrecondition:
		return &truth.RefusedError{Reason: "etcd has refused a write", Err: err}
	}
	return &truth.UnknownError{Err: fmt.Errorf("etcd has not answered: %w", err)}
}

// Range is part of truth.Store.
func (s *Store) Range(ctx context.Context, from string, rev int64) (page []truth.Change, at int64, more bool, err error) {
	end := clientv3.GetPrefixRangeEnd(s.prefix + "/")
	r, err := s.client.KV.Get(ctx, s.prefix+max(from, "/"), clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(rev))
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = truth.ErrCompacted
	}
	if err == nil {
		err = s.known(r.Header)
	}
	if err != nil {
		return nil, 0, false, err
	}
	if rev == 0 {
		rev = r.Header.Revision
	}
	for _, kv := range r.Kvs {
		if is, err := s.isMark(ctx, kv, false); err != nil {
			return nil, 0, false, err
		} else if is {
			continue
		}
		c := truth.Change{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Rev: kv.ModRevision}
		read(&c, kv.Value)
		page = append(page, c)
	}
	return page, rev, r.More, nil
}

// read sets the value of a change. If the value cannot be read, read sets Unreadable, so that other
// keys are not delayed.
func read(c *truth.Change, stored []byte) {
	if c.Value, c.Expires, c.Unreadable = unpack(stored); c.Unreadable != nil {
		c.Value, c.Expires = stored, 0
	}
}

// errStalled says that the watch does not reach a revision that etcd has.
var errStalled = errors.New("etcd's watch reports nothing: restarting it at another member")

// Follow implements truth.Store. Only one may run at a time.
func (s *Store) Follow(ctx context.Context, from int64, apply func([]truth.Change, int64) error) error {
	// A separate watcher has a separate connection, which ends with it.
	watcher := clientv3.NewWatcher(s.client)
	defer watcher.Close()
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	s.mu.Lock()
	s.seen = from
	s.pressIfBehind()
	s.mu.Unlock()
	go s.press(ctx, cancel, watcher)
	events := watcher.Watch(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(from+1), clientv3.WithProgressNotify(), clientv3.WithFragment())
	waiting := make(chan clientv3.WatchResponse, maxTogether)
	go func() {
		defer close(waiting)
		for r := range events {
			select {
			case waiting <- r:
			case <-ctx.Done(): // the watch ends, too
			}
		}
	}()
	for r := range waiting {
		changes, err := s.changes(ctx, nil, &from, r)
		for more := true; more && err == nil && len(changes) < maxTogether; {
			// also take what came during the last apply
			select {
			case r, more = <-waiting:
				if more {
					changes, err = s.changes(ctx, changes, &from, r)
				}
			default:
				more = false
			}
		}
		if len(changes) > 0 || err == nil {
			err = errors.Join(apply(changes, from), err)
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		if from > s.seen {
			s.seen, s.limit = from, 0
		}
		s.mu.Unlock()
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New("etcd's watch has ended")
}

// changes appends the changes in a watch's response to to. It sets from to the revision up to which
// the watch has reported everything.
func (s *Store) changes(ctx context.Context, to []truth.Change, from *int64, r clientv3.WatchResponse) ([]truth.Change, error) {
	if err := r.Err(); err != nil {
		if errors.Is(err, rpctypes.ErrCompacted) {
			err = truth.ErrCompacted
		}
		return to, err
	}
	if err := s.known(r.Header); err != nil {
		return to, err
	}
	for _, e := range r.Events {
		c := truth.Change{Key: strings.TrimPrefix(string(e.Kv.Key), s.prefix), Rev: e.Kv.ModRevision, Deleted: e.Type == clientv3.EventTypeDelete}
		if is, err := s.isMark(ctx, e.Kv, c.Deleted); err != nil {
			return to, err
		} else if is {
			*from = c.Rev
			continue
		}
		if !c.Deleted {
			read(&c, e.Kv.Value)
		}
		to = append(to, c)
		*from = c.Rev
	}
	if r.IsProgressNotify() {
		*from = r.Header.Revision
	}
	return to, nil
}

// press requests the watch's progress while a caller waits for a later revision. If the watch does
// not answer, press ends it.
func (s *Store) press(ctx context.Context, stop context.CancelCauseFunc, w clientv3.Watcher) {
	for {
		select {
		case <-s.want:
		case <-ctx.Done():
			return
		}
		var waited time.Duration
		for last := int64(-1); ; {
			select {
			case <-time.After(progressAfter):
			case <-ctx.Done():
				return
			}
			s.mu.Lock()
			seen, wanted, limit := s.seen, s.wanted, max(s.limit, stalledAfter)
			s.mu.Unlock()
			if seen >= wanted {
				break
			}
			if waited += progressAfter; seen > last {
				last, waited = seen, 0
			}
			if waited >= limit {
				s.mu.Lock()
				s.limit = min(2*limit, maxStalled)
				s.mu.Unlock()
				stop(errStalled)
				return
			}
			_ = w.RequestProgress(ctx) // repeated in a moment
		}
	}
}

// compactEvery is kube-apiserver's interval. Changes are kept for at least this long, and at most
// twice as long.
const compactEvery = 5 * time.Minute

// KeepCompact compacts old changes in etcd until ctx is done. A copy that was away for longer is
// filled again.
func (s *Store) KeepCompact(ctx context.Context) error {
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for before := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var err error
		if before > 0 {
			_, err = s.client.KV.Compact(ctx, before)
		}
		if err == nil || errors.Is(err, rpctypes.ErrCompacted) {
			before, err = s.Head(ctx)
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("compacting etcd failed, will retry: until then it keeps old changes", "err", err)
		}
	}
}
