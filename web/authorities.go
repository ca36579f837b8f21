package web

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// maxBundle bounds a file of certificates, in bytes. That of all public authorities has 0.3 MB.
const maxBundle = 4 << 20

// authorities are the authorities in a file that verify client certificates. Kubernetes' own reader
// accepts a file that is cut off: it silently skips half a certificate.
type authorities struct {
	purpose, file string

	mu        sync.Mutex
	current   dynamiccertificates.CAContentProvider // of the file when it was last whole
	listeners []dynamiccertificates.Listener
}

var _ dynamiccertificates.CAContentProvider = (*authorities)(nil)

// followAuthorities reads a file, and again when it changes.
func (c *Credentials) followAuthorities(purpose, file string) (*authorities, error) {
	a := &authorities{purpose: purpose, file: file}
	return a, c.reload.watchFiles(a.load, file)
}

// load reads the file.
func (a *authorities) load() error {
	data, err := trusted.ReadFile(a.file, maxBundle)
	if err == nil {
		err = trusted.WholePEM(data)
	}
	var next dynamiccertificates.CAContentProvider
	if err == nil {
		next, err = dynamiccertificates.NewStaticCAContent(a.Name(), data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.file, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if gone := missing(a.current, next); gone > 0 {
		slog.Warn("Authorities are no longer in a file: certificates by them are refused from now on", "file", a.file, "authorities", gone)
	}
	a.current = next
	for _, l := range a.listeners {
		l.Enqueue()
	}
	return nil
}

// missing counts the certificates of before, which may be nil, that next does not have.
func missing(before, next dynamiccertificates.CAContentProvider) (n int) {
	if before == nil {
		return 0
	}
	had, err := certutil.ParseCertsPEM(before.CurrentCABundleContent())
	if err != nil {
		return 0 // it was read before, so this does not happen
	}
	has, err := certutil.ParseCertsPEM(next.CurrentCABundleContent())
	if err != nil {
		return 0
	}
	for _, cert := range had {
		if !slices.ContainsFunc(has, cert.Equal) {
			n++
		}
	}
	return n
}

// Name implements dynamiccertificates.CAContentProvider.
func (a *authorities) Name() string { return a.purpose + "::" + a.file }

// AddListener implements dynamiccertificates.Notifier.
func (a *authorities) AddListener(l dynamiccertificates.Listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners = append(a.listeners, l)
}

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (a *authorities) CurrentCABundleContent() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current.CurrentCABundleContent()
}

// VerifyOptions implements dynamiccertificates.CAContentProvider.
func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current.VerifyOptions()
}

// followGiven serves the certificate in files, and again when they change, as soon as both are
// whole and belong together.
func (c *Credentials) followGiven(certFile, keyFile string) (*serving, error) {
	s := &serving{certFile: certFile, keyFile: keyFile}
	return s, c.reload.watchFiles(s.load, certFile, keyFile)
}

// load reads the files.
func (s *serving) load() error {
	cert, err := trusted.ReadFile(s.certFile, maxBundle)
	if err == nil {
		err = trusted.WholePEM(cert)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.certFile, err)
	}
	key, err := trusted.ReadSecret(s.keyFile, maxKeyFile)
	if err == nil {
		err = trusted.WholePEM(key)
	}
	if err == nil {
		_, err = tls.X509KeyPair(cert, key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.keyFile, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// the beginning of a chain is a certificate, which those without its authorities do not trust
	if err := (&trusted.Poll{InForce: trusted.Contents{s.certFile: s.cert}}).Cut(trusted.Contents{s.certFile: cert}); err != nil {
		return err
	}
	s.set(cert, key)
	return nil
}
