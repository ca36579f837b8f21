package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority for a day.
type Authority struct {
	// File is its certificate.
	File string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority, whose files are in a directory.
func NewAuthority(t testing.TB, dir, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.File = a.issue(t, filepath.Join(dir, name+"-ca.crt"), a.cert, a.key)
	return a
}

// Issue makes a certificate of 127.0.0.1 for one usage, and returns its file and that of its key.
func (a *Authority) Issue(t testing.TB, name string, usage x509.ExtKeyUsage) (certFile, keyFile string) {
	t.Helper()
	return a.IssueUntil(t, name, usage, a.cert.NotAfter)
}

// IssueUntil is Issue with a certificate that expires at a time, which may have passed. A later
// certificate of the same name replaces the files of an earlier one.
func (a *Authority) IssueUntil(t testing.TB, name string, usage x509.ExtKeyUsage, expires time.Time) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	cert := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: a.cert.NotBefore, NotAfter: expires,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	file := filepath.Join(filepath.Dir(a.File), name)
	return a.issue(t, file+".crt", cert, key), writeKey(t, file+".key", key)
}

func (a *Authority) issue(t testing.TB, file string, cert *x509.Certificate, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, file, "CERTIFICATE", der)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeKey(t testing.TB, file string, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, file, "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) string {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
