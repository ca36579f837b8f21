package web_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/tidewaiter/tidewaiter/web"
)

// server is a running API server without any storage: only what package web owns.
type server struct {
	url         string
	credentials *web.Credentials
	web         *web.Server
	stop        context.CancelFunc
	stopped     chan error
}

func start(t *testing.T, hooks http.Handler) *server {
	t.Helper()
	return startIn(t, t.TempDir(), func(c *web.Config) { c.Hooks = hooks })
}

func startIn(t *testing.T, dir string, edit func(*web.Config)) *server {
	t.Helper()
	credentials, err := web.LoadCredentials(dir, web.ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := web.Config{
		Scheme:         legacyscheme.Scheme,
		Codecs:         legacyscheme.Codecs,
		ParameterCodec: legacyscheme.ParameterCodec,
		OpenAPI:        k8sopenapi.GetOpenAPIDefinitions,
		Listener:       listener,
		Credentials:    credentials,
		Version:        "0.0.1-test",
	}
	edit(&config)
	s, err := web.New(config)
	if err != nil {
		t.Fatal(err)
	}
	url := "https://" + listener.Addr().String()
	if err := credentials.WriteKubeconfig(url); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &server{url: url, credentials: credentials, web: s, stop: stop, stopped: make(chan error, 1)}
	go func() { r.stopped <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.stopped; err != nil {
			t.Errorf("the server did not stop cleanly: %v", err)
		}
	})
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.Ready(ready); err != nil {
		t.Fatal(err)
	}
	return r
}

// get asks for path with the given bearer token, trusting only ca.crt.
func (s *server) get(t *testing.T, path, token string) (int, string) {
	t.Helper()
	return s.getAs(t, path, token, "")
}

// getAs is get, impersonating a user unless that is "".
func (s *server) getAs(t *testing.T, path, token, user string) (int, string) {
	t.Helper()
	pem, err := os.ReadFile(s.credentials.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if user != "" {
		req.Header.Set("Impersonate-User", user)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (s *server) admin(t *testing.T) *rest.Config {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", s.credentials.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhoMayCall(t *testing.T) {
	s := start(t, nil)
	admin := s.admin(t).BearerToken
	tests := []struct {
		name, path, token string
		want              int
	}{
		{"no credential", "/apis", "", 401},
		{"no credential, unknown path", "/nowhere", "", 401},
		{"no credential, version", "/version", "", 401},
		{"no credential, metrics", "/metrics", "", 401},
		{"no credential, one health check", "/readyz/ping", "", 401},
		{"wrong token", "/apis", "wrong", 401},
		{"admin", "/apis", admin, 200},
		{"admin, OpenAPI v2", "/openapi/v2", admin, 200},
		{"admin, OpenAPI v3", "/openapi/v3", admin, 200},
		{"admin, metrics", "/metrics", admin, 200},
		{"admin, unknown path", "/nowhere", admin, 404},
		{"health without a credential", "/healthz", "", 200},
		{"liveness without a credential", "/livez", "", 200},
		{"hooks without receivers", "/hooks/any", "", 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, body := s.get(t, tt.path, tt.token); got != tt.want {
				t.Errorf("GET %s: %d, want %d: %s", tt.path, got, tt.want, body)
			}
		})
	}
}

func TestOtherIdentitiesAreForbidden(t *testing.T) {
	s := startIn(t, withViewer(t), func(*web.Config) {})
	if got, body := s.get(t, "/apis", "viewer-token"); got != http.StatusForbidden {
		t.Errorf("a viewer's GET /apis: %d, want 403: %s", got, body)
	}
	if got, body := s.get(t, "/healthz", "viewer-token"); got != http.StatusOK {
		t.Errorf("a viewer's GET /healthz: %d, want 200: %s", got, body)
	}
}

// withViewer makes a directory of credentials with one more, the viewer-token of a user
// who may do nothing.
func withViewer(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := web.LoadCredentials(dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(dir, "pki", "tokens.csv")
	f, err := os.OpenFile(tokens, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("viewer-token,viewer,2\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return dir
}

// BeforeAPI is asked only by callers who may read. Like any handler it has a deadline
// and may fail.
func TestReadsAreGuarded(t *testing.T) {
	var asked atomic.Int64
	s := startIn(t, withViewer(t), func(c *web.Config) {
		c.BeforeAPI = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/apis/early":
				case "/apis/early/panic":
					panic("a defect")
				default:
					next.ServeHTTP(w, r)
					return
				}
				asked.Add(1)
				user, _ := request.UserFrom(r.Context())
				deadline, ok := r.Context().Deadline()
				fmt.Fprint(w, user.GetName(), ok && time.Until(deadline) <= time.Minute)
			})
		}
	})
	admin := s.admin(t).BearerToken
	for _, tt := range []struct {
		path, token, as string
		code            int
		asked           int64
	}{
		{"/apis/early", "", "", 401, 0},
		{"/apis/early", "wrong", "", 401, 0},
		{"/apis/early", "viewer-token", "", 403, 0},
		{"/apis/early", admin, "viewer", 403, 0},
		{"/apis/early", "viewer-token", "system:admin", 403, 0},
		{"/apis/early/panic", admin, "", 500, 0},
		{"/apis/other", admin, "", 404, 0},
		{"/apis/early", admin, "", 200, 1},
	} {
		before := asked.Load()
		code, body := s.getAs(t, tt.path, tt.token, tt.as)
		asked := asked.Load() - before
		if code != tt.code || asked != tt.asked {
			t.Errorf("GET %s with %q as %q: %d, want %d; %d asked: %s", tt.path, tt.token, tt.as, code, tt.code, asked, body)
		}
		if code == 200 && body != "tidewaiter-admintrue" {
			t.Errorf("the early answer: %q", body)
		}
	}
}

// A client may follow a log for ever, but does not keep the server from stopping.
func TestFollowersDoNotHoldTheServer(t *testing.T) {
	following := make(chan struct{})
	s := startIn(t, t.TempDir(), func(c *web.Config) {
		c.BeforeAPI = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/log") {
					next.ServeHTTP(w, r)
					return
				}
				close(following)
				<-r.Context().Done()
			})
		}
	})
	client, err := rest.HTTPClientFor(s.admin(t))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := client.Get(s.url + "/api/v1/namespaces/team/pods/one/log?follow=true"); err == nil {
			resp.Body.Close()
		}
	}()
	<-following
	s.stop()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the follower is still there after a minute")
	}
}

func TestVersionNamesKubernetesAndTidewaiter(t *testing.T) {
	s := start(t, nil)
	client, err := discovery.NewDiscoveryClientForConfig(s.admin(t))
	if err != nil {
		t.Fatal(err)
	}
	var v *version.Info
	if v, err = client.ServerVersion(); err != nil {
		t.Fatal(err)
	}
	if v.Major != "1" || v.Minor != "37" || v.GitVersion != "v1.37.1+tidewaiter.0.0.1-test" {
		t.Errorf("version %+v", v)
	}
}

func TestClientConfigNeedsNoPort(t *testing.T) {
	s := start(t, nil)
	client, err := discovery.NewDiscoveryClientForConfig(s.web.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerVersion(); err != nil {
		t.Fatal(err)
	}
}

func TestHooksAreServedAsTheyAre(t *testing.T) {
	var got string
	s := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.EscapedPath()
		if got == "/hooks/panic" {
			panic("a receiver's defect")
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	if code, _ := s.get(t, "/hooks/a%2Fb//c", ""); code != http.StatusAccepted || got != "/hooks/a%2Fb//c" {
		t.Errorf("hook answered %d for path %q", code, got)
	}
	if code, _ := s.get(t, "/hooks/panic", ""); code != http.StatusInternalServerError {
		t.Errorf("a panicking hook answered %d, want 500", code)
	}
}

// A server outlives its certificate: the certificate is renewed while the server is in
// use.
func TestServingCertificateIsRenewedWhileServing(t *testing.T) {
	s := startIn(t, t.TempDir(), func(c *web.Config) {
		old, err := web.LoadCredentials(t.TempDir(), web.ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now().AddDate(0, 0, -340))
		if err != nil {
			t.Fatal(err)
		}
		c.Credentials = old
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		end := conn.ConnectionState().PeerCertificates[0].NotAfter
		conn.Close()
		if time.Until(end) > 300*24*time.Hour {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the certificate served still ends on %v", end)
		}
	}
}

// An administrator asks for more lists than are served at once. They do not hold up an
// administrator's reads, and the surplus ones are told to come later.
func TestFloodOfLists(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var listing atomic.Int32
	s := startIn(t, t.TempDir(), func(c *web.Config) {
		c.MaxReads = 40
		c.BeforeAPI = func(api http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb == "list" {
					listing.Add(1)
					<-release
					return
				}
				api.ServeHTTP(w, r)
			})
		}
	})
	token := s.admin(t).BearerToken
	codes := make(chan int, 64)
	for range cap(codes) {
		go func() {
			code, _ := s.get(t, "/api/v1/namespaces/default/pods", token)
			codes <- code
		}()
	}
	// The first to be told have waited in vain.
	for range 3 {
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Errorf("a list was answered %d while none could be", code)
		}
		if code, _ := s.get(t, "/version", token); code != http.StatusOK {
			t.Errorf("an honest read was answered %d", code)
		}
	}
	if n := listing.Load(); n > 10 {
		t.Errorf("%d lists are served at once, of 40 reads", n)
	}
	close(release)
	for range cap(codes) - 3 {
		<-codes
	}
}
