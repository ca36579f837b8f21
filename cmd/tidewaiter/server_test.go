package main

import (
	"context"
	"net"
	"os"
	"testing"

	restclient "k8s.io/client-go/rest"
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
	target, err := newAPITarget(s.credentials.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return target.config
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
