//go:build nightly

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// postgres is a PostgreSQL of this machine.
type postgres struct {
	programs, dir, data, port string
	process                   *harness.Process
}

// newPostgres prepares one. It skips the test if the machine has none.
func newPostgres(t *testing.T) *postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	must(t, err)
	if len(found) == 0 {
		t.Skip("this machine has no PostgreSQL (Debian's package postgresql)")
	}
	// a directory of the test is not passable for another user
	dir, err := os.MkdirTemp("", "postgres")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		must(t, os.Chown(dir, 65534, 65534))
	}
	return &postgres{programs: filepath.Dir(found[len(found)-1]), dir: dir, data: filepath.Join(dir, "data"), port: harness.FreePort(t)}
}

// command is one of PostgreSQL's programs, which refuse to run as root.
func (p *postgres) command(program string, args ...string) harness.Command {
	c := harness.Command{Path: filepath.Join(p.programs, program), Args: args, Dir: p.dir}
	if os.Geteuid() == 0 {
		c.Args = append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", c.Path}, args...)
		c.Path = "/usr/bin/setpriv"
	}
	return c
}

func (p *postgres) run(t *testing.T, program string, args ...string) {
	t.Helper()
	harness.MustRun(t, p.command(program, args...))
}

// start starts it, and waits until it answers.
func (p *postgres) start(t *testing.T, args ...string) {
	t.Helper()
	p.process = harness.Start(t, p.command("postgres", append([]string{"-D", p.data, "-p", p.port, "-k", p.dir, "-c", "listen_addresses=127.0.0.1"}, args...)...))
	harness.Eventually(t, func() error {
		if got := harness.Run(t, p.command("pg_isready", "-h", "127.0.0.1", "-p", p.port)); got.Code != 0 {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
}

// do runs a statement.
func (p *postgres) do(t *testing.T, sql string) string {
	t.Helper()
	return strings.TrimSpace(harness.MustRun(t, p.command("psql", "-h", "127.0.0.1", "-p", p.port, "-U", "kine", "-d", "postgres", "-Atc", sql)))
}

// standby starts another that has each commit before it is acknowledged.
func (p *postgres) standby(t *testing.T) *postgres {
	t.Helper()
	s := newPostgres(t)
	s.run(t, "pg_basebackup", "-h", "127.0.0.1", "-p", p.port, "-U", "kine", "-D", s.data, "-R", "-X", "stream")
	s.start(t)
	p.do(t, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	p.do(t, "SELECT pg_reload_conf()")
	harness.Eventually(t, func() error {
		if state := p.do(t, "SELECT sync_state FROM pg_stat_replication"); state != "sync" {
			return fmt.Errorf("the standby is %q", state)
		}
		return nil
	})
	return s
}

// address is an address that leads to one PostgreSQL or another.
type address struct {
	listener net.Listener
	mu       sync.Mutex
	port     string
	conns    []net.Conn
}

func newAddress(t *testing.T, port string) *address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	a := &address{listener: l, port: port}
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
	port := a.port
	a.conns = append(a.conns, c)
	a.mu.Unlock()
	to, err := net.Dial("tcp", "127.0.0.1:"+port)
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

// lead ends the connections, and leads new ones to another port.
func (a *address) lead(port string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.port = port
	for _, c := range a.conns {
		c.Close()
	}
	a.conns = nil
}

// keepKine has a kine run until the test ends, and starts it again if it ends, as systemd does.
func keepKine(t *testing.T, endpoint string) (servers string) {
	t.Helper()
	listen := "127.0.0.1:" + harness.FreePort(t)
	program, dir := harness.Tool(t, "kine"), t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			c := exec.CommandContext(ctx, program, "--endpoint", endpoint, "--listen-address", listen, "--metrics-bind-address", "0", "--datastore-poll-interval", "100ms")
			c.Dir = dir
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
	primary := newPostgres(t)
	primary.run(t, "initdb", "-D", primary.data, "-U", "kine", "-A", "trust")
	primary.start(t)
	standby := primary.standby(t)
	database := newAddress(t, primary.port)
	servers := keepKine(t, kineOver(database.listener.Addr().String()))
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
		primary.process.Kill(t)
		primary.start(t)
		more(100)
	}
	primary.process.Kill(t)
	standby.do(t, "SELECT pg_promote()")
	database.lead(standby.port)
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
