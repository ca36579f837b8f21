package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

func TestTLSIsChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []TLS{
		{CertFile: "tls.crt"}, {KeyFile: "tls.key"}, {MinVersion: "VersionTLS10"}, {MinVersion: "1.2"}, {CipherSuites: []string{"TLS_NONE"}}, {CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}},
		{SANs: []string{"a b"}}, {SANs: []string{""}}, {SANs: []string{"https://x"}}, {AdvertiseURL: "http://x"}, {AdvertiseURL: "https://"},
		{AdvertiseURL: "https://x/y"}, {AdvertiseURL: "https://u@x"}, {AdvertiseURL: "x:6443"}, {AdvertiseURL: "https://a b"},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, good := range []TLS{
		{}, {CertFile: "tls.crt", KeyFile: "tls.key", MinVersion: "VersionTLS13"}, {SANs: []string{"tidewaiter.example.com", "192.0.2.1", "::1", "*.example.com"}},
		{AdvertiseURL: "https://x"}, {AdvertiseURL: "https://[2001:db8::1]:6443"}, {CipherSuites: cipherSuites()},
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	hosts := (&TLS{SANs: []string{"a.example.com"}, AdvertiseURL: "https://[2001:db8::1]:6443"}).Hosts(net.IPv4(127, 0, 0, 1))
	for _, want := range []string{"localhost", "127.0.0.1", "a.example.com", "2001:db8::1"} {
		if !strings.Contains(strings.Join(hosts, " "), want) {
			t.Errorf("%s is not among %v", want, hosts)
		}
	}
}

// serveTLS serves c on a free port until the test ends.
func serveTLS(t *testing.T, c *Credentials, a *Authentication) (url string) {
	t.Helper()
	_, url = runTLS(t, c, a)
	return url
}

// runTLS is serveTLS that returns the server, too.
func runTLS(t *testing.T, c *Credentials, a *Authentication) (s *Server, url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err = New(Config{
		Scheme: legacyscheme.Scheme, Codecs: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec, OpenAPI: k8sopenapi.GetOpenAPIDefinitions,
		Listener: listener, Credentials: c, Authentication: a, Version: "0.0.1-test",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return s, "https://" + listener.Addr().String()
}

// served returns the certificate that is shown to a client who asks for a name. A client
// that uses an address asks for none.
func served(t *testing.T, address, name string) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(address, "https://"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

func writeGiven(t *testing.T, o TLS, host string) *x509.Certificate {
	t.Helper()
	cert, key, err := certutil.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{o.KeyFile: key, o.CertFile: cert} {
		if err := trusted.Replace(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certs, err := certutil.ParseCertsPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

// A given certificate is served for its names, even after it was exchanged. The own one
// is served for the names of this machine. admin.kubeconfig trusts the certificate that
// is served at its address.
func TestGivenCertificateIsServedAndExchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const host = "tidewaiter.example.com"
	o := TLS{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), AdvertiseURL: "https://" + host + ":6443"}
	first := writeGiven(t, o, host)
	c, err := LoadCredentials(filepath.Join(dir, "data"), o.Hosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.TLS = o
	address := serveTLS(t, c, nil)
	if got := served(t, address, host); !got.Equal(first) {
		t.Errorf("%s is served with %s", host, got.Subject)
	}
	for _, name := range []string{"localhost", ""} {
		if got := served(t, address, name); got.CheckSignatureFrom(c.ca.cert) != nil {
			t.Errorf("%q is served with %s", name, got.Subject)
		}
	}

	// From this machine, by its address.
	if err := c.WriteKubeconfig(address); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion(); err != nil {
		t.Errorf("from this machine: %v", err)
	}
	// From another, by its name.
	if err := c.WriteKubeconfig(o.AdvertiseURL); err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if config.Host != o.AdvertiseURL {
		t.Errorf("admin.kubeconfig names %s", config.Host)
	}
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(address, "https://"))
	}
	if _, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion(); err != nil {
		t.Errorf("by its name: %v", err)
	}

	second := writeGiven(t, o, host)
	await(t, "the new certificate", func() bool { return served(t, address, host).Equal(second) })
}

// A certificate without its authority is what admin.kubeconfig trusts, so a renewed one is written
// there.
func TestKubeconfigFollowsTheGivenCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const host = "tidewaiter.example.com"
	c := load(t)
	c.TLS = TLS{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	writeGiven(t, c.TLS, host)
	if err := c.KeepKubeconfig("https://" + host + ":6443"); err != nil {
		t.Fatal(err)
	}
	renewed := writeGiven(t, c.TLS, host)
	c.reload.checkFiles()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := certutil.ParseCertsPEM(config.CAData)
	if err != nil || !certs[0].Equal(renewed) {
		t.Errorf("admin.kubeconfig does not trust the renewed certificate: %v", err)
	}
}

// The chosen TLS versions and suites are the ones that are served.
func TestTLSVersionAndSuites(t *testing.T) {
	t.Parallel()
	c := load(t)
	c.TLS = TLS{MinVersion: "VersionTLS13"}
	address := strings.TrimPrefix(serveTLS(t, c, nil), "https://")
	if conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		conn.Close()
		t.Error("TLS 1.2 is served")
	}
	c = load(t)
	c.TLS = TLS{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}}
	address = strings.TrimPrefix(serveTLS(t, c, nil), "https://")
	for suite, want := range map[uint16]bool{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: true, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384: false} {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}})
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.CipherSuiteName(suite), err)
		}
	}
}

// If another authority was named, its client certificates count beside our own. Our list
// does not revoke its certificates.
func TestClientCAFile(t *testing.T) {
	t.Parallel()
	c, company := load(t), load(t)
	a := NewAuthentication()
	a.ClientCert.ClientCA = company.CAFile
	address := serveTLS(t, c, a)
	for name, tc := range map[string]struct {
		of   *Credentials
		want bool
	}{"own": {c, true}, "company's": {company, true}, "stranger's": {load(t), false}} {
		config := &restclient.Config{Host: address, TLSClientConfig: restclient.TLSClientConfig{CAFile: c.CAFile, CertFile: tc.of.adminCertFile, KeyFile: tc.of.adminKeyFile}}
		_, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion()
		if (err == nil) != tc.want {
			t.Errorf("a certificate of the %s authority: %v", name, err)
		}
	}
}

// Files that say who callers are, and that others could have written, are refused.
func TestPlantedAuthenticationFilesAreRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "planted")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(*Authentication){
		"authentication-config": func(a *Authentication) { a.AuthenticationConfigFile = file },
		"client-ca-file":        func(a *Authentication) { a.ClientCert.ClientCA = file },
		"oidc-ca-file":          func(a *Authentication) { a.OIDC.CAFile = file },
		"webhook":               func(a *Authentication) { a.WebHook.ConfigFile = file },
	} {
		a := NewAuthentication()
		set(a)
		var refused *trusted.Error
		if err := a.complete(nil, nil); !errors.As(err, &refused) {
			t.Errorf("--%s: %v", name, err)
		}
	}
}

// A cluster says whose tokens are, and is asked no more often than needed.
func TestTokenReviewByWebhook(t *testing.T) {
	t.Parallel()
	cluster := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if review.Spec.Token == "of-the-cluster" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "pod", Groups: []string{"system:masters"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer cluster.Close()
	ca, err := certutil.EncodeCertificates(cluster.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := NewAuthentication()
	a.WebHook.ConfigFile = filepath.Join(dir, "webhook.kubeconfig")
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.WebHook.ConfigFile, []byte(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "x", "cluster": {"server": "`+cluster.URL+`", "certificate-authority": "ca.crt"}}],
		"contexts": [{"name": "x", "context": {"cluster": "x"}}], "current-context": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := load(t)
	s, address := runTLS(t, c, a)
	who := func(token string) (string, error) {
		client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: address, BearerToken: token, TLSClientConfig: restclient.TLSClientConfig{CAFile: c.CAFile}})
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return review.Status.UserInfo.Username, nil
	}
	if name, err := who("of-the-cluster"); err != nil || name != "pod" {
		t.Errorf("%q, %v", name, err)
	}
	if name, err := who("of-nobody"); err == nil {
		t.Errorf("a token that the cluster does not know is of %q", name)
	}
	admin, err := c.adminToken()
	if err != nil {
		t.Fatal(err)
	}
	// Only the watches of those whom the cluster knows go on while it is away.
	for token, want := range map[string]bool{"of-the-cluster": true, admin: false} {
		one := &session{}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), sessionKey{}, one), http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		if _, ok, err := s.sessions.all.AuthenticateRequest(r); !ok || one.asked.Load() != want || one.own.Load() == want {
			t.Errorf("known: %t, by asking: %t, want %t: %v", ok, one.asked.Load(), want, err)
		}
	}
	cluster.Close()
	if name, err := who(admin); err != nil || name != adminUser {
		t.Errorf("without the cluster the administrator is %q, %v", name, err)
	}
}

// await waits for a condition; the deadline measures nothing.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
