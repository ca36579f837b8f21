package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestNoAnswerSaysWhere: if etcd does not answer in time, the error names its address.
func TestNoAnswerSaysWhere(t *testing.T) {
	const server = "http://127.0.0.1:9"
	s, err := New(Options{Servers: []string{server}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Head(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), server) {
		t.Errorf("Head is %v", err)
	}
}

// TestUnreadableIsReported: a value that cannot be unpacked is reported with its stored bytes, and
// does not hide the other changes of the same watch response.
func TestUnreadableIsReported(t *testing.T) {
	s := &Store{prefix: "/p"}
	put := func(key, value string, rev int64) *clientv3.Event {
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte("/p" + key), Value: []byte(value), ModRevision: rev}}
	}
	var upTo int64
	changes, err := s.changes(t.Context(), nil, &upTo, clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{}, Events: []*clientv3.Event{
		put("/a", "{}", 5), put("/short", "\x01\x00", 6), put("/later", "\x08", 7), put("/zip", "\x02\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0f", 8),
		put("/before", "\x01\xff\x00\x00\x00\x00\x00\x00\x00", 9), put("/z", "{}", 10),
	}})
	if err != nil || len(changes) != 6 || upTo != 10 {
		t.Fatalf("%d changes up to %d, %v", len(changes), upTo, err)
	}
	for _, c := range changes {
		if readable := len(c.Key) == 2; readable != (c.Unreadable == nil) || len(c.Value) == 0 || c.Expires != 0 {
			t.Errorf("%s is %q until %d, unreadable: %v", c.Key, c.Value, c.Expires, c.Unreadable)
		}
	}
}
