package main

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

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
	return serveWith(t, serverOptions{dataDir: dir}, listener)
}

func serveWith(t testing.TB, o serverOptions, listener net.Listener) *restclient.Config {
	t.Helper()
	s, err := openServer(t.Context(), o, listener)
	if err != nil {
		t.Fatal(err)
	}
	return runServer(t, s)
}

// runServer runs s until the test ends. It returns once s is ready, with an
// administrator's configuration for it.
func runServer(t testing.TB, s *server) *restclient.Config {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.run(ctx, func(context.Context) error {
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
	config, err := kubeconfigConfig(s.credentials.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return newAPITarget(config).config
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

// damaged is a data directory with a damaged object.
func damaged(t *testing.T, key string) string {
	t.Helper()
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Put(t.Context(), key, 0, []byte("{}"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	dbtest.Damage(t, d, key)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A server that a damaged pod keeps from being ready serves on: the pod can be
// deleted, and then it is ready.
func TestServerThatIsNotReady(t *testing.T) {
	s, err := openServer(t.Context(), serverOptions{dataDir: damaged(t, "/core/pods/default/wreck")}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	mended := make(chan error, 1)
	var once sync.Once
	s.readyTimeout = 100 * time.Millisecond
	s.notReady = func(error) { once.Do(func() { go func() { mended <- deleteWreck(s.credentials.Kubeconfig) }() }) }
	runServer(t, s)
	if err := <-mended; err != nil {
		t.Error(err)
	}
}

// deleteWreck deletes the damaged pod by way of the server of a kubeconfig.
func deleteWreck(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	unsafe := true
	return client.CoreV1().Pods("default").Delete(context.Background(), "wreck", metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &unsafe})
}

// A server that is told to stop before it is ready, here as a damaged service
// keeps it from that, stops like any other. It used to end the process.
func TestServerStopsBeforeItIsReady(t *testing.T) {
	s, err := openServer(t.Context(), serverOptions{dataDir: damaged(t, "/core/services/default/wreck")}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := s.run(ctx, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond) // for what it started to notice
}
