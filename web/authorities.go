package web

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

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
	a.current = next
	for _, l := range a.listeners {
		l.Enqueue()
	}
	return nil
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
	s.set(cert, key)
	return nil
}
