package etcd

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// slowWatch is an etcd whose watches report nothing for some time, as kine's do while it reads many
// changes. The first one reports nothing. The others do after half as long again as an earlier one
// was watched.
type slowWatch struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedWatchServer
	watches, longest atomic.Int64
}

func (*slowWatch) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 7}}, nil
}

func (s *slowWatch) Watch(stream etcdserverpb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	begun, silent := time.Now(), time.Duration(s.longest.Load()*3/2)
	if s.watches.Add(1) == 1 {
		silent = time.Hour
	}
	header := &etcdserverpb.ResponseHeader{Revision: 7}
	if err := stream.Send(&etcdserverpb.WatchResponse{Header: header, Created: true}); err != nil {
		return err
	}
	select {
	case <-time.After(silent):
	case <-stream.Context().Done():
		s.longest.Store(max(s.longest.Load(), int64(time.Since(begun))))
		return stream.Context().Err()
	}
	put := &mvccpb.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte("/p/a"), Value: []byte("{}"), ModRevision: 7}}
	if err := stream.Send(&etcdserverpb.WatchResponse{Header: header, Events: []*mvccpb.Event{put}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// TestSlowWatchIsFollowed: a watch that reports nothing is restarted, and in the end followed, also
// if each takes longer than an earlier one was waited for.
func TestSlowWatchIsFollowed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake, server := &slowWatch{}, grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, fake)
	etcdserverpb.RegisterWatchServer(server, fake)
	go server.Serve(listener)
	defer server.Stop()
	s, err := New(Options{Servers: []string{"http://" + listener.Addr().String()}, Prefix: "/p"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rev, err := s.Head(t.Context()); err != nil || rev != 7 {
		t.Fatalf("Head is %d, %v", rev, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	followed := false
	for !followed && ctx.Err() == nil {
		_ = s.Follow(ctx, 3, func(changes []truth.Change, upTo int64) error {
			if followed = len(changes) == 1 && upTo == 7; followed {
				stop()
			}
			return nil
		})
	}
	if n := fake.watches.Load(); !followed || n < 2 {
		t.Errorf("after %d watches the change is there: %v; want it after the first", n, followed)
	}
}
