package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/peers"
)

// The leader's Lease, in kube-system. A server that ends gives it up; the work of one that vanishes
// is taken over after leaseDuration and one retry.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	leaseRetry    = 2 * time.Second
)

// electAndRun runs the tasks until ctx is done or one of them fails.
func (s *Server) electAndRun(ctx context.Context) error {
	var every, one []Task
	for _, t := range s.Tasks {
		if t.One && s.etcd != nil {
			one = append(one, t)
		} else {
			every = append(every, t)
		}
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return runAll(ctx, every) })
	if len(one) > 0 {
		running.Go(func() error { return lead(ctx, s.Web.ClientConfig(), s.pushes.peers.Self(), one) })
	}
	return running.Wait()
}

func runAll(ctx context.Context, tasks []Task) error {
	running, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		running.Go(func() error { return t.Run(ctx) })
	}
	return running.Wait()
}

// leads is 1 while this one of several servers leads.
var leads = meter.Gauge("", "leader", "1 while this server leads: it does what one of several servers does; 0 otherwise.")

// lead runs tasks whenever this server leads, until ctx is done or a task fails.
func lead(ctx context.Context, config *restclient.Config, identity string, tasks []Task) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	meter.Register(meter.Process, leads)
	for ctx.Err() == nil {
		ended := make(chan error, 1)
		led := false
		// The term outlasts ctx until the tasks have ended: the next leader does not begin beside
		// them.
		term, cancel := context.WithCancel(context.WithoutCancel(ctx))
		var begun sync.Once
		stop := context.AfterFunc(ctx, func() { begun.Do(cancel) })
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name:            peers.LeaderLease,
			Lock:            seenLock{&resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: peers.LeaderLease}, Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}}, &led},
			LeaseDuration:   leaseDuration,
			RenewDeadline:   renewDeadline,
			RetryPeriod:     leaseRetry,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(term context.Context) {
					ctx, stop := context.WithCancel(ctx)
					defer stop()
					context.AfterFunc(term, stop)
					begun.Do(func() {}) // from now on the end of the tasks ends the term
					leads.Set(1)
					slog.Info("This server is now the leader and runs the singleton tasks", "identity", identity)
					err := runAll(ctx, tasks)
					if ctx.Err() != nil {
						err = nil // its term has ended
					} else if err == nil {
						<-ctx.Done()
					}
					leads.Set(0)
					ended <- err
					cancel()
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			cancel()
			return err
		}
		elector.Run(term)
		stop()
		cancel()
		if !led {
			continue
		}
		slog.Info("This server is no longer the leader", "identity", identity)
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// seenLock notes that its holder has become the leader, before others can see it.
type seenLock struct {
	*resourcelock.LeaseLock
	led *bool
}

// RecordEvent is part of [resourcelock.Interface].
func (l seenLock) RecordEvent(string) { *l.led = true }
