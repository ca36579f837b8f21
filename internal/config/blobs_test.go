package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// store is a server with the blobs of a registry, at localhost and with a certificate of a CA of
// its own, as an object store that a company runs. caFile has the CA.
func store(t *testing.T, blobs http.Handler) (url, host, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the store's CA"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(blobs)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	url = strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	return url, strings.TrimPrefix(url, "https://"), certificateFile(t, der)
}

func certificateFile(t *testing.T, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A registry may keep blobs in a store that has another host, a private address and a CA of its
// own. An entry of its own names the store and its CA. Each CA counts for its host alone.
func TestBlobsOfAnotherHostWithItsOwnCA(t *testing.T) {
	registry, behind := registrytest.New(t, registrytest.WithTLS(), registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Anonymous: true})), registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	behind.Push("team/app:v1", image)
	url, host, storeCA := store(t, behind.Server().Config.Handler)
	registry.Inject("/blobs/", 0, registrytest.Redirect(http.StatusTemporaryRedirect, url))
	registryCA := certificateFile(t, registry.Server().Certificate().Raw)
	entry := func(prefix, ca string) string {
		if ca != "" {
			ca = ", caFile: " + ca
		}
		return fmt.Sprintf("- {prefix: %q%s}\n", prefix, ca)
	}
	for _, tc := range []struct {
		name, text string
		want       pull.Reason
		says       string
	}{
		{"named, with its CA", "registries:\n" + entry(registry.Host, registryCA) + entry(host, storeCA), "", ""},
		{"not named", "registries:\n" + entry(registry.Host, registryCA), pull.Denied, "allowedNetworks"},
		{"at an allowed address, without its CA", "allowedNetworks: [127.0.0.0/8, \"::1\"]\nregistries:\n" + entry(registry.Host, registryCA), pull.TLS, host + ", to which the registry redirected: the certificate is signed by an unknown authority; give the authority as caFile of an entry for this host"},
		{"named, without its CA", "registries:\n" + entry(registry.Host, registryCA) + entry(host, ""), pull.TLS, host},
		{"with the registry's CA", "registries:\n" + entry(registry.Host, registryCA) + entry(host, registryCA), pull.TLS, host},
		{"the registry with the store's CA", "registries:\n" + entry(registry.Host, storeCA) + entry(host, storeCA), pull.TLS, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Load(servertest.WriteConfig(t, tc.text))
			if err != nil {
				t.Fatal(err)
			}
			o, err := c.ImporterOptions()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.AddFiles(&o, containers.Options{Root: t.TempDir(), Home: t.TempDir()}); err != nil {
				t.Fatal(err)
			}
			im, err := importer.New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer im.Close()
			ref, err := reference.Parse(registry.Host + "/team/app:v1")
			if err != nil {
				t.Fatal(err)
			}
			_, err = im.Import(t.Context(), ref, &registrytest.Images{})
			if pull.ReasonOf(err) != tc.want || tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q: %q", err, tc.want, tc.says)
			}
		})
	}
	for _, req := range behind.AllRequests() {
		if req.Authorization != "" {
			t.Errorf("the store heard a credential: %s", req)
		}
	}
	if behind.Count("/blobs/") == 0 {
		t.Error("the store was not asked")
	}
}
