package coreapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

// hangingDial connects to nothing until hang is closed.
func hangingDial(hang <-chan struct{}) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-hang:
			return nil, errors.New("unreachable")
		}
	}
}

func TestServerHoldsALease(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{Identity: "dock-1"})
	eventually(t, "the server's lease", func() (bool, any) {
		l, err := s.CoordinationV1().Leases("kube-system").Get(t.Context(), "tidewaiter-dock-1", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return *l.Spec.HolderIdentity == "dock-1" && *l.Spec.LeaseDurationSeconds == 40, l
	})
}

// candidate is one elector whose connection to the server can be cut.
type candidate struct {
	name string
	cut  atomic.Bool
	conn sync.Map // net.Conn → nothing
}

// config is s's, through connections that fail while the candidate is cut off.
func (c *candidate) config(s *server) *rest.Config {
	config := rest.CopyConfig(s.config)
	var dialer net.Dialer
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if c.cut.Load() {
			return nil, errors.New("cut off")
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			c.conn.Store(conn, nil)
		}
		return conn, err
	}
	return config
}

func (c *candidate) cutOff() {
	c.cut.Store(true)
	c.conn.Range(func(conn, _ any) bool {
		conn.(net.Conn).Close()
		return true
	})
}

// The leader is cut off from the server; the other candidate takes over once the
// lease has run out, and at no time do both lead.
func TestLeaderElectionHandsOver(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	const duration, deadline, retry = 10 * time.Second, 4 * time.Second, 250 * time.Millisecond
	var leading atomic.Int32
	leaders := make(chan string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()

	candidates := map[string]*candidate{}
	for _, name := range []string{"a", "b"} {
		c := &candidate{name: name}
		candidates[name] = c
		client, err := kubernetes.NewForConfig(c.config(s))
		if err != nil {
			t.Fatal(err)
		}
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: "team", Name: "leader"},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: duration, RenewDeadline: deadline, RetryPeriod: retry,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if n := leading.Add(1); n != 1 {
						t.Errorf("%d candidates lead", n)
					}
					leaders <- name
					<-ctx.Done()
					leading.Add(-1)
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for ctx.Err() == nil {
				elector.Run(ctx)
			}
		})
	}
	next := func() string {
		select {
		case name := <-leaders:
			return name
		case <-time.After(patience):
			t.Fatal("nobody leads")
			return ""
		}
	}
	first := next()
	for range 2 {
		candidates[first].cutOff()
		second := next()
		for second == first { // it had lost the lease before, on a busy machine, and got it again
			second = next()
		}
		candidates[first].cut.Store(false)
		first = second
	}
	lease, err := s.CoordinationV1().Leases("team").Get(t.Context(), "leader", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *lease.Spec.LeaseTransitions < 2 {
		t.Errorf("lease %+v after two hand-overs", lease.Spec)
	}
}

// Two holders that renew one lease from the same version: one is told 409.
func TestStaleRenewalIsAConflict(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	leases := s.CoordinationV1().Leases("team")
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "team", Name: "l"}, Client: s.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "a"}}
	if err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 1}); err != nil {
		t.Fatal(err)
	}
	l, err := leases.Get(t.Context(), "l", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var won, lost atomic.Int32
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			mine := l.DeepCopy()
			who := fmt.Sprint(i)
			mine.Spec.HolderIdentity = &who
			_, err := leases.Update(t.Context(), mine, metav1.UpdateOptions{})
			switch {
			case err == nil:
				won.Add(1)
			case apierrors.IsConflict(err):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 || lost.Load() != 7 {
		t.Errorf("%d renewals succeeded and %d were conflicts, want 1 and 7", won.Load(), lost.Load())
	}
}
