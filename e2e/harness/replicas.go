package harness

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// Replicas are servers that share an etcd and their credentials.
type Replicas struct {
	Servers []*Server
	// Args are the arguments of each. A change counts when the server is started again.
	Args [][]string
	// Env is the environment of each beside this program's. A change counts in the same way.
	Env [][]string
	// PKIDir has what they share.
	PKIDir string
}

// StartReplicas starts n servers. The arguments say where etcd is.
func StartReplicas(t testing.TB, n int, args ...string) *Replicas {
	t.Helper()
	return StartReplicasOf(t, Binary(t), n, args...)
}

// StartReplicasOf is StartReplicas with another tidewaiter than the one under test.
func StartReplicasOf(t testing.TB, program string, n int, args ...string) *Replicas {
	t.Helper()
	dir := t.TempDir()
	r := &Replicas{PKIDir: filepath.Join(dir, "pki"), Env: make([][]string, n)}
	if err := os.Mkdir(r.PKIDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		// At this level they say who leads.
		r.Args = append(r.Args, append([]string{"-v", "1", "--pki-dir", r.PKIDir, "--secure-port", FreePort(t)}, args...))
		r.Servers = append(r.Servers, startServer(t, program, nil, filepath.Join(dir, fmt.Sprint(i)), withoutClusters(t, r.Args[i])...))
	}
	return r
}

// Restart starts a server that has ended again.
func (r *Replicas) Restart(t testing.TB, i int) {
	t.Helper()
	r.RestartOf(t, Binary(t), i)
}

// RestartOf is Restart with another tidewaiter than the one under test.
func (r *Replicas) RestartOf(t testing.TB, program string, i int) {
	t.Helper()
	r.Servers[i] = startServer(t, program, r.Env[i], r.Servers[i].DataDir, withoutClusters(t, r.Args[i])...)
}

// Balanced is the servers as one, behind a balancer that gives each connection to the next of them
// that answers. Clients of Config begin a connection for each request.
func (r *Replicas) Balanced(t testing.TB) *Server {
	t.Helper()
	config, err := clientcmd.LoadFromFile(r.Servers[0].Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var addresses []string
	for _, s := range r.Servers {
		addresses = append(addresses, s.Address(t))
	}
	go balance(l, addresses)
	s := &Server{URL: "https://" + l.Addr().String(), home: t.TempDir(), balanced: true}
	s.DataDir = s.home // where the kubeconfig is, as -attach wants it
	s.Kubeconfig = filepath.Join(s.DataDir, "admin.kubeconfig")
	for _, c := range config.Clusters {
		c.Server = s.URL
	}
	if err := clientcmd.WriteToFile(*config, s.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

// balance forwards connections until the listener is closed.
func balance(l net.Listener, addresses []string) {
	for turn := 0; ; turn++ {
		from, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			for i := range addresses {
				to, err := net.Dial("tcp", addresses[(turn+i)%len(addresses)])
				if err != nil {
					continue // it is away
				}
				defer to.Close()
				go func() {
					_, _ = io.Copy(to, from)
					to.Close()
				}()
				_, _ = io.Copy(from, to)
				return
			}
		}()
	}
}

// What a server says when it begins to lead, and when it leads no longer.
const BeginsToLead, EndsToLead = "This server is now the leader", "This server is no longer the leader"

// Leader waits until one of the servers that run leads, and returns which.
func (r *Replicas) Leader(t testing.TB) (leader int) {
	t.Helper()
	Eventually(t, func() error {
		for i, s := range r.Servers {
			logs := s.Logs()
			if leader = i; s.process.Running() && strings.Count(logs, BeginsToLead) > strings.Count(logs, EndsToLead) {
				return nil
			}
		}
		return fmt.Errorf("none of %d servers leads", len(r.Servers))
	})
	return leader
}

// AwaitShared waits until each of the servers that run knows of n that share the imports.
func (r *Replicas) AwaitShared(t testing.TB, n int) {
	t.Helper()
	Eventually(t, func() error {
		for i, s := range r.Servers {
			const message = "This server shares the imports with others"
			logs := s.Logs()
			last := logs[max(0, strings.LastIndex(logs, message)):]
			line, _, _ := strings.Cut(last, "\n")
			if s.process.Running() && !strings.Contains(line, fmt.Sprintf("servers=%d", n)) {
				return fmt.Errorf("server %d says %q, want %d servers", i, line, n)
			}
		}
		return nil
	})
}
