package harness

import (
	"flag"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// attached is held by the test that uses the server of -attach.
var attached sync.Mutex

var attach = flag.String("attach", "", "data directory of a running server: tests that need no server of their own use this one. It must hold no images")

// Server is a running `tidewaiter serve`.
type Server struct {
	DataDir    string
	Kubeconfig string // the administrator's
	URL        string // as the ready line names it

	balanced bool     // several servers, by turns of connections
	process  *Process // nil for an attached server
	// kubectl's HOME: its discovery cache is keyed by host and port, and ports come round again
	home string
}

// readyLine is the one line a server prints once it serves.
var readyLine = regexp.MustCompile(`(?m)^.*(https://[^\s",]+).*?(\S+admin\.kubeconfig).*\n`)

// StartServer serves a fresh data directory on a free loopback port and waits
// until it is ready.
func StartServer(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartServerOn(t, filepath.Join(t.TempDir(), "data"), args...)
}

// SharedServer is for tests that need an empty server but not to own it: the
// one given by -attach, else a fresh one.
func SharedServer(t testing.TB) *Server {
	t.Helper()
	if *attach == "" {
		return StartServer(t)
	}
	attached.Lock()
	t.Cleanup(attached.Unlock)
	dir, err := filepath.Abs(*attach)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{DataDir: dir, Kubeconfig: filepath.Join(dir, "admin.kubeconfig"), home: t.TempDir()}
	s.URL = s.Config(t).Host
	t.Cleanup(func() { s.DeleteImages(t) })
	return s
}

// DeleteImages deletes all images, and first the tags, because an image is kept that one leads to.
func (s *Server) DeleteImages(t testing.TB) {
	t.Helper()
	s.Kubectl(t, "delete", "imagetags", "--all", "--all-namespaces")
	s.Kubectl(t, "delete", "images", "--all")
}

// StartServerOn serves an existing data directory. Without a configuration among the arguments, no
// cluster runs the images.
func StartServerOn(t testing.TB, dataDir string, args ...string) *Server {
	t.Helper()
	return startServer(t, Binary(t), nil, dataDir, withoutClusters(t, args)...)
}

// StartServerAt is StartServer with a clock that may be wrong.
func StartServerAt(t testing.TB, clock *Clock, args ...string) *Server {
	t.Helper()
	return startServer(t, Binary(t), clock.Env(t, Binary(t)), filepath.Join(t.TempDir(), "data"), withoutClusters(t, args)...)
}

// withoutClusters adds a configuration to arguments that name none.
func withoutClusters(t testing.TB, args []string) []string {
	t.Helper()
	if slices.Contains(args, "--config") {
		return args
	}
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	if err := os.WriteFile(config, []byte("ownPodsOnly: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return append(slices.Clip(args), "--config", config)
}

// StartServerOf serves a fresh data directory with another tidewaiter than the one under test,
// which may not know that configuration.
func StartServerOf(t testing.TB, program string) *Server {
	t.Helper()
	return startServer(t, program, nil, filepath.Join(t.TempDir(), "data"))
}

func startServer(t testing.TB, program string, env []string, dataDir string, args ...string) *Server {
	t.Helper()
	command := ServeCommand(t, dataDir, args...)
	command.Path, command.Env = program, env
	p := Start(t, command)
	match := p.Stdout.AwaitMatch(t, readyLine)
	return &Server{DataDir: dataDir, URL: match[1], Kubeconfig: match[2], process: p, home: t.TempDir()}
}

// ServeCommand is `tidewaiter serve` on a data directory and a free port.
func ServeCommand(t testing.TB, dataDir string, args ...string) Command {
	t.Helper()
	args = append([]string{"serve", "--data-dir", dataDir, "--secure-port", "0"}, args...)
	return Command{Path: Binary(t), Args: args}
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.process.Kill(t)
}

// Terminate sends SIGTERM and returns the exit code.
func (s *Server) Terminate(t testing.TB) int {
	t.Helper()
	s.process.Signal(t, syscall.SIGTERM)
	return s.process.Wait(t)
}

// Signal sends a signal and does not wait.
func (s *Server) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	s.process.Signal(t, sig)
}

// Wait waits for the server's end and returns its exit code.
func (s *Server) Wait(t testing.TB) int {
	t.Helper()
	return s.process.Wait(t)
}

// PID is the server's process.
func (s *Server) PID() int { return s.process.PID() }

// Process is the running program.
func (s *Server) Process() *Process { return s.process }

// Logs is what the server has written, both streams.
func (s *Server) Logs() string { return s.process.Stdout.String() + s.process.Stderr.String() }

// KubectlCommand is kubectl with the administrator's credential.
func (s *Server) KubectlCommand(t testing.TB, args ...string) Command {
	t.Helper()
	return Command{
		Path: Tool(t, "kubectl"),
		Args: append([]string{"--kubeconfig", s.Kubeconfig}, args...),
		Env:  []string{"HOME=" + s.home, "KUBECONFIG="},
	}
}

// TryKubectl runs kubectl, whatever its exit code is.
func (s *Server) TryKubectl(t testing.TB, args ...string) Result {
	t.Helper()
	return Run(t, s.KubectlCommand(t, args...))
}

// Kubectl runs kubectl, fails the test if that fails, and returns its standard
// output.
func (s *Server) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return MustRun(t, s.KubectlCommand(t, args...))
}

// KubectlStdin is Kubectl with something to read, as in `apply -f -`.
func (s *Server) KubectlStdin(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	c := s.KubectlCommand(t, args...)
	c.Stdin = stdin
	return MustRun(t, c)
}

// TryImport runs `tidewaiter import` against the server, whatever its exit
// code is.
func (s *Server) TryImport(t testing.TB, args ...string) Result {
	t.Helper()
	return Run(t, ImportCommand(t, append([]string{"--kubeconfig", s.Kubeconfig}, args...)...))
}

// Import runs `tidewaiter import` against the server, fails the test if that
// fails, and returns its standard output.
func (s *Server) Import(t testing.TB, args ...string) string {
	t.Helper()
	return MustRun(t, ImportCommand(t, append([]string{"--kubeconfig", s.Kubeconfig}, args...)...))
}

// ImportCommand is `tidewaiter import` in an environment without anybody's
// registry credentials or kubeconfig.
func ImportCommand(t testing.TB, args ...string) Command {
	t.Helper()
	home := t.TempDir()
	return Command{
		Path: Binary(t),
		Args: slices.Concat([]string{"import"}, args),
		Env:  []string{"HOME=" + home, "DOCKER_CONFIG=" + home, "REGISTRY_AUTH_FILE=", "XDG_RUNTIME_DIR=", "KUBECONFIG="},
		Dir:  home,
	}
}

// MustRun runs a program, fails the test unless it exits 0, and returns its
// standard output.
func MustRun(t testing.TB, c Command) string {
	t.Helper()
	r := Run(t, c)
	if r.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", c, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Config is a client-go configuration with the administrator's credential and
// no client-side rate limit.
func (s *Server) Config(t testing.TB) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		t.Fatalf("reading %s: %v", s.Kubeconfig, err)
	}
	cfg.QPS = -1
	if s.balanced {
		cfg.NextProtos = []string{"http/1.1"}
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return closing{rt} })
	}
	return cfg
}

// closing closes the connection of each request after it, so that a balancer chooses again.
type closing struct{ http.RoundTripper }

// RoundTrip is part of http.RoundTripper.
func (c closing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Close = true
	return c.RoundTripper.RoundTrip(r)
}

// Anonymous is Config with the server's certificate authority and no
// credential.
func (s *Server) Anonymous(t testing.TB) *rest.Config {
	t.Helper()
	return rest.AnonymousClientConfig(s.Config(t))
}

// Address is the server's host and port.
func (s *Server) Address(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(s.Config(t).Host)
	if err != nil {
		t.Fatalf("the kubeconfig's server: %v", err)
	}
	return u.Host
}
