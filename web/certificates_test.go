package web

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A server tells when each certificate ends on which its connections depend, and why one cannot be
// read.
func TestCertificates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c, err := LoadCredentials(t.TempDir(), []string{"localhost"}, now)
	if err != nil {
		t.Fatal(err)
	}
	all := c.Certificates("")
	if len(all) != 2 || all[0].Name != "pki/serving.crt" || all[0].Subject != "CN=tidewaiter" || all[1].Name != "pki/ca.crt" || all[1].Subject != "CN=tidewaiter-ca" {
		t.Fatalf("there are %+v", all)
	}
	for i, lifetime := range []time.Duration{servingLifetime, caLifetime} {
		if off := all[i].Ends.Sub(now.Add(lifetime)).Abs(); off > time.Minute {
			t.Errorf("%s is %s off", all[i].Name, off)
		}
	}
	// Of given files each certificate counts, what ends first at the beginning.
	other, err := createAuthority(filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key"), now.Add(-caLifetime))
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := other.issueServing([]string{"registry.example.com"}, now)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tls.crt")
	if err := os.WriteFile(file, chain, 0o600); err != nil {
		t.Fatal(err)
	}
	c.TLS.CertFile = file
	none := filepath.Join(t.TempDir(), "none.crt")
	var names []string
	for _, one := range c.Certificates(none) {
		names = append(names, one.Name+" "+one.Subject)
		if unknown := one.Name == "--client-ca-file"; unknown != (one.Unknown != "") || unknown != one.Ends.IsZero() {
			t.Errorf("%+v", one)
		}
	}
	if want := []string{"--tls-cert-file CN=tidewaiter-ca", "--tls-cert-file CN=tidewaiter", "pki/ca.crt CN=tidewaiter-ca", "--client-ca-file "}; !slices.Equal(names, want) {
		t.Errorf("there are %q, want %q", names, want)
	}
}
