package web_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"testing"
)

// A client that only has suites in CBC mode is not served. One with others is.
func TestNoCipherSuitesInCBCMode(t *testing.T) {
	s := start(t, nil)
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(s.credentials.CAFile)
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	dial := func(suites ...uint16) error {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS12, CipherSuites: suites})
		if err == nil {
			conn.Close()
		}
		return err
	}
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if strings.Contains(suite.Name, "_CBC_") && dial(suite.ID) == nil {
			t.Errorf("%s is served", suite.Name)
		}
	}
	if err := dial(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256); err != nil {
		t.Error(err)
	}
}

// The authority cannot sign another one.
func TestAuthorityHasNoAuthoritiesBelow(t *testing.T) {
	s := start(t, nil)
	data, err := os.ReadFile(s.credentials.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !ca.IsCA || ca.MaxPathLen != 0 || !ca.MaxPathLenZero {
		t.Errorf("CA %v, path length %d", ca.IsCA, ca.MaxPathLen)
	}
}

// Nobody needs a credential for health, so nobody writes to it.
func TestHealthIsOnlyRead(t *testing.T) {
	s := start(t, nil)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"} {
		for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/ping"} {
			req, err := http.NewRequest(method, s.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			want := http.StatusMethodNotAllowed
			if method == "GET" || method == "HEAD" {
				want = http.StatusOK
				if path == "/readyz/ping" {
					want = http.StatusUnauthorized
				}
			}
			if resp.StatusCode != want {
				t.Errorf("%s %s: %s, want %d", method, path, resp.Status, want)
			}
		}
	}
}
