package web

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// serving is the server's certificate and its key. They are in files, from which the
// next start reads them. If the disk is full, they are in memory alone.
type serving struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key []byte // PEM
	listeners []dynamiccertificates.Listener
}

var _ dynamiccertificates.CertKeyContentProvider = (*serving)(nil)

// ensure makes s a certificate of the authority for hosts that is valid for a while
// from now on. It writes it to the files if it can.
func (s *serving) ensure(a *authority, hosts []string, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cert, certErr := os.ReadFile(s.certFile)
	key, keyErr := os.ReadFile(s.keyFile)
	if certErr == nil && keyErr == nil && a.usable(cert, key, hosts, now) {
		s.set(cert, key)
		return nil
	}
	if !a.usable(s.cert, s.key, hosts, now) {
		cert, key, err := a.issueServing(hosts, now)
		if err != nil {
			return err
		}
		s.set(cert, key)
	}
	err := trusted.Replace(s.keyFile, s.key, 0o600)
	if err == nil {
		err = trusted.Replace(s.certFile, s.cert, 0o644)
	}
	if isFull(err) {
		slog.Warn("the disk is full: the new serving certificate cannot be written; retrying in a day and at the next start", "err", err)
		return nil
	}
	return err
}

// set tells those who serve s if s has changed. s.mu is held.
func (s *serving) set(cert, key []byte) {
	if bytes.Equal(s.cert, cert) && bytes.Equal(s.key, key) {
		return
	}
	s.cert, s.key = cert, key
	for _, l := range s.listeners {
		l.Enqueue()
	}
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (s *serving) Name() string { return fmt.Sprintf("serving-cert::%s::%s", s.certFile, s.keyFile) }

// AddListener implements dynamiccertificates.Notifier.
func (s *serving) AddListener(l dynamiccertificates.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
}

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (s *serving) CurrentCertKeyContent() (cert, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert, s.key
}

// usable says whether PEM is what issueServing would make. Whatever is wrong with it, a
// new certificate mends it.
func (a *authority) usable(certPEM, keyPEM []byte, hosts []string, now time.Time) bool {
	certs, err := certutil.ParseCertsPEM(certPEM)
	if err != nil {
		return false
	}
	k, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return false
	}
	key, ok := k.(crypto.Signer)
	if !ok {
		return false
	}
	cert := certs[0]
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return false
	}
	if cert.CheckSignatureFrom(a.cert) != nil || now.Before(cert.NotBefore) || now.Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(hosts, func(h string) bool { return cert.VerifyHostname(h) != nil })
}

// isFull reports whether a disk was full.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
