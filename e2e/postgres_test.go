//go:build nightly

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// address is an address that leads to one PostgreSQL or another.
type address struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    []net.Conn
}

func newAddress(t *testing.T, to string) *address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	a := &address{listener: l, to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go a.forward(c)
		}
	}()
	return a
}

func (a *address) forward(c net.Conn) {
	defer c.Close()
	a.mu.Lock()
	address := a.to
	a.conns = append(a.conns, c)
	a.mu.Unlock()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer c.Close()
		_, _ = io.Copy(c, to)
	}()
	_, _ = io.Copy(to, c)
}

// lead ends the connections, and leads new ones elsewhere.
func (a *address) lead(to string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to = to
	for _, c := range a.conns {
		c.Close()
	}
	a.conns = nil
}

// keepKine has a kine run until the test ends, and starts it again if it ends, as systemd does.
func keepKine(t *testing.T, endpoint string) (servers string) {
	t.Helper()
	listen := "127.0.0.1:" + harness.FreePort(t)
	kine := harness.KineCommand(t, endpoint, listen)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			c := exec.CommandContext(ctx, kine.Path, kine.Args...)
			c.Dir = kine.Dir
			_ = c.Run()
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return "http://" + listen
}

// TestKineWhilePostgresFails: two servers over kine lose no acknowledged write while PostgreSQL is
// killed and starts again, and while its standby takes over; in the end both have the same.
func TestKineWhilePostgresFails(t *testing.T) {
	t.Parallel()
	primary := harness.StartPostgres(t)
	standby := primary.Standby(t)
	database := newAddress(t, primary.Address)
	servers := keepKine(t, harness.KineEndpoint(database.listener.Addr().String()))
	r := &replicas{Replicas: harness.StartReplicas(t, 2, "--etcd-servers", servers)}
	r.connect(t)

	// Writes go on at both servers in turn. One that may have happened is tried until it has.
	acknowledged, failed, made := sets.New[string](), 0, make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		defer close(made)
		for n := 0; ctx.Err() == nil; {
			name := fmt.Sprintf("w-%05d", n)
			_, err := r.clients[n%2].CoordinationV1().Leases("default").Create(ctx, counter(name, 0), metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				failed++
				continue
			}
			select {
			case made <- name:
				n++
			case <-ctx.Done():
			}
		}
	})
	more := func(n int) {
		t.Helper()
		for deadline := time.After(5 * time.Minute); n > 0; n-- {
			select {
			case name := <-made:
				acknowledged.Insert(name)
			case <-deadline:
				t.Fatalf("writes do not go on: %d more are missing after %d, %d tries failed", n, len(acknowledged), failed)
			}
		}
	}
	more(100)
	for range 3 {
		primary.Process.Kill(t)
		primary.Start(t)
		more(100)
	}
	primary.Process.Kill(t)
	standby.Do(t, "SELECT pg_promote()")
	database.lead(standby.Address)
	more(100)
	cancel()
	writing.Wait()
	t.Logf("%d writes were acknowledged through three kills and a takeover; %d tries failed", len(acknowledged), failed)

	var lists [2]string
	for i, c := range r.clients {
		harness.Eventually(t, func() error {
			list, err := c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			has := sets.New[string]()
			var all []string
			for _, l := range list.Items {
				has.Insert(l.Name)
				all = append(all, l.Name+"@"+l.ResourceVersion)
			}
			if lost := sets.List(acknowledged.Difference(has)); len(lost) > 0 {
				t.Fatalf("server %d lacks %d acknowledged writes: %q", i, len(lost), lost[:min(len(lost), 5)])
			}
			slices.Sort(all)
			lists[i] = strings.Join(all, " ")
			return nil
		})
	}
	if lists[0] != lists[1] {
		t.Errorf("the servers differ:\n%s\n%s", lists[0], lists[1])
	}
}
