// Package evidence has the results of the cryptographic checkers (signatures/internal/sigstore,
// signatures/internal/gpg, signatures/internal/notary) for package signatures: Evidence if a
// signature is valid under a root of trust, a Failure if not.
package evidence

import (
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Evidence is what a root of trust vouches for about one signature.
type Evidence struct {
	// KeyID identifies the signing key: "sha256:" and the hex SHA-256 of its SubjectPublicKeyInfo,
	// or the full OpenPGP fingerprint in hex.
	KeyID string
	// SigningKeyID is the fingerprint of the OpenPGP subkey that signed; "" if the primary key signed,
	// or if the key is no OpenPGP key.
	SigningKeyID string
	// Subject is the owner of the key: the name in the certificate that the policy requires, or the
	// OpenPGP user ID; "" for a bare key.
	Subject string
	// Names are all names of the certificate or OpenPGP key, including Subject, the policy's own name
	// for it, and the repository, owner and workflow that it was built from. If one of them is
	// revoked, the signer is revoked.
	Names []string
	// SubjectOrganization is the OpenID Connect issuer that vouched for the subject, if any.
	SubjectOrganization string
	// IssuerCommonName and IssuerOrganization name the certificate's issuer; for OpenPGP the common
	// name is the 16 hex digits of the signing key's ID.
	IssuerCommonName, IssuerOrganization string
	// Time is when the signature was made, by the transparency log, a timestamp authority or the
	// OpenPGP packet; zero if none of them vouches for a time.
	Time time.Time
	// Hash is the hash with which the signature was made; 0 if that is not known, or with Ed25519.
	Hash crypto.Hash
	// Log is the transparency log entry that was verified, if one was.
	Log *LogEntry
	// Claims are further verified facts, such as fulcio.githubWorkflowRepository.
	Claims map[string]string
	// Extensions are the names of Fulcio's extensions that the policy demands. Claims has them.
	Extensions []string
	// NotAfter is when the evidence expires; zero for never.
	NotAfter time.Time
}

// KeyID returns the ID of a public key, given its SubjectPublicKeyInfo (RFC 5280) in DER.
func KeyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ClaimOfExtension is the prefix of Fulcio's extensions in Claims.
const ClaimOfExtension = "fulcio."

// sourceRepository is the name of the extension with the repository that was built: for a reusable
// workflow, the caller's repository.
const sourceRepository = "sourceRepositoryURI"

// SourceRepository returns the repository that a workflow was run for, given the claims and the
// subject of its certificate; "" if that is not known, or the subject is a workflow in that
// repository.
func SourceRepository(claims map[string]string, subject string) string {
	source := claims[ClaimOfExtension+sourceRepository]
	if source == "" || strings.HasPrefix(subject, source+"/") {
		return ""
	}
	return source
}

// Signer describes the signer in one phrase, for messages.
func (e *Evidence) Signer() string {
	s := "key " + e.KeyID
	if e.Subject != "" {
		s = fmt.Sprintf("%s (key %s)", e.Subject, e.KeyID)
		if e.SubjectOrganization != "" {
			s = fmt.Sprintf("%s of %s", e.Subject, e.SubjectOrganization)
		}
	}
	shown := e.Extensions
	if SourceRepository(e.Claims, e.Subject) != "" && !slices.Contains(shown, sourceRepository) {
		shown = append([]string{sourceRepository}, shown...)
	}
	for _, name := range shown {
		s += fmt.Sprintf(", %s %s", name, e.Claims[ClaimOfExtension+name])
	}
	if e.Hash != 0 && e.Hash != crypto.SHA256 {
		s += ", with " + e.Hash.String()
	}
	if e.Log != nil {
		s += fmt.Sprintf(", log index %d", e.Log.Index)
	}
	if !e.Time.IsZero() {
		s += ", at " + e.Time.UTC().Format(time.RFC3339)
	}
	return s
}

// LogEntry is a verified entry of a transparency log.
type LogEntry struct {
	ID    string    // hex of the log's key ID
	Index int64     // index in the log, or in the tree of the proof if the log made no promise
	Time  time.Time // when the log promised to include the entry; zero if it made no promise
}

// Reason is one word for why a signature is not trusted. The values appear as the reason of
// conditions.
type Reason string

// Reasons that the checkers give. The judge has more of its own.
const (
	// NoMatchingKey: no key or CA of the policy made the signature, as far as can be determined.
	NoMatchingKey Reason = "NoMatchingKey"
	// InvalidSignature: the signature is malformed, or it claims a key of the policy and does not
	// verify with it.
	InvalidSignature Reason = "InvalidSignature"
	// UnsupportedFormat: the signature seems well-formed, but this program cannot check its format.
	UnsupportedFormat Reason = "UnsupportedFormat"
	// SubjectMismatch: the signature is valid, but another subject signed it.
	SubjectMismatch Reason = "SubjectMismatch"
	// CertificateExpired: the certificate was not valid at the relevant time.
	CertificateExpired Reason = "CertificateExpired"
	// CertificateRevoked: the signer's certificate, one above it, or one of the timestamp's, is in a
	// revocation list of the policy.
	CertificateRevoked Reason = "CertificateRevoked"
	// RevocationUnknown: the policy has revocation lists, but no list that is valid now covers one of
	// the certificates.
	RevocationUnknown Reason = "RevocationUnknown"
	// KeyExpired and KeyRevoked: the OpenPGP key has expired or was revoked, or the signature
	// itself has expired.
	KeyExpired Reason = "KeyExpired"
	KeyRevoked Reason = "KeyRevoked"
	// NotYetValid: the OpenPGP key, or the signature itself, becomes valid only later.
	NotYetValid Reason = "NotYetValid"
	// TransparencyLogEntryMissing and TransparencyLogEntryInvalid: the policy requires a log entry.
	TransparencyLogEntryMissing Reason = "TransparencyLogEntryMissing"
	TransparencyLogEntryInvalid Reason = "TransparencyLogEntryInvalid"
	// TimestampInvalid: the policy requires a signed time, and the signature has none that the policy
	// trusts.
	TimestampInvalid Reason = "TimestampInvalid"
	// CertificateLogInvalid: the policy requires a proof that the certificate was logged (SCT), and it
	// is missing or invalid.
	CertificateLogInvalid Reason = "CertificateLogInvalid"
)

// Failure says why a root of trust does not vouch for a signature.
type Failure struct {
	Reason Reason
	// Authentic is true if the signature verifies with a key of the policy, but something else is
	// wrong. Its digest was really signed.
	Authentic bool
	// Expired and Revoked are true if expiry or revocation is the cause, even if Reason is another
	// one.
	Expired, Revoked bool
	// NotBefore is when the signature may become valid without another change; zero for never.
	NotBefore time.Time
	// Evidence is set only if the signature is valid and has the wrong subject (SubjectMismatch).
	Evidence *Evidence
	Err      error
}

func (f *Failure) Error() string { return f.Err.Error() }

func (f *Failure) Unwrap() error { return f.Err }

// Fail makes a Failure with a formatted error.
func Fail(reason Reason, format string, args ...any) *Failure {
	return &Failure{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// AsAuthentic returns f with Authentic set to authentic.
func (f *Failure) AsAuthentic(authentic bool) *Failure {
	f.Authentic = authentic
	return f
}
