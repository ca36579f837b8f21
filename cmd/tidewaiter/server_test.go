package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// ownPodsOnly is the configuration of tests' servers that follow no cluster.
const ownPodsOnly = "ownPodsOnly: true\n"

// serve runs the whole server over a data directory of its own until the test
// ends, and returns an administrator's configuration for it.
func serve(t testing.TB) *restclient.Config {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, t.TempDir(), listener)
}

func serveOn(t testing.TB, dir string, listener net.Listener) *restclient.Config {
	t.Helper()
	return serveWith(t, server.Options{DataDir: dir}, listener)
}

// httpClient is a client of a server, with the user of its configuration.
func httpClient(t testing.TB, config *restclient.Config) *http.Client {
	t.Helper()
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func serveWith(t testing.TB, o server.Options, listener net.Listener) *restclient.Config {
	t.Helper()
	if o.ConfigFile == "" {
		o.ConfigFile = servertest.WriteConfig(t, ownPodsOnly)
	}
	s, err := server.Open(t.Context(), o, listener)
	if err != nil {
		t.Fatal(err)
	}
	return runServer(t, s)
}

// runServer runs s until the test ends. It returns once s is ready, with an
// administrator's configuration for it.
func runServer(t testing.TB, s *server.Server) *restclient.Config {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(context.Context) error {
			close(ready)
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	config, err := kubeconfigConfig(s.Credentials.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return newAPITarget(config).Config
}

// entries are the names in a folder.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// damaged is a data directory with damaged objects.
func damaged(t *testing.T, keys ...string) string {
	t.Helper()
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if _, err := d.Put(t.Context(), key, 0, []byte("{}"), db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		dbtest.Damage(t, d, key)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A damaged pod and a damaged service keep nothing else from working: the server
// is ready, names them in its log, and serves others until they are deleted.
func TestDamagedObjectsHoldUpNothing(t *testing.T) {
	t.Parallel()
	dir := damaged(t, "/core/pods/default/wrecked-pod", "/core/services/default/wrecked-service")
	s := runProcess(t, dir)
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	sound, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "sound"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil || sound.Spec.ClusterIP == "" {
		t.Errorf("a service beside the damaged one: address %q, %v", sound.Spec.ClusterIP, err)
	}
	log, err := os.ReadFile(s.cmd.Stderr.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"wrecked-pod", "wrecked-service"} {
		if !strings.Contains(string(log), name) {
			t.Errorf("the log does not name %s:\n%s", name, log)
		}
	}
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(bool)}
	*unsafe.IgnoreStoreReadErrorWithClusterBreakingPotential = true
	if err := client.CoreV1().Pods("default").Delete(t.Context(), "wrecked-pod", unsafe); err != nil {
		t.Error(err)
	}
	if err := client.CoreV1().Services("default").Delete(t.Context(), "wrecked-service", unsafe); err != nil {
		t.Error(err)
	}
	if list, err := client.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("after the deletion: %v", err)
	}
}

// A server that is not ready for long says so, and serves on.
func TestServerThatIsNotReady(t *testing.T) {
	s, err := server.Open(t.Context(), server.Options{DataDir: t.TempDir()}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	s.ReadyTimeout = time.Nanosecond
	s.NotReady = func(err error) {
		told++
		s.ReadyTimeout = time.Minute
	}
	runServer(t, s)
	if told != 1 {
		t.Errorf("told %d times that it was not ready, want once", told)
	}
}

// A server that is told to stop before it is ready stops like any other. It used
// to end the process.
func TestServerStopsBeforeItIsReady(t *testing.T) {
	s, err := server.Open(t.Context(), server.Options{DataDir: t.TempDir()}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := s.Run(ctx, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	// What it started ends, too, and nothing of that ends the process.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stacks.String(), "PostStartHook") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a hook goes on after the server has stopped")
		}
	}
}
