// Command trillian is the Merkle tree below a Rekor log: Trillian's own log
// server and sequencer, in one process and in memory. Trillian's programs want a
// database that both share; nothing else about them is different.
//
//	go run -C e2e/trillian . -listen 127.0.0.1:8090
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/trillian"
	"github.com/google/trillian/extension"
	"github.com/google/trillian/log"
	"github.com/google/trillian/monitoring"
	"github.com/google/trillian/quota"
	"github.com/google/trillian/server"
	"github.com/google/trillian/server/admin"
	"github.com/google/trillian/server/interceptor"
	"github.com/google/trillian/storage/memory"
	"github.com/google/trillian/util/clock"
	"github.com/google/trillian/util/election2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of the gRPC services")
	tree := flag.Bool("tree", false, "make an empty tree and print its ID, for a program that makes none, as ct_server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *tree); err != nil {
		fmt.Fprintln(os.Stderr, "trillian:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, address string, tree bool) error {
	trees := memory.NewTreeStorage()
	registry := extension.Registry{
		AdminStorage:    memory.NewAdminStorage(trees),
		LogStorage:      memory.NewLogStorage(trees, monitoring.InertMetricFactory{}),
		QuotaManager:    quota.Noop(),
		ElectionFactory: election2.NoopFactory{},
		MetricFactory:   monitoring.InertMetricFactory{},
	}
	sequencer := log.NewOperationManager(log.OperationInfo{
		Registry: registry, BatchSize: 100, NumWorkers: 1,
		RunInterval: 50 * time.Millisecond, TimeSource: clock.System,
	}, log.NewSequencerManager(registry, 0))

	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	services := grpc.NewServer(grpc.UnaryInterceptor(interceptor.ErrorWrapper))
	admins, logs := admin.New(registry, nil), server.NewTrillianLogRPCServer(registry, clock.System)
	trillian.RegisterTrillianAdminServer(services, admins)
	trillian.RegisterTrillianLogServer(services, logs)
	if tree {
		made, err := admins.CreateTree(ctx, &trillian.CreateTreeRequest{Tree: &trillian.Tree{
			TreeState: trillian.TreeState_ACTIVE, TreeType: trillian.TreeType_LOG, MaxRootDuration: durationpb.New(time.Hour),
		}})
		if err != nil {
			return err
		}
		if _, err := logs.InitLog(ctx, &trillian.InitLogRequest{LogId: made.TreeId}); err != nil {
			return err
		}
		fmt.Println("tree", made.TreeId)
	}
	go sequencer.OperationLoop(ctx)
	go func() {
		<-ctx.Done()
		services.Stop()
	}()
	fmt.Println("listening on", listener.Addr())
	return services.Serve(listener)
}
