// Package notary checks signatures of the Notary Project (https://notaryproject.dev): JWS and COSE
// envelopes, as `notation sign` attaches them to images. The checks are those of notation-go at its
// level "strict", with one exception: nothing uses the network, so revocation is checked only by
// lists that the policy has.
package notary

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notaryproject/notation-core-go/revocation"
	"github.com/notaryproject/notation-core-go/revocation/purpose"
	"github.com/notaryproject/notation-core-go/revocation/result"
	"github.com/notaryproject/notation-core-go/signature"
	"github.com/notaryproject/notation-core-go/signature/cose"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-go"
	"github.com/notaryproject/notation-go/verifier"
	"github.com/notaryproject/notation-go/verifier/trustpolicy"
	"github.com/notaryproject/notation-go/verifier/truststore"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Trust has the signers that a Verifier trusts: the content of a statement of notation's trust
// policy, and of the trust stores that the statement names.
type Trust struct {
	// CAs are the root certificates of trust stores of the type ca, SigningAuthorities of the type
	// signingAuthority. A signature names the type that it needs.
	CAs, SigningAuthorities []*x509.Certificate
	// TSAs are the root certificates of a trust store of the type tsa. If there are any, a signature
	// must have a timestamp by one of them, and its certificates must have been valid at that time. If
	// there are none, its certificates must be valid now.
	TSAs []*x509.Certificate
	// Identities are subjects such as "x509.subject: C=US, ST=WA, O=acme". A certificate must have one
	// of them, unless one is "*".
	Identities []string
	// Lists are the revocation lists of the authorities, at most MaxLists. If there are any, each
	// certificate below a root, also of a timestamp, must be covered by a list that holds now.
	Lists []*List
}

// Verifier checks signatures against a Trust. It is safe for concurrent use.
type Verifier struct {
	trust    Trust
	verifier notation.Verifier
}

// CheckRoot returns an error for a certificate that a trust store of the type ca or
// signingAuthority cannot hold. It can hold certificates of authorities, and self-issued
// certificates of signers, as `notation cert generate-test` makes them.
func CheckRoot(c *x509.Certificate) error {
	return truststore.ValidateCertificates([]*x509.Certificate{c})
}

// store is the name of all trust stores.
const store = "policy"

// New returns a Verifier. The error is notation-go's about the identities.
func New(t Trust) (*Verifier, error) {
	v := &Verifier{trust: t}
	var stores []string
	for _, kind := range truststore.Types {
		if len(v.certificates(kind)) > 0 {
			stores = append(stores, string(kind)+":"+store)
		}
	}
	revocation, code, stamps := trustpolicy.ActionSkip, revocation.Validator(noCheck{}), revocation.Validator(noCheck{})
	if len(t.Lists) > 0 { // Verify enforces this, too, because notation-go's errors have no reason
		revocation = trustpolicy.ActionLog
		code, stamps = byLists{t.Lists, purpose.CodeSigning}, byLists{t.Lists, purpose.Timestamping}
	}
	document := &trustpolicy.Document{Version: "1.0", TrustPolicies: []trustpolicy.TrustPolicy{{
		Name: store, RegistryScopes: []string{"*"}, TrustStores: stores, TrustedIdentities: t.Identities,
		SignatureVerification: trustpolicy.SignatureVerification{
			VerificationLevel: trustpolicy.LevelStrict.Name,
			// These two are only logged here, and Verify enforces them, because notation-go uses only the
			// system's clock.
			Override: map[trustpolicy.ValidationType]trustpolicy.ValidationAction{
				trustpolicy.TypeRevocation: revocation, trustpolicy.TypeExpiry: trustpolicy.ActionLog, trustpolicy.TypeAuthenticTimestamp: trustpolicy.ActionLog,
			},
		},
	}}}
	var err error
	v.verifier, err = verifier.NewWithOptions(document, v, nil, verifier.VerifierOptions{
		RevocationCodeSigningValidator: code, RevocationTimestampingValidator: stamps,
	})
	return v, err
}

// GetCertificates is part of truststore.X509TrustStore.
func (v *Verifier) GetCertificates(_ context.Context, kind truststore.Type, _ string) ([]*x509.Certificate, error) {
	return v.certificates(kind), nil
}

func (v *Verifier) certificates(kind truststore.Type) []*x509.Certificate {
	switch kind {
	case truststore.TypeCA:
		return v.trust.CAs
	case truststore.TypeSigningAuthority:
		return v.trust.SigningAuthorities
	}
	return v.trust.TSAs
}

// Trust returns what New was given. The caller must not change it.
func (v *Verifier) Trust() Trust { return v.trust }

// noCheck is the revocation check for a policy without lists: it does nothing.
type noCheck struct{}

// ValidateContext is part of revocation.Validator.
func (noCheck) ValidateContext(_ context.Context, o revocation.ValidateContextOptions) ([]*result.CertRevocationResult, error) {
	return slices.Repeat([]*result.CertRevocationResult{{Result: result.ResultNonRevokable}}, len(o.CertChain)), nil
}

// Verify checks an envelope and returns the digest ("sha256:hex") of the manifest that it signs.
// Every error is an *evidence.Failure. If that is authentic, the digest is returned beside it.
func (v *Verifier) Verify(content []byte, now time.Time) (digest string, e *evidence.Evidence, err error) {
	defer func() {
		if r := recover(); r != nil { // the bytes are untrusted, and the parsers are a library's
			digest, e, err = "", nil, evidence.Fail(evidence.InvalidSignature, "the signature caused a panic in the parser: %v", r)
		}
	}()
	mediaType := cose.MediaTypeEnvelope
	if len(content) > 0 && content[0] == '{' {
		mediaType = jws.MediaTypeEnvelope
	}
	target, err := targetOf(content, mediaType)
	if err != nil {
		return "", nil, evidence.Fail(evidence.InvalidSignature, "%w", err)
	}
	q := &question{now: now}
	outcome, err := v.verifier.Verify(context.WithValue(context.Background(), questionKey{}, q), target, content, notation.VerifierVerifyOptions{
		ArtifactReference: "localhost/image@" + target.Digest.String(), SignatureMediaType: mediaType,
	})
	if err != nil {
		return target.Digest.String(), nil, v.diagnose(outcome, err)
	}
	// Use the payload that was verified.
	if target, err = readTarget(outcome.EnvelopeContent.Payload.Content); err != nil {
		return "", nil, evidence.Fail(evidence.InvalidSignature, "%w", err)
	}
	e = v.evidenceOf(outcome)
	for key, value := range target.Annotations { // notation sign --user-metadata
		e.Claims["annotations."+key] = value
	}
	if err := v.timely(outcome, e, q); err != nil {
		return target.Digest.String(), nil, err
	}
	return target.Digest.String(), e, nil
}

// targetOf reads what an envelope claims to sign. That is not verified yet.
func targetOf(content []byte, mediaType string) (target ocispec.Descriptor, err error) {
	if mediaType == jws.MediaTypeEnvelope {
		if err := checkJWS(content); err != nil {
			return target, err
		}
	}
	envelope, err := signature.ParseEnvelope(mediaType, content)
	if err != nil {
		return target, err
	}
	signed, err := envelope.Content()
	if err != nil {
		return target, err
	}
	return readTarget(signed.Payload.Content)
}

// checkJWS refuses a JWS envelope that two parsers could read differently. notation's parser
// ignores the case of keys, and accepts repeated ones. COSE needs no such check: go-cose refuses
// repeated keys, and they have no case.
func checkJWS(content []byte) error {
	if err := payload.Unambiguous(content, true); err != nil {
		return err
	}
	part := func(check func([]byte) error) func(json.RawMessage) error {
		return func(raw json.RawMessage) error {
			var text string
			if err := payload.String(&text)(raw); err != nil {
				return err
			}
			decoded, err := base64.RawURLEncoding.Strict().DecodeString(text)
			if err != nil {
				return err
			}
			return check(decoded)
		}
	}
	ignore := func(json.RawMessage) error { return nil }
	return payload.Object(content, payload.Fields{
		"payload":   part(func(b []byte) error { return payload.Unambiguous(b, false) }),
		"protected": part(func(b []byte) error { return payload.Unambiguous(b, true) }),
		"signature": part(func([]byte) error { return nil }),
		"header":    ignore,
	}, nil)
}

// readTarget reads the payload of an envelope.
func readTarget(content []byte) (target ocispec.Descriptor, err error) {
	ignore := func(string, json.RawMessage) error { return nil }
	nothing := func(json.RawMessage) error { return nil }
	err = payload.Object(content, payload.Fields{"targetArtifact": func(raw json.RawMessage) error {
		err := payload.Object(raw, payload.Fields{"mediaType": nothing, "digest": nothing, "size": nothing, "annotations": nothing}, ignore)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &target)
	}}, ignore)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("payload: %w", err)
	}
	if err := target.Digest.Validate(); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("payload: the digest %q: %w", target.Digest, err)
	}
	return target, nil
}

// diagnose finds the reason for an error of notation-go. Those errors have no types.
func (v *Verifier) diagnose(outcome *notation.VerificationOutcome, err error) *evidence.Failure {
	var inconclusive notation.VerificationInconclusiveError
	switch {
	case errors.As(err, &inconclusive): // it needs a plugin
		return evidence.Fail(evidence.UnsupportedFormat, "%w", err)
	case outcome == nil || outcome.EnvelopeContent == nil:
		return evidence.Fail(evidence.InvalidSignature, "%w", err)
	}
	last := outcome.VerificationResults[len(outcome.VerificationResults)-1]
	if last.Type != trustpolicy.TypeAuthenticity {
		return evidence.Fail(evidence.InvalidSignature, "%w", err)
	}
	signer := &outcome.EnvelopeContent.SignerInfo
	roots := v.trust.CAs
	if signer.SignedAttributes.SigningScheme == signature.SigningSchemeX509SigningAuthority {
		roots = v.trust.SigningAuthorities
	}
	if _, err := signature.VerifyAuthenticity(signer, roots); err != nil {
		return evidence.Fail(evidence.NoMatchingKey, "the certificate of %q is from no CA of the policy: %w", signer.CertificateChain[0].Subject, err)
	}
	return &evidence.Failure{Reason: evidence.SubjectMismatch, Authentic: true, Evidence: v.evidenceOf(outcome),
		Err: fmt.Errorf("signed by %q, who is not one of %s", signer.CertificateChain[0].Subject, strings.Join(v.trust.Identities, "; "))}
}

// timely returns a Failure if an otherwise valid signature is not valid at the time now, and
// records in e until when it is valid.
func (v *Verifier) timely(outcome *notation.VerificationOutcome, e *evidence.Evidence, q *question) error {
	signer, now := &outcome.EnvelopeContent.SignerInfo, q.now
	until := func(t time.Time) {
		if !t.IsZero() && (e.NotAfter.IsZero() || t.Before(e.NotAfter)) {
			e.NotAfter = t
		}
	}
	expiry := signer.SignedAttributes.Expiry
	if !expiry.IsZero() && !now.Before(expiry) {
		f := evidence.Fail(evidence.KeyExpired, "the signature expired at %s", expiry.UTC().Format(time.RFC3339)).AsAuthentic(true)
		f.Expired = true
		return f
	}
	until(expiry)
	if q.failure != nil {
		return q.failure
	}
	until(q.until)
	if signer.SignedAttributes.SigningScheme == signature.SigningSchemeX509SigningAuthority || len(v.trust.TSAs) > 0 {
		for _, r := range outcome.VerificationResults {
			if r.Type == trustpolicy.TypeAuthenticTimestamp && r.Error != nil {
				return evidence.Fail(evidence.TimestampInvalid, "%w", r.Error).AsAuthentic(true)
			}
		}
		return nil
	}
	for _, c := range signer.CertificateChain {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			f := evidence.Fail(evidence.CertificateExpired, "the certificate of %q is valid from %s to %s, and without a timestamp it has to be valid now",
				c.Subject, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339)).AsAuthentic(true)
			if f.Expired = now.After(c.NotAfter); !f.Expired {
				f.NotBefore = c.NotBefore
			}
			return f
		}
		until(c.NotAfter)
	}
	return nil
}

// evidenceOf reads the certificate of a signature, which leads to a root of the policy.
func (v *Verifier) evidenceOf(outcome *notation.VerificationOutcome) *evidence.Evidence {
	signer := &outcome.EnvelopeContent.SignerInfo
	leaf := signer.CertificateChain[0]
	e := &evidence.Evidence{
		KeyID: evidence.KeyID(leaf.RawSubjectPublicKeyInfo), Subject: leaf.Subject.String(),
		IssuerCommonName: leaf.Issuer.CommonName, IssuerOrganization: strings.Join(leaf.Issuer.Organization, ", "),
		Claims: map[string]string{"notary.signingScheme": string(signer.SignedAttributes.SigningScheme)},
	}
	for _, identity := range v.trust.Identities {
		if name, ok := strings.CutPrefix(identity, "x509.subject:"); ok && isPart(name, e.Subject) {
			e.Names = append(e.Names, strings.TrimSpace(name))
		}
	}
	if at, err := signer.AuthenticSigningTime(); err == nil {
		e.Time = at.UTC()
	}
	return e
}

// isPart reports whether a subject has all attributes of a policy's identity. The verifier decides
// who is trusted; isPart only finds the policy's name for the signer.
func isPart(identity, subject string) bool {
	have := strings.Split(subject, ",")
	for attribute := range strings.SplitSeq(identity, ",") {
		if !slices.Contains(have, strings.TrimSpace(attribute)) {
			return false
		}
	}
	return true
}
