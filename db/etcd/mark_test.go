package etcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// memory is an etcd in memory, as far as Claim needs it.
type memory struct {
	clientv3.KV
	mu   sync.Mutex
	rev  int64
	keys map[string]*mvccpb.KeyValue
	// read, if not nil, is called before a key is read.
	read func(key string)
}

func newMemory() *memory { return &memory{rev: 1, keys: map[string]*mvccpb.KeyValue{}} }

// store returns a Store that uses m.
func (m *memory) store(prefix string) *Store {
	s := &Store{client: &clientv3.Client{KV: m}, prefix: prefix, want: make(chan struct{}, 1)}
	s.route.Store(&route{kv: m})
	return s
}

func (m *memory) put(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	m.keys[key] = &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: m.rev}
}

func (m *memory) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: m.rev}
}

func (m *memory) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if m.read != nil {
		m.read(key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	op := clientv3.OpGet(key, opts...)
	r := &clientv3.GetResponse{Header: m.header()}
	for k, kv := range m.keys {
		if k == key || len(op.RangeBytes()) > 0 && k >= key && k < string(op.RangeBytes()) {
			r.Kvs = append(r.Kvs, kv)
		}
	}
	slices.SortFunc(r.Kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(string(a.Key), string(b.Key)) })
	if len(r.Kvs) > 2 { // pages
		r.Kvs, r.More = r.Kvs[:2], true
	}
	return r, nil
}

func (m *memory) Delete(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.keys, key)
	return &clientv3.DeleteResponse{Header: m.header()}, nil
}

// txn is a transaction in the only form that a Store commits.
type txn struct {
	m      *memory
	expect int64
	then   clientv3.Op
	clientv3.Txn
}

func (m *memory) Txn(context.Context) clientv3.Txn { return &txn{m: m} }

func (t *txn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.expect = c[0].GetCompare().GetModRevision()
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = ops[0]; return t }
func (t *txn) Else(...clientv3.Op) clientv3.Txn     { return t }

func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	key, have := string(t.then.KeyBytes()), int64(0)
	t.m.mu.Lock()
	if kv := t.m.keys[key]; kv != nil {
		have = kv.ModRevision
	}
	t.m.mu.Unlock()
	if have != t.expect {
		return &clientv3.TxnResponse{Header: t.m.header()}, nil
	}
	t.m.put(key, string(t.then.ValueBytes()))
	return &clientv3.TxnResponse{Header: t.m.header(), Succeeded: true}, nil
}

// TestClaim: servers can share a prefix. A server whose prefix is above or below another one is
// refused, whichever came first, and leaves no key.
func TestClaim(t *testing.T) {
	for _, c := range []struct {
		first, second string
		refused       bool
	}{
		{"/a", "/a", false},
		{"/a", "/ab", false},
		{"/a/b", "/a/c", false},
		{"/a", "/a/b", true},
		{"/a/b/c", "/a", true},
		{"", "/a", true},
		{"/a", "", true},
		{"/a", "/a/image.openshift.io", true},
	} {
		m := newMemory()
		if err := m.store(c.first).Claim(t.Context(), "1"); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"/1", "/2", "/3"} { // several pages
			m.put(c.first+key, "{}")
		}
		keys := len(m.keys)
		err := m.store(c.second).Claim(t.Context(), "1")
		refused, ok := errors.AsType[*ClaimError](err)
		switch {
		case ok != c.refused || err != nil && !ok:
			t.Errorf("%q beside %q: %v", c.second, c.first, err)
		case ok && (!strings.Contains(err.Error(), shown(c.first)) || !strings.Contains(refused.Hint, "--etcd-prefix")):
			t.Errorf("%q beside %q: %v, %s", c.second, c.first, err, refused.Hint)
		case ok && len(m.keys) != keys:
			t.Errorf("%q beside %q: it leaves a key", c.second, c.first)
		}
		if err := m.store(c.first).Claim(t.Context(), "1"); err != nil {
			t.Errorf("%q again, after %q: %v", c.first, c.second, err)
		}
	}
}

// TestClaimAtOnce: if two servers start at once and one's prefix is above the other's, at least one
// is refused.
func TestClaimAtOnce(t *testing.T) {
	m := newMemory()
	m.read = func(key string) {
		if key == markKey { // both servers have checked, and /a has not written yet
			m.read = nil
			if err := m.store("/a/b").Claim(t.Context(), "1"); err != nil {
				t.Error(err)
			}
		}
	}
	if err := m.store("/a").Claim(t.Context(), "1"); err == nil {
		t.Error("both have their prefix")
	}
}

// TestFormat: a server refuses a format that it cannot read, at its start and while it runs. The
// first compressed value raises the format. The mark is not an object.
func TestFormat(t *testing.T) {
	m := newMemory()
	s := m.store("/p")
	if err := s.Claim(t.Context(), "1.0"); err != nil {
		t.Fatal(err)
	}
	large := []byte(strings.Repeat("{}", minZipped))
	format := func() string { return string(m.keys["/p"+markKey].Value) }
	put := func(key string, want string) {
		t.Helper()
		if _, err := s.Put(t.Context(), key, 0, large, 0); err != nil {
			t.Fatal(err)
		}
		if got := format(); !strings.HasPrefix(got, want) {
			t.Errorf("after %s the mark is %s, want %s", key, got, want)
		}
	}
	put("/as-is", `{"format":1,"release":"1.0"`)
	s.Compress(true)
	put("/zipped", `{"format":2,"release":"1.0"`)
	if len(m.keys["/p/zipped"].Value) >= len(large) {
		t.Error("the value is not compressed")
	}
	page, _, _, err := s.Range(t.Context(), "", 0)
	if err != nil || slices.ContainsFunc(page, func(c truth.Change) bool { return c.Key == markKey }) {
		t.Errorf("there is %v, %v", page, err)
	}
	event := func(kind mvccpb.Event_EventType, value string) error {
		t.Helper()
		upTo := int64(0)
		changes, err := s.changes(t.Context(), nil, &upTo, clientv3.WatchResponse{Header: m.header(), Events: []*clientv3.Event{{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte("/p" + markKey), Value: []byte(value), ModRevision: 9}}}})
		if len(changes) != 0 || err == nil && upTo != 9 {
			t.Errorf("a watch reports %v up to %d", changes, upTo)
		}
		return err
	}
	const later = `{"format":3,"release":"2.0"}`
	// A newer mark that was written by mistake and removed does not stop a server that reads it later.
	if err := event(clientv3.EventTypePut, later); err != nil {
		t.Error(err)
	}
	for value, newer := range map[string]bool{format(): false, "{}": false, "\x01": false, later: true} {
		m.put("/p"+markKey, value)
		if err := event(clientv3.EventTypePut, value); (err != nil) != newer {
			t.Errorf("a running server reads %q: %v", value, err)
		}
	}
	if err := event(clientv3.EventTypeDelete, ""); err != nil {
		t.Error(err)
	}
	for value, want := range map[string]string{later: `"2.0"`, "{}": "does not say", "\x01": "does not say", "null": "does not say"} {
		m.put("/p"+markKey, value)
		err := m.store("/p").Claim(t.Context(), "1.0")
		if refused, ok := errors.AsType[*ClaimError](err); !ok || !strings.Contains(err.Error(), want) || refused.Hint == "" || format() != value {
			t.Errorf("a server starts where the mark is %q: %v", value, err)
		}
	}
	m.put("/p"+markKey, later)
	if _, _, _, err := s.Range(t.Context(), "", 0); err == nil {
		t.Error("a copy is filled from a format that cannot be read")
	}
}

// FuzzMark: an invalid mark is refused with a hint, and an accepted mark has a format that this
// release reads.
func FuzzMark(f *testing.F) {
	for _, seed := range []string{`{"format":1}`, `{"format":2,"release":"1.0"}`, `{"format":99}`, `{"format":-1}`, `{"format":"1"}`, "null", "", "\x01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		m, err := (&Store{prefix: "/p"}).parseMark(value)
		switch refused, ok := errors.AsType[*ClaimError](err); {
		case err == nil && (m.Format < formatAsIs || m.Format > Format):
			t.Errorf("%q has format %d", value, m.Format)
		case err != nil && (!ok || refused.Hint == "" || len(err.Error()) > 1000):
			t.Errorf("%q: %v", value, err)
		}
	})
}
