package registry

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// User and Password are the one login of a guarded registry.
const (
	User     = "puller"
	Password = "correct horse"
	// passwordHash is bcrypt's of Password.
	passwordHash = "$2a$05$uGPJSdcMeqNaScBFiCSuNuTdUDcwfbrIJO6Uoa3BhLScEJRelTR7W"
)

// Guard is what stands before a registry: a certificate of an authority that nobody else knows, and
// either passwords that the registry knows itself or tokens of a server elsewhere.
type Guard struct {
	*Authority
	auth string // the section auth of the registry's configuration
}

// ByPassword guards with a file as htpasswd(1) writes it.
func ByPassword(t testing.TB, a *Authority) Guard {
	t.Helper()
	file := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(file, []byte(User+":"+passwordHash+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Guard{a, fmt.Sprintf("  htpasswd: {realm: e2e, path: %q}\n", file)}
}

// ByTokens guards with tokens of a server whose host and port are returned, as the distribution
// project specifies them (https://distribution.github.io/distribution/spec/auth/token/).
func ByTokens(t testing.TB, a *Authority) (guard Guard, tokenHost string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(a.serveToken))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{a.pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	// By name: go-containerregistry goes to no token server by an address of this machine.
	tokenHost = fmt.Sprintf("localhost:%d", s.Listener.Addr().(*net.TCPAddr).Port)
	return Guard{a, fmt.Sprintf("  token: {realm: %q, service: %s, issuer: %s, rootcertbundle: %q}\n", "https://"+tokenHost+"/token", tokenService, tokenIssuer, a.CA)}, tokenHost
}

func (g *Guard) config() string {
	// The section http is the one before.
	return fmt.Sprintf("  tls: {certificate: %q, key: %q}\nauth:\n%s", g.cert, g.key, g.auth)
}

func (g *Guard) options() []remote.Option {
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: g.pool}
	return []remote.Option{remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: User, Password: Password})}
}

// Authority is a private certificate authority with one certificate, for 127.0.0.1 and localhost.
type Authority struct {
	CA        string // file of its own certificate
	cert, key string // files
	pair      tls.Certificate
	pool      *x509.CertPool
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	dir := t.TempDir()
	a := &Authority{CA: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), pool: x509.NewCertPool()}
	newKey := func() *rsa.PrivateKey {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	write := func(file, kind string, der []byte) {
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sign := func(number int64, template, parent *x509.Certificate, of, by *rsa.PrivateKey) []byte {
		template.SerialNumber, template.Subject = big.NewInt(number), pkix.Name{CommonName: fmt.Sprintf("e2e %d", number)}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &of.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	caKey, key := newKey(), newKey()
	ca := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER := sign(1, ca, ca, caKey, caKey)
	der := sign(2, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, key, caKey)
	write(a.CA, "CERTIFICATE", caDER)
	write(a.cert, "CERTIFICATE", der)
	write(a.key, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
	a.pair = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(parsed)
	return a
}

const (
	tokenService = "registry"
	tokenIssuer  = "e2e"
)

// serveToken gives a client that knows the password a token for the scopes that it asks for.
func (a *Authority) serveToken(w http.ResponseWriter, req *http.Request) {
	if user, password, ok := req.BasicAuth(); !ok || user != User || password != Password {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	type access struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Actions []string `json:"actions"`
	}
	granted := []access{}
	for _, scope := range req.URL.Query()["scope"] {
		for one := range strings.FieldsSeq(scope) {
			kind, rest, _ := strings.Cut(one, ":")
			name, actions, _ := strings.Cut(rest, ":")
			granted = append(granted, access{kind, name, strings.Split(actions, ",")})
		}
	}
	now := time.Now()
	token, err := a.jwt(map[string]any{
		"iss": tokenIssuer, "sub": User, "aud": tokenService, "jti": rand.Text(),
		"exp": now.Add(5 * time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(), "access": granted,
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// the client may be gone
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300})
}

// jwt signs claims with the key of the certificate, which it names (RFC 7515, "x5c").
func (a *Authority) jwt(claims map[string]any) (string, error) {
	var parts []string
	for _, part := range []map[string]any{{"typ": "JWT", "alg": "RS256", "x5c": [][]byte{a.pair.Certificate[0]}}, claims} {
		b, err := json.Marshal(part)
		if err != nil {
			return "", err
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(b))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	signature, err := a.pair.PrivateKey.(*rsa.PrivateKey).Sign(rand.Reader, sum[:], crypto.SHA256)
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), "."), err
}
