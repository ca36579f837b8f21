package sigstore

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// CertificateVerifier trusts short-lived certificates for any of its Subjects, if they were valid
// at a time for which a transparency log or a timestamp authority vouches.
type CertificateVerifier struct {
	material root.TrustedMaterial
	demands  demands
	verifier *verify.Verifier
	subjects []Subject
}

// NewFulcioVerifier trusts the given CA certificates, and one log by its key. The key must be ECDSA
// because Rekor's promises are (sigstore-go verifies no others).
func NewFulcioVerifier(cas []*x509.Certificate, rekor *ecdsa.PublicKey, subjects []Subject) (*CertificateVerifier, error) {
	logs, err := logOf(rekor)
	if err != nil {
		return nil, err
	}
	var authorities []root.CertificateAuthority
	for _, ca := range cas {
		authorities = append(authorities, &root.FulcioCertificateAuthority{Root: ca})
	}
	material, err := root.NewTrustedRoot(root.TrustedRootMediaType01, authorities, nil, nil, logs)
	if err != nil {
		return nil, err
	}
	return newCertificateVerifier(material, subjects, demands{log: true, time: verify.WithIntegratedTimestamps(1)})
}

// NewTrustedRootVerifier trusts the authorities and logs in a sigstore trusted_root.json. It
// demands a log entry if the root has transparency logs, an SCT if it has certificate transparency
// logs, and always a verified time.
func NewTrustedRootVerifier(trustedRoot []byte, subjects []Subject) (*CertificateVerifier, error) {
	material, err := parseTrustedRoot(trustedRoot)
	if err != nil {
		return nil, err
	}
	return newTrustedMaterialVerifier(material, subjects)
}

func newTrustedMaterialVerifier(material root.TrustedMaterial, subjects []Subject) (*CertificateVerifier, error) {
	if len(material.FulcioCertificateAuthorities()) == 0 {
		return nil, errors.New("names no certificate authority, so no certificate can be trusted")
	}
	d, err := demandsOf(material)
	if err != nil {
		return nil, err
	}
	return newCertificateVerifier(material, subjects, d)
}

func newCertificateVerifier(m root.TrustedMaterial, subjects []Subject, d demands) (*CertificateVerifier, error) {
	v, err := verify.NewVerifier(m, d.options()...)
	if err != nil {
		return nil, err
	}
	return &CertificateVerifier{material: m, demands: d, verifier: v, subjects: subjects}, nil
}

// withChain is trusted material with a signature's own intermediates added, for building paths.
// They are not trusted: a path must still end in a root of the material.
type withChain struct {
	root.TrustedMaterial
	chain []*x509.Certificate
}

func (m withChain) FulcioCertificateAuthorities() []root.CertificateAuthority {
	var all []root.CertificateAuthority
	for _, ca := range m.TrustedMaterial.FulcioCertificateAuthorities() {
		if f, ok := ca.(*root.FulcioCertificateAuthority); ok {
			extended := *f
			extended.Intermediates = append(append([]*x509.Certificate{}, f.Intermediates...), m.chain...)
			ca = &extended
		}
		all = append(all, ca)
	}
	return all
}

// Verify implements Verifier. The time now does not matter: certificates count at the time of the
// signature.
func (v *CertificateVerifier) Verify(s *Signature, _ time.Time) (e *evidence.Evidence, err error) {
	err = guarded(func() error {
		e, err = v.verify(s)
		return err
	})
	return e, err
}

func (v *CertificateVerifier) verify(s *Signature) (*evidence.Evidence, error) {
	if f := noCertificate(s); f != nil {
		return nil, f
	}
	material, verifier := v.material, v.verifier
	if len(s.chain) > 0 {
		var err error
		material = withChain{v.material, s.chain}
		if verifier, err = verify.NewVerifier(material, v.demands.options()...); err != nil {
			return nil, evidence.Fail(evidence.InvalidSignature, "%w", err)
		}
	}
	if s.old != nil && v.demands.log {
		return v.verifyOld(s, material)
	}
	entity, err := s.entity(false)
	if err != nil {
		return nil, v.diagnose(s, material, err)
	}
	result, err := verifier.Verify(entity, verify.NewPolicy(s.artifact(), verify.WithoutIdentitiesUnsafe()))
	if err != nil {
		return nil, v.diagnose(s, material, err)
	}
	e := certificateEvidence(s.leaf)
	e.Log = verifiedEntry(s, v.material.RekorLogs())
	e.Time = earliest(result.VerifiedTimestamps)
	if err := identify(e, v.subjects, s.leaf); err != nil {
		return nil, &evidence.Failure{Reason: evidence.SubjectMismatch, Authentic: true, Evidence: e, Err: err}
	}
	return e, nil
}

// noCertificate returns the Failure for a signature without a readable certificate, nil for any
// other.
func noCertificate(s *Signature) *evidence.Failure {
	switch {
	case s.certificateErr != nil:
		return evidence.Fail(evidence.InvalidSignature, "%w", s.certificateErr)
	case s.leaf == nil:
		return evidence.Fail(evidence.NoMatchingKey, "carries no certificate, the policy trusts certificates of its CA")
	}
	return nil
}

// artifact returns what must have been signed, for sigstore-go. For an envelope that is only the
// envelope. Its statement's subject is judged elsewhere, so that a signature for another image can
// be distinguished from an invalid one.
func (s *Signature) artifact() verify.ArtifactPolicyOption {
	switch {
	case s.isEnvelope:
		return verify.WithoutArtifactUnsafe()
	case s.message != nil:
		return verify.WithArtifact(bytes.NewReader(s.message))
	}
	return verify.WithArtifactDigest("sha256", s.digest)
}

// diagnose finds the reason for an error of sigstore-go. Those errors have no types. Moreover
// sigstore-go checks the log first: it reports a tampered payload as a log entry that does not
// match, and an absent entry like one with a wrong promise. So diagnose repeats the checks that are
// possible here, in the order that a reader expects: is the certificate from a CA of the policy,
// did it sign this, is it logged?
func (v *CertificateVerifier) diagnose(s *Signature, material root.TrustedMaterial, err error) *evidence.Failure {
	if chainErr := verifyChain(material, s.leaf, s.leaf.NotBefore); chainErr != nil {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](chainErr); ok && invalid.Reason == x509.Expired {
			// Not authentic: the expired certificate may be an intermediate from the signature.
			return &evidence.Failure{Reason: evidence.CertificateExpired, Expired: true,
				Err: fmt.Errorf("a CA certificate was not valid when %s was issued: %w", describe(s.leaf), chainErr)}
		}
		return evidence.Fail(evidence.NoMatchingKey, "%s is not from a CA of the policy: %w", describe(s.leaf), chainErr)
	}
	k, keyErr := newKey(s.leaf.PublicKey)
	if keyErr != nil {
		return evidence.Fail(evidence.UnsupportedFormat, "%w", keyErr)
	}
	if _, sigErr := k.verify(s); errors.Is(sigErr, errNeedsManifest) {
		return evidence.Fail(evidence.UnsupportedFormat, "%w", sigErr)
	} else if sigErr != nil {
		return evidence.Fail(evidence.InvalidSignature, "does not verify under %s: %w", describe(s.leaf), plainly(sigErr))
	}
	if f := v.demands.missing(s); f != nil {
		return f.AsAuthentic(true)
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "integrated time outside certificate validity"),
		strings.HasPrefix(text, "failed to verify leaf certificate"):
		return expired(s, "%s was not valid when the signature was made: %w", describe(s.leaf), err)
	case strings.HasPrefix(text, "failed to verify timestamps"):
		return untimed(s, err)
	case strings.HasPrefix(text, "failed to verify signed certificate timestamp"):
		return evidence.Fail(evidence.CertificateLogInvalid, "%w", err).AsAuthentic(true)
	case strings.HasPrefix(text, "failed to verify log inclusion"):
		return evidence.Fail(evidence.TransparencyLogEntryInvalid, "%w", err).AsAuthentic(true)
	case strings.HasPrefix(text, "failed to verify signature"): // k has verified it, with another hash
		return evidence.Fail(evidence.UnsupportedFormat, "it verifies under %s with a hash that is supported only for public keys in policies", describe(s.leaf))
	}
	return evidence.Fail(evidence.InvalidSignature, "%w", err)
}

// expired returns the Failure for an expired certificate from a CA of the policy.
func expired(s *Signature, format string, args ...any) *evidence.Failure {
	f := evidence.Fail(evidence.CertificateExpired, format, args...)
	f.Expired = true
	if k, err := newKey(s.leaf.PublicKey); err == nil {
		_, err = k.verify(s)
		f.Authentic = err == nil
	}
	return f
}

// verifyChain searches for a path from leaf to any CA of the material at the given time. If several
// fail, it returns the error about the CA that issued the leaf, if the material has that CA.
func verifyChain(material root.TrustedMaterial, leaf *x509.Certificate, at time.Time) error {
	var names []string
	var fromIssuer error
	for _, ca := range material.FulcioCertificateAuthorities() {
		_, err := ca.Verify(leaf, at)
		if err == nil {
			return nil
		}
		f, ok := ca.(*root.FulcioCertificateAuthority)
		if !ok {
			continue
		}
		names = append(names, strconv.Quote(f.Root.Subject.CommonName))
		if fromIssuer == nil && issuedUnder(leaf, f.Root, slices.Clone(f.Intermediates)) {
			fromIssuer = cmp.Or(outside(f, at), err)
		}
	}
	switch {
	case fromIssuer != nil:
		return fromIssuer
	case len(names) == 0:
		return errors.New("the policy names no CA")
	}
	return fmt.Errorf("none of %s issued it", strings.Join(names, ", "))
}

// outside returns an error if the trusted root trusts the CA only until before a time, or from
// after it. sigstore-go calls the certificate expired instead.
func outside(ca *root.FulcioCertificateAuthority, at time.Time) error {
	name, at := ca.Root.Subject.CommonName, at.UTC()
	switch from, until := ca.ValidityPeriodStart, ca.ValidityPeriodEnd; {
	case !from.IsZero() && at.Before(from):
		return fmt.Errorf("the trusted root trusts %q only from %s, the certificate was issued at %s", name, from.UTC().Format(time.RFC3339), at.Format(time.RFC3339))
	case !until.IsZero() && at.After(until):
		return fmt.Errorf("the trusted root trusts %q only until %s, the certificate was issued at %s", name, until.UTC().Format(time.RFC3339), at.Format(time.RFC3339))
	}
	return nil
}

// issuedUnder reports whether a chain of signatures leads from c to root, even if certificates are
// not valid. It tries each intermediate once, and modifies the slice.
func issuedUnder(c, root *x509.Certificate, intermediates []*x509.Certificate) bool {
	if c.CheckSignatureFrom(root) == nil {
		return true
	}
	for i, parent := range intermediates {
		if parent != nil && c.CheckSignatureFrom(parent) == nil {
			intermediates[i] = nil
			return issuedUnder(parent, root, intermediates)
		}
	}
	return false
}

func describe(leaf *x509.Certificate) string {
	return fmt.Sprintf("the certificate of %q by %q", subjectName(leaf), leaf.Issuer.CommonName)
}

// certificateEvidence returns the Evidence from a trusted certificate.
func certificateEvidence(leaf *x509.Certificate) *evidence.Evidence {
	e := &evidence.Evidence{
		KeyID:              evidence.KeyID(leaf.RawSubjectPublicKeyInfo),
		Subject:            subjectName(leaf),
		Names:              namesOf(leaf),
		IssuerCommonName:   leaf.Issuer.CommonName,
		IssuerOrganization: strings.Join(leaf.Issuer.Organization, ", "),
		Claims:             fulcioClaims(leaf),
	}
	e.SubjectOrganization = e.Claims[evidence.ClaimOfExtension+ExtensionIssuer]
	for _, name := range []string{"sourceRepositoryURI", "sourceRepositoryOwnerURI", "githubWorkflowRepository", "buildConfigURI"} {
		if value := e.Claims[evidence.ClaimOfExtension+name]; value != "" && !slices.Contains(e.Names, value) {
			e.Names = append(e.Names, value)
		}
	}
	return e
}

var _ verify.SignedEntity = (*bundle.Bundle)(nil)
