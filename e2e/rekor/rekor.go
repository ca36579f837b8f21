// Package rekor runs the real services of the sigstore project on loopback for the end-to-end
// tests: transparency logs, a timestamp authority, and a certificate authority with its log.
package rekor

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Log is a running transparency log, with the files that cosign needs for it.
type Log struct {
	Version int
	URL     string
	Key     string // file with its public key, PEM
	Origin  string // of version 2: what its checkpoints are signed as

	// URL of the timestamp authority beside it; "" for version 1, which tells the time itself
	TSA      string
	TSAChain string // file with the authority's certificates, PEM
}

var (
	trillianListens = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	rekorServes     = regexp.MustCompile(`Serving rekor server at (http://127\.0\.0\.1:\d+)`)
	stampsServed    = regexp.MustCompile(`Serving timestamp server at (http://127\.0\.0\.1:\d+)`)
)

// Start starts an empty log of version 1 with a key of its own: rekor-server,
// with Trillian in memory below it.
func Start(t testing.TB) *Log {
	t.Helper()
	metricsPort.share(t)
	return start(t)
}

func start(t testing.TB) *Log {
	t.Helper()
	trillian := harness.Start(t, harness.Command{Path: harness.Tool(t, "trillian")})
	_, port, err := net.SplitHostPort(trillian.Stdout.AwaitMatch(t, trillianListens)[1])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	server := harness.Start(t, harness.Command{
		Path: harness.Tool(t, "rekor-server"),
		Args: []string{"serve", "--rekor_server.address", "127.0.0.1", "--port", "0", "--rekor_server.signer", "memory",
			"--trillian_log_server.port", port,
			// All but the searches, which want a Redis server.
			"--enabled_api_endpoints", "getLogInfo,getPublicKey,getLogProof,createLogEntry,getLogEntryByIndex,getLogEntryByUUID"},
		Env: []string{"HOME=" + dir},
		Dir: dir,
	})
	l := &Log{Version: 1, URL: server.Stderr.AwaitMatch(t, rekorServes)[1]}
	l.Key = write(t, dir, "rekor.pub", get(t, l.URL+"/api/v1/log/publicKey"))
	return l
}

// StartV2 starts an empty log of version 2 with a key of its own, and a timestamp
// authority, which waits for its port of metrics. A test that has a log of version 1
// must not start one of version 2.
func StartV2(t testing.TB) *Log {
	t.Helper()
	metricsPort.take(t)
	l := &Log{Version: 2}
	l.startAuthority(t)
	l.startTiles(t)
	return l
}

// StartBoth starts a log of each version, with the timestamp authority of both, as StartV2 does.
func StartBoth(t testing.TB) (v1, v2 *Log) {
	t.Helper()
	v2 = StartV2(t)
	v1 = start(t) // it does without the port that the authority has
	v1.TSA, v1.TSAChain = v2.TSA, v2.TSAChain
	return v1, v2
}

func (l *Log) startAuthority(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	stamps := harness.Start(t, harness.Command{
		Path: harness.Tool(t, "timestamp-server"),
		Args: []string{"serve", "--host", "127.0.0.1", "--port", "0", "--timestamp-signer", "memory", "--disable-ntp-monitoring"},
		Env:  []string{"HOME=" + dir},
		Dir:  dir,
	})
	l.TSA = stamps.Stderr.AwaitMatch(t, stampsServed)[1] + "/api/v1/timestamp"
	l.TSAChain = write(t, dir, "tsa.pem", get(t, l.TSA+"/certchain"))
}

func (l *Log) startTiles(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	l.Origin = "127.0.0.1" // sigstore-go expects the host of the URL
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l.Key = write(t, dir, "rekor.pub", encode(t, "PUBLIC KEY", public, x509.MarshalPKIXPublicKey))
	key := write(t, dir, "rekor.key", encode(t, "PRIVATE KEY", private, x509.MarshalPKCS8PrivateKey))
	// The server wants ports by number and cannot choose free ones.
	ports := freePorts(t, 3)
	harness.Start(t, harness.Command{
		Path: harness.Tool(t, "posix"),
		Args: []string{"serve", "--hostname", l.Origin, "--storage-dir", filepath.Join(dir, "tiles"), "--signer-filepath", key,
			"--http-port", ports[0], "--grpc-port", ports[1], "--http-metrics-port", ports[2],
			"--batch-max-age", "50ms", "--checkpoint-interval", "200ms"},
		Env: []string{"HOME=" + dir},
		Dir: dir,
	})
	l.URL = "http://127.0.0.1:" + ports[0]
	awaitService(t, l.URL+"/healthz")
}

// awaitService waits until a service answers.
func awaitService(t testing.TB, url string) {
	t.Helper()
	harness.Eventually(t, func() error {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	})
}

func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

func encode(t testing.TB, what string, key any, marshal func(any) ([]byte, error)) []byte {
	t.Helper()
	der, err := marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: what, Bytes: der})
}

func write(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func get(t testing.TB, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %v: %s", url, resp.Status, err, body)
	}
	return body
}
