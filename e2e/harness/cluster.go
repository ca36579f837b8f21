package harness

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster is a real control plane: etcd, kube-apiserver and the controllers of
// kube-controller-manager that need no node.
type Cluster struct {
	// URL is where kube-apiserver is.
	URL string

	dir       string
	home      string
	args      []string // of kube-apiserver
	accounts  string   // the key of service accounts
	etcd      *Process // nil if the etcd was there before
	apiserver *Process
}

// Users of a cluster, besides its administrator "admin": their tokens are their names.
var clusterUsers = []string{"viewer", "nobody"}

// StartCluster starts a control plane and waits until it is ready.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := startAPIServer(t, "--unsafe-no-fsync")
	Start(t, Command{Path: Tool(t, "kube-controller-manager"), Args: []string{"--kubeconfig", c.Kubeconfig(t, "admin", "admin"), "--secure-port", "0",
		"--leader-elect=false", "--controllers", "clusterrole-aggregation-controller,namespace-controller,serviceaccount-controller,garbage-collector-controller", "--service-account-private-key-file", c.accounts,
		"--authentication-skip-lookup", "--authorization-always-allow-paths", "*"}})
	return c
}

// StartAPIServer starts kube-apiserver and etcd alone. Unlike that of [StartCluster], this etcd
// waits for the disk.
func StartAPIServer(t testing.TB) *Cluster {
	t.Helper()
	return startAPIServer(t)
}

// StartAPIServers starts n kube-apiservers that share an etcd, their credentials and their serving
// certificate.
func StartAPIServers(t testing.TB, e *Etcd, n int) []*Cluster {
	t.Helper()
	all := []*Cluster{newAPIServer(t, e.Servers)}
	for len(all) < n {
		other, port := *all[0], FreePort(t)
		other.URL = "https://127.0.0.1:" + port
		other.args = append(slices.Clone(other.args), "--secure-port", port) // the last one counts
		other.start(t)
		all = append(all, &other)
	}
	return all
}

func startAPIServer(t testing.TB, etcdArgs ...string) *Cluster {
	t.Helper()
	e := StartEtcd(t, 1, etcdArgs...)
	c := newAPIServer(t, e.Servers)
	c.etcd = e.processes[0]
	return c
}

// newAPIServer starts kube-apiserver over an etcd that runs.
func newAPIServer(t testing.TB, etcdServers string) *Cluster {
	t.Helper()
	c := &Cluster{dir: t.TempDir(), home: t.TempDir()}
	port := FreePort(t)
	c.URL = "https://127.0.0.1:" + port
	proxy, clients := NewAuthority(t, c.dir, "front-proxy"), NewAuthority(t, c.dir, "clients")
	proxyCert, proxyKey := proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)
	c.accounts = writeKey(t, filepath.Join(c.dir, "service-accounts.key"), newKey(t))
	tokens := "admin,admin,admin,system:masters\n"
	for _, user := range clusterUsers {
		tokens += strings.Join([]string{user, user, user}, ",") + "\n"
	}
	c.write(t, "tokens.csv", tokens)
	c.args = []string{
		"--etcd-servers", etcdServers, "--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", filepath.Join(c.dir, "serving"),
		"--authorization-mode", "RBAC", "--token-auth-file", filepath.Join(c.dir, "tokens.csv"), "--service-cluster-ip-range", "10.96.0.0/16",
		"--service-account-issuer", "https://cluster.local", "--service-account-key-file", c.accounts, "--service-account-signing-key-file", c.accounts,
		"--client-ca-file", clients.File, "--requestheader-client-ca-file", proxy.File, "--requestheader-allowed-names", "front-proxy-client", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", proxyCert, "--proxy-client-key-file", proxyKey, "--endpoint-reconciler-type", "none",
	}
	c.start(t)
	return c
}

// Config reaches the cluster as its administrator, with no limit of its own.
func (c *Cluster) Config(t testing.TB) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(t, "admin", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// Processes are kube-apiserver, and etcd if it was started for it alone.
func (c *Cluster) Processes() []*Process {
	if c.etcd == nil {
		return []*Process{c.apiserver}
	}
	return []*Process{c.apiserver, c.etcd}
}

func (c *Cluster) start(t testing.TB) {
	t.Helper()
	c.apiserver = Start(t, Command{Path: Tool(t, "kube-apiserver"), Args: c.args})
	c.AwaitReady(t)
}

// AwaitReady waits until kube-apiserver is ready.
func (c *Cluster) AwaitReady(t testing.TB) {
	t.Helper()
	Eventually(t, func() error {
		if _, err := os.Stat(filepath.Join(c.dir, "serving", "apiserver.crt")); err != nil {
			return err
		}
		if !c.apiserver.Running() {
			t.Fatalf("kube-apiserver ended: %s", c.apiserver.Stderr)
		}
		if r := c.TryKubectl(t, "admin", "get", "--raw", "/readyz"); r.Code != 0 {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
}

// Restart kills kube-apiserver as kill -9 does and starts it again.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	c.apiserver.Signal(t, syscall.SIGKILL)
	c.apiserver.Wait(t)
	c.start(t)
}

// Kubeconfig reaches the cluster with a token and returns the file's path.
func (c *Cluster) Kubeconfig(t testing.TB, name, token string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.URL, CertificateAuthority: filepath.Join(c.dir, "serving", "apiserver.crt")}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return c.write(t, name+".kubeconfig", string(data))
}

// KubectlCommand is kubectl as "admin", "viewer" or "nobody".
func (c *Cluster) KubectlCommand(t testing.TB, user string, args ...string) Command {
	t.Helper()
	if user != "admin" && !slices.Contains(clusterUsers, user) {
		t.Fatalf("the cluster has no user %q", user)
	}
	return Command{Path: Tool(t, "kubectl"), Args: append([]string{"--kubeconfig", c.Kubeconfig(t, user, user)}, args...), Env: []string{"HOME=" + c.home, "KUBECONFIG="}}
}

// TryKubectl runs kubectl as a user, whatever its exit code is.
func (c *Cluster) TryKubectl(t testing.TB, user string, args ...string) Result {
	t.Helper()
	return Run(t, c.KubectlCommand(t, user, args...))
}

// Kubectl runs kubectl as the administrator, fails the test if that fails, and returns its standard
// output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return MustRun(t, c.KubectlCommand(t, "admin", args...))
}

// Apply is kubectl apply of documents.
func (c *Cluster) Apply(t testing.TB, documents string, args ...string) string {
	t.Helper()
	command := c.KubectlCommand(t, "admin", append([]string{"apply", "-f", "-"}, args...)...)
	command.Stdin = documents
	return MustRun(t, command)
}

func (c *Cluster) write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Programs under test are given ports below those that Linux gives to whoever asks for any
// (ip_local_port_range, from 32768): one of those may go to another connection before the program
// listens, which takes seconds on a busy machine.
const firstPort, lastPort = 10000, 32767

// ports counts the ports that were given. It begins anywhere, because the tests of several packages
// run side by side.
var ports = func() *atomic.Uint32 {
	var n atomic.Uint32
	n.Store(rand.Uint32N(lastPort - firstPort + 1))
	return &n
}()

// FreePort is a port of 127.0.0.1 that nobody listens on, and that is given to no other caller in
// this process.
func FreePort(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		port := strconv.Itoa(firstPort + int(ports.Add(1)%(lastPort-firstPort+1)))
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal(err)
	return ""
}
