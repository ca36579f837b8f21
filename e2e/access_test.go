package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Who asks decides: the administrator may do everything, anybody else known learns
// what there is and what their roles grant, and a stranger not even that.
func TestAccess(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	s.KubectlStdin(t, plainImage("row"), "create", "-f", "-")
	stranger := newAuthority(t)
	own := readAuthority(t, s.DataDir)

	for name, tc := range map[string]struct {
		config *rest.Config
		code   int
	}{
		"no credential":                        {s.Anonymous(t), http.StatusUnauthorized},
		"wrong token":                          {withToken(s.Anonymous(t), "wrong"), http.StatusUnauthorized},
		"empty password":                       {withPassword(s.Anonymous(t), "tidewaiter-admin", ""), http.StatusUnauthorized},
		"certificate of another authority":     {stranger.client(t, s.Anonymous(t), "tidewaiter-admin", "system:masters"), http.StatusUnauthorized},
		"certificate of somebody":              {own.client(t, s.Anonymous(t), "somebody"), http.StatusForbidden},
		"administrator impersonating somebody": {as(s.Config(t), "somebody"), http.StatusForbidden},
		"administrator":                        {s.Config(t), http.StatusOK},
		"certificate of an administrator":      {own.client(t, s.Anonymous(t), "e2e", "system:masters"), http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			client := restClient(t, tc.config)
			for _, r := range imageRows {
				query := map[string][]string{}
				switch r.verb {
				case "GET":
					query["timeoutSeconds"] = []string{"1"}
				default:
					query["dryRun"] = []string{"All"}
				}
				code, body := do(t, client, r, query)
				if code == http.StatusCreated {
					code = http.StatusOK
				}
				if code != tc.code {
					t.Errorf("%s %s: %d, want %d: %s", r.verb, r.path, code, tc.code, body)
				}
			}
			for _, path := range []string{"/api", "/apis", "/openapi/v2", "/openapi/v3", "/version"} {
				want := tc.code
				if want == http.StatusForbidden {
					want = http.StatusOK
				}
				if code, body := do(t, client, row{verb: "GET", path: path}, nil); code != want {
					t.Errorf("GET %s: %d, want %d: %s", path, code, want, body)
				}
			}
			for _, path := range []string{"/metrics", "/tidewaiter/spool", "/tidewaiter/verification", "/tidewaiter/summary", "/tidewaiter/receivers", "/debug/pprof/", "/no/such/path"} {
				if code, body := do(t, client, row{verb: "GET", path: path}, nil); tc.code != http.StatusOK && code != tc.code {
					t.Errorf("GET %s: %d, want %d: %s", path, code, tc.code, body)
				}
			}
			// A stranger gets the console's page to sign in, and others what they may see.
			page := map[int]string{http.StatusUnauthorized: "Sign in to Tidewaiter", http.StatusForbidden: "You may not"}[tc.code]
			if code, body := do(t, client, row{verb: "GET", path: "/console/images"}, nil); !strings.Contains(body, page) || tc.code != http.StatusOK && strings.Contains(body, "sha256:") {
				t.Errorf("GET /console/images: %d, without %q or with images: %s", code, page, body)
			}
			for _, path := range []string{"/healthz", "/livez", "/readyz"} {
				if code, _ := do(t, client, row{verb: "GET", path: path}, nil); code != http.StatusOK && tc.code != http.StatusUnauthorized {
					t.Errorf("GET %s: %d", path, code)
				}
			}
		})
	}
	t.Run("plain HTTP", func(t *testing.T) {
		resp, err := http.Get("http://" + s.Address(t) + imagesPath)
		if err != nil {
			return // refused outright
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d, want 400", resp.StatusCode)
		}
	})
	t.Run("kubectl", func(t *testing.T) {
		c := s.KubectlCommand(t, "get", "images", "--token", "wrong")
		if got := harness.Run(t, c); got.Code == 0 {
			t.Error("a wrong token was accepted")
		} else {
			wantContains(t, "the message", got.Stderr, "Unauthorized")
		}
		if got := s.TryKubectl(t, "get", "images", "--as", "somebody"); got.Code == 0 {
			t.Error("somebody was let in")
		} else {
			wantContains(t, "the message", got.Stderr, "Forbidden", "somebody")
		}
	})
}

// The credential is for its owner alone.
func TestDataDirectoryModes(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	for _, file := range []string{"admin.kubeconfig", "tidewaiter.db", "pki/ca.key"} {
		info, err := os.Stat(filepath.Join(s.DataDir, file))
		if err != nil {
			t.Error(err)
			continue
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has mode %o, want nothing for group and others", file, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(s.DataDir, "pki/ca.crt")); err != nil {
		t.Error(err)
	}
}

func withToken(cfg *rest.Config, token string) *rest.Config {
	cfg.BearerToken = token
	return cfg
}

func withPassword(cfg *rest.Config, name, password string) *rest.Config {
	cfg.Username, cfg.Password = name, password
	return cfg
}

func as(cfg *rest.Config, name string) *rest.Config {
	cfg.Impersonate.UserName = name
	return cfg
}

// authority issues client certificates.
type authority struct {
	cert *x509.Certificate
	key  any
}

// readAuthority is a server's own, from its data directory.
func readAuthority(t testing.TB, dataDir string) authority {
	t.Helper()
	certs, err := certutil.CertsFromFile(filepath.Join(dataDir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dataDir, "pki", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return authority{certs[0], key}
}

// newAuthority is one that no server trusts, though it bears the same name.
func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "tidewaiter-ca"}, key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

// client adds a certificate for a user and groups to a configuration.
func (a authority) client(t testing.TB, cfg *rest.Config, user string, groups ...string) *rest.Config {
	t.Helper()
	return a.clientUntil(t, cfg, time.Now().Add(time.Hour), user, groups...)
}

// clientUntil is client with a certificate that ends then.
func (a authority) clientUntil(t testing.TB, cfg *rest.Config, end time.Time, user string, groups ...string) *rest.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    end.Add(-2 * time.Hour),
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cfg.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if cfg.KeyData, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return cfg
}
