package rekor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Authority is the keys of a certificate authority and the certificate transparency log in which
// its certificates are. Several Fulcios may share it.
type Authority struct {
	Name      string // of the root
	Chain     string // file with the intermediate and the root, PEM
	Log       string // URL of the log
	LogPublic string // file with the log's key, PEM

	key string // file with the intermediate's, PEM
}

var madeTree = regexp.MustCompile(`tree (\d+)`)

// NewAuthority makes a root with an intermediate, and starts a log for its certificates: ct_server
// of Google's certificate-transparency-go, with Trillian in memory below it.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	dir := t.TempDir()
	a := &Authority{Name: name}
	root, rootKey := certificate(t, name, nil, nil)
	intermediate, key := certificate(t, name+" intermediate", root, rootKey)
	a.key = write(t, dir, "ca.key", encode(t, "PRIVATE KEY", key, x509.MarshalPKCS8PrivateKey))
	a.Chain = write(t, dir, "chain.pem", append(certificatePEM(intermediate), certificatePEM(root)...))

	logKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.LogPublic = write(t, dir, "ct.pub", encode(t, "PUBLIC KEY", &logKey.PublicKey, x509.MarshalPKIXPublicKey))
	der, err := x509.MarshalPKCS8PrivateKey(logKey)
	if err != nil {
		t.Fatal(err)
	}
	trillian := harness.Start(t, harness.Command{Path: harness.Tool(t, "trillian"), Args: []string{"-tree"}})
	tree := trillian.Stdout.AwaitMatch(t, madeTree)[1]
	backend := trillian.Stdout.AwaitMatch(t, trillianListens)[1]
	escaped := ""
	for _, b := range der {
		escaped += fmt.Sprintf(`\x%02x`, b)
	}
	config := write(t, dir, "ct.cfg", fmt.Appendf(nil, `config {
  log_id: %s
  prefix: "ct"
  roots_pem_file: "%s"
  private_key { [type.googleapis.com/keyspb.PrivateKey] { der: "%s" } }
  max_merge_delay_sec: 86400
  ext_key_usages: "CodeSigning"
}
`, tree, write(t, dir, "root.pem", certificatePEM(root)), escaped))
	address := "127.0.0.1:" + harness.FreePort(t)
	harness.Start(t, harness.Command{
		Path: harness.Tool(t, "ct_server"),
		Args: []string{"-http_endpoint", address, "-log_rpc_server", backend, "-log_config", config, "-logtostderr"},
	})
	a.Log = "http://" + address + "/ct"
	awaitService(t, "http://"+address+"/healthz")
	return a
}

// Issuer is a provider of OpenID Connect that Fulcio trusts.
type Issuer struct {
	URL, Client string
	CA          string // PEM
}

// Fulcio says how a Fulcio differs from an ordinary one.
type Fulcio struct {
	Clock    *harness.Clock // nil: this machine's
	Unlogged bool           // its certificates are in no log
}

// StartFulcio starts a Fulcio of the authority, whose users are those of an issuer. The
// certificates have their address of mail. It returns its URL.
func (a *Authority) StartFulcio(t testing.TB, issuer Issuer, f Fulcio) (url string) {
	t.Helper()
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{"OIDCIssuers": map[string]any{
		issuer.URL: map[string]any{"IssuerURL": issuer.URL, "ClientID": issuer.Client, "Type": "email", "CACert": issuer.CA},
	}})
	if err != nil {
		t.Fatal(err)
	}
	program := harness.Tool(t, "fulcio")
	env := []string{"HOME=" + dir}
	if f.Clock != nil {
		env = append(env, f.Clock.Env(t, program)...)
	}
	port := harness.FreePort(t)
	args := []string{"serve", "--host", "127.0.0.1", "--port", port, "--grpc-host", "127.0.0.1", "--grpc-port", harness.FreePort(t),
		"--metrics-port", harness.FreePort(t), "--legacy-unix-domain-socket", filepath.Join(dir, "legacy"),
		"--config-path", write(t, dir, "config.json", config),
		"--ca", "fileca", "--fileca-cert", a.Chain, "--fileca-key", a.key, "--fileca-key-passwd", "unused", "--fileca-watch=false",
		"--ct-log-url", a.Log, "--ct-log-public-key-path", a.LogPublic}
	if f.Unlogged {
		args = append(args, "--ct-log-url", "")
	}
	harness.Start(t, harness.Command{Path: program, Args: args, Env: env, Dir: dir})
	url = "http://" + net.JoinHostPort("127.0.0.1", port)
	awaitService(t, url+"/api/v2/trustBundle")
	return url
}

// certificate makes a certificate of an authority by another one, or by itself. It began a month
// ago, so that wrong clocks find it valid.
func certificate(t testing.TB, name string, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{strings.Fields(name)[0]}},
		NotBefore: time.Now().AddDate(0, -1, 0), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	if parent == nil {
		parent, by, c.ExtKeyUsage = c, key, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func certificatePEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
