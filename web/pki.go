package web

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

const (
	caLifetime      = 10 * 365 * 24 * time.Hour
	servingLifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its end a serving certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
	// clockSkew is how far a client's clock may be behind ours.
	clockSkew = time.Hour
)

// authority is the private certificate authority of one data directory.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// loadOrCreateAuthority reads the authority or makes one. A certificate without its key
// is an error: a new key would cut off everyone who trusts the old one. isNew tells
// whether the key is new.
func loadOrCreateAuthority(certFile, keyFile string, now time.Time) (a *authority, isNew bool, err error) {
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	if errors.Is(certErr, fs.ErrNotExist) {
		a, err := createAuthority(certFile, keyFile, now)
		return a, keyErr != nil, err
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, false, fmt.Errorf("the certificate authority is incomplete: %w (restore the missing file, or remove both to create a new authority, and have every client trust it)", err)
	}
	certs, err := certutil.CertsFromFile(certFile)
	if err != nil {
		return nil, false, err
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, false, err
	}
	return &authority{cert: certs[0], key: key}, false, nil
}

// createAuthority makes the authority's certificate, and its key unless there is one. A
// key can be there after a crash or a full disk, or because only the certificate was
// lost. Clients that trust an earlier certificate of that key trust the new one.
func createAuthority(certFile, keyFile string, now time.Time) (*authority, error) {
	// The key comes first: a certificate without its key would be in the way.
	key, err := readKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err == nil {
			err = writeKey(keyFile, key)
		}
	}
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "tidewaiter-ca"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		// The authority signs no other authority.
		MaxPathLenZero: true,
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if err := writeCert(certFile, cert); err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// issueServing makes a serving certificate for hosts, followed by the authority's, and
// its key.
func (a *authority) issueServing(hosts []string, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "tidewaiter"},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(servingLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	cert, err := sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, err
	}
	certPEM, err = certutil.EncodeCertificates(cert, a.cert)
	return certPEM, keyPEM, err
}

// sign issues template for public, signed by the parent's key.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func readKey(file string) (crypto.Signer, error) {
	k, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, err
	}
	key, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: a %T cannot sign", file, k)
	}
	return key, nil
}

func writeKey(file string, key crypto.Signer) error {
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return trusted.Replace(file, pem, 0o600)
}

func writeCert(file string, cert *x509.Certificate) error {
	pem, err := certutil.EncodeCertificates(cert)
	if err != nil {
		return err
	}
	return trusted.Replace(file, pem, 0o644)
}
