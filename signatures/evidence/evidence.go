// Package evidence is what the cryptographic checkers (signatures/internal/sigstore,
// signatures/internal/gpg, signatures/internal/notary) hand to the judge (package signatures):
// Evidence when a signature is good under a root of trust, a Failure when not.
package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Evidence is what a root of trust vouches for about one signature.
type Evidence struct {
	// KeyID identifies the signing key: "sha256:" and the hex SHA-256 of its SubjectPublicKeyInfo,
	// or the full OpenPGP fingerprint in hex.
	KeyID string
	// Subject is the owner of the key: the certificate's subject alternative name or the OpenPGP
	// user ID; "" for a bare key.
	Subject string
	// SubjectOrganization is the OpenID Connect issuer that vouched for the subject, if any.
	SubjectOrganization string
	// IssuerCommonName and IssuerOrganization name the certificate's issuer; for OpenPGP the common
	// name is the 16 hex digits of the signing key's ID.
	IssuerCommonName, IssuerOrganization string
	// Time is when the signature was made, according to the transparency log, a timestamp authority
	// or the OpenPGP packet; zero if nobody vouches for a time.
	Time time.Time
	// Log is the transparency log entry that was verified, if one was.
	Log *LogEntry
	// Claims are further verified facts, such as fulcio.githubWorkflowRepository.
	Claims map[string]string
	// NotAfter is when time alone ends the evidence; zero for never.
	NotAfter time.Time
}

// KeyID is the ID of a public key with this SubjectPublicKeyInfo (RFC 5280) in DER.
func KeyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return "sha256:" + hex.EncodeToString(sum[:])
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

// Reason says in one word why a signature is not trusted. The values appear as the reason of
// conditions.
type Reason string

// Reasons that the checkers give. The judge has more of its own.
const (
	// NoMatchingKey: no key or CA of the policy made it, or it looks as if none did.
	NoMatchingKey Reason = "NoMatchingKey"
	// InvalidSignature: malformed, or claims a key of the policy and does not verify under it.
	InvalidSignature Reason = "InvalidSignature"
	// UnsupportedFormat: as far as can be told it is well-formed, but nothing here can check it.
	UnsupportedFormat Reason = "UnsupportedFormat"
	// SubjectMismatch: good, but signed by somebody else.
	SubjectMismatch Reason = "SubjectMismatch"
	// CertificateExpired: the certificate was not valid at the time that counts.
	CertificateExpired Reason = "CertificateExpired"
	// KeyExpired and KeyRevoked: the OpenPGP key has expired or was revoked, or the signature
	// itself has expired.
	KeyExpired Reason = "KeyExpired"
	KeyRevoked Reason = "KeyRevoked"
	// NotYetValid: the OpenPGP key, or the signature itself, becomes valid only later.
	NotYetValid Reason = "NotYetValid"
	// TransparencyLogEntryMissing and TransparencyLogEntryInvalid: the policy wants a log entry.
	TransparencyLogEntryMissing Reason = "TransparencyLogEntryMissing"
	TransparencyLogEntryInvalid Reason = "TransparencyLogEntryInvalid"
	// TimestampInvalid: the policy wants a signed time, and the signature has none that the policy
	// trusts.
	TimestampInvalid Reason = "TimestampInvalid"
	// CertificateLogInvalid: the policy wants proof that the certificate was logged (SCT).
	CertificateLogInvalid Reason = "CertificateLogInvalid"
)

// Failure says why a root of trust does not vouch for a signature.
type Failure struct {
	Reason Reason
	// Authentic tells that the signature does verify under a key of the policy, so that the digest
	// in it was really signed. Something else is wanting.
	Authentic bool
	// Expired and Revoked tell that expiry or revocation is the cause, whatever Reason says.
	Expired, Revoked bool
	// NotBefore is when time alone may make the signature good; zero for never.
	NotBefore time.Time
	// Evidence is set only when the signature is good but its subject is the wrong one
	// (SubjectMismatch).
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
