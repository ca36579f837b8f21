package sigstore

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// PKIVerifier trusts certificates of a private CA, made for code signing, that are valid now. The
// rules are those of containers/image (signature/pki_cert.go).
type PKIVerifier struct {
	roots         *x509.CertPool
	intermediates []*x509.Certificate
	email         string
	hostname      string
}

// NewPKIVerifier makes a PKIVerifier for certificates that carry email and hostname. It ignores
// either if it is "".
func NewPKIVerifier(roots, intermediates []*x509.Certificate, email, hostname string) *PKIVerifier {
	v := &PKIVerifier{roots: x509.NewCertPool(), intermediates: intermediates, email: email, hostname: hostname}
	for _, c := range roots {
		v.roots.AddCert(c)
	}
	return v
}

// Verify implements Verifier.
func (v *PKIVerifier) Verify(s *Signature, now time.Time) (e *evidence.Evidence, err error) {
	err = guarded(func() error {
		e, err = v.verify(s, now)
		return err
	})
	return e, err
}

func (v *PKIVerifier) verify(s *Signature, now time.Time) (*evidence.Evidence, error) {
	if f := noCertificate(s); f != nil {
		return nil, f
	}
	chains, err := v.chains(s, now)
	if err != nil {
		var invalid x509.CertificateInvalidError
		_, issuedErr := v.chains(s, s.leaf.NotBefore)
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			if issuedErr == nil {
				f := expired(s, "%s or its CA is not valid now: %w", describe(s.leaf), validity(invalid.Cert))
				f.Expired = !now.Before(s.leaf.NotBefore)
				return nil, f
			}
			err = issuedErr
		}
		return nil, evidence.Fail(evidence.NoMatchingKey, "%s is not from a CA of the policy: %w", describe(s.leaf), err)
	}
	k, err := newKey(s.leaf.PublicKey)
	if err != nil {
		return nil, evidence.Fail(evidence.UnsupportedFormat, "%w", err)
	}
	hash, err := k.verify(s)
	if errors.Is(err, errNeedsManifest) {
		return nil, evidence.Fail(evidence.UnsupportedFormat, "%w", err)
	} else if err != nil {
		return nil, evidence.Fail(evidence.InvalidSignature, "does not verify under %s: %w", describe(s.leaf), plainly(err))
	}
	e := certificateEvidence(s.leaf)
	e.NotAfter, e.Hash = lastValid(chains), hash
	if err := v.checkSubject(s.leaf); err != nil {
		return nil, &evidence.Failure{Reason: evidence.SubjectMismatch, Authentic: true, Evidence: e, Err: err}
	}
	// show the name that met the policy
	if e.Subject = cmp.Or(v.email, v.hostname, e.Subject); v.hostname != "" && !slices.Contains(e.Names, v.hostname) {
		e.Names = append(e.Names, v.hostname) // matched by a wildcard in the certificate
	}
	return e, nil
}

// validity is the error about a certificate that is not valid now. It replaces x509's error, which
// contains the current time: with a new message at each check, the Image would be written each
// time.
func validity(c *x509.Certificate) error {
	return fmt.Errorf("the certificate of %q is valid from %s to %s", subjectName(c), c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
}

func (v *PKIVerifier) chains(s *Signature, at time.Time) ([][]*x509.Certificate, error) {
	pool := x509.NewCertPool()
	for _, c := range slices.Concat(v.intermediates, s.chain) {
		pool.AddCert(c)
	}
	return s.leaf.Verify(x509.VerifyOptions{
		Roots:         v.roots,
		Intermediates: pool,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	})
}

func (v *PKIVerifier) checkSubject(leaf *x509.Certificate) error {
	if v.email != "" && !slices.Contains(leaf.EmailAddresses, v.email) {
		return fmt.Errorf("the certificate is for %s, the policy wants the e-mail address %s",
			strings.Join(append(leaf.EmailAddresses, leaf.DNSNames...), ", "), v.email)
	}
	if v.hostname != "" {
		if err := leaf.VerifyHostname(v.hostname); err != nil {
			return fmt.Errorf("the policy wants the host name %s: %w", v.hostname, err)
		}
	}
	return nil
}

// lastValid returns the latest time at which one of the chains is still valid.
func lastValid(chains [][]*x509.Certificate) time.Time {
	var latest time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(latest) {
			latest = end
		}
	}
	return latest
}
