package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	restclient "k8s.io/client-go/rest"
)

// An attacker opens 10,000 connections and leaves them idle, some of them behind
// a TLS handshake, some with half a request, while the server may open 512 files.
// Whoever comes meanwhile is served.
func TestTenThousandIdleConnections(t *testing.T) {
	t.Parallel()
	const dials, kept, every = 10_000, 600, 1000
	s := runProcessAfter(t, "ulimit -n 512", t.TempDir())
	address := strings.TrimPrefix(s.config.Host, "https://")
	tlsConfig, err := restclient.TLSConfigFor(s.config)
	if err != nil {
		t.Fatal(err)
	}
	honest := func(when string) {
		t.Helper()
		// A new connection each time.
		transport := &http.Transport{TLSClientConfig: tlsConfig.Clone(), ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
		for _, path := range []string{"/readyz", "/apis/image.openshift.io/v1/images?limit=1"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+s.config.BearerToken)
			resp, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s: %s", when, path, resp.Status)
			}
		}
	}
	// The attacker holds more than the server does, and no more than its own
	// descriptors allow.
	held := make([]net.Conn, kept)
	defer func() {
		for _, conn := range held {
			if conn != nil {
				conn.Close()
			}
		}
	}()
	for i := range dials {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		switch i % 10 {
		case 0:
			// What the server thinks of it is not the attacker's concern.
			conn = tls.Client(conn, tlsConfig.Clone())
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
		case 1:
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1})
		}
		if old := held[i%kept]; old != nil {
			old.Close()
		}
		held[i%kept] = conn
		if i%every == every-1 {
			honest(fmt.Sprintf("after %d idle connections", i+1))
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err == nil && len(open) > 400 {
		t.Errorf("the server holds %d of 512 descriptors; some are to be left for its files", len(open))
	}
	log, err := os.ReadFile(s.cmd.Stderr.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "too many open files") || !strings.Contains(string(log), "as many connections as the server holds") {
		t.Errorf("the log:\n%s", log)
	}
}
