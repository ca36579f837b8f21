package sigstore

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	_ "github.com/sigstore/rekor/pkg/types/intoto/v0.0.1" // makes tlog read entries of this kind
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// oldEntry is a log entry of kind intoto 0.0.1, which cosign made for attestations before 2.2. It
// has the hash of the uploaded envelope, which covers the signature, and the key or certificate.
// sigstore-go reads such an entry and verifies the log's promise, but does not connect it with the
// envelope.
type oldEntry struct {
	entry *protorekor.TransparencyLogEntry
	err   error // why it does not belong to this envelope
	key   []byte
}

func isOldEntry(e *protorekor.TransparencyLogEntry) bool {
	k := e.GetKindVersion()
	return k.GetKind() == "intoto" && k.GetVersion() == "0.0.1"
}

// newOldEntry reads an entry, which must be about the envelope.
func newOldEntry(entry *protorekor.TransparencyLogEntry, envelope []byte) *oldEntry {
	old := &oldEntry{entry: entry}
	var algorithm, value string
	ignore := func(string, json.RawMessage) error { return nil }
	object := func(fields payload.Fields) func(json.RawMessage) error {
		return func(raw json.RawMessage) error { return payload.Object(raw, fields, ignore) }
	}
	old.err = payload.Object(entry.GetCanonicalizedBody(), payload.Fields{"spec": object(payload.Fields{
		"content":   object(payload.Fields{"hash": object(payload.Fields{"algorithm": payload.String(&algorithm), "value": payload.String(&value)})}),
		"publicKey": payload.Bytes(&old.key),
	})}, ignore)
	sum := sha256.Sum256(envelope)
	if old.err == nil && (algorithm != "sha256" || value != hex.EncodeToString(sum[:])) {
		old.err = fmt.Errorf("is of another envelope, with the %s %s", algorithm, value)
	}
	return old
}

// promised verifies that a log has promised to include the envelope with the certificate, or with
// the key if certificate is nil. It returns the time of the promise.
func (o *oldEntry) promised(logs map[string]*root.TransparencyLog, key crypto.PublicKey, certificate *x509.Certificate) (*evidence.LogEntry, error) {
	if o.err != nil {
		return nil, o.err
	}
	if certificate != nil {
		if block, _ := pem.Decode(o.key); block == nil || !bytes.Equal(block.Bytes, certificate.Raw) {
			return nil, errors.New("is of another certificate")
		}
	} else if public, err := cryptoutils.UnmarshalPEMToPublicKey(o.key); err != nil || !samePublicKey(public, key) {
		return nil, errors.New("is of another key")
	}
	entry, err := tlog.ParseTransparencyLogEntry(o.entry)
	if err != nil {
		return nil, err
	}
	if err := tlog.VerifySET(entry, logs); err != nil {
		return nil, err
	}
	return &evidence.LogEntry{ID: hex.EncodeToString(o.entry.GetLogId().GetKeyId()), Index: entry.LogIndex(), Time: entry.IntegratedTime().UTC()}, nil
}

// verifyOld is verify for an attestation with an oldEntry. The certificate must be valid at the
// time of the log's promise.
func (v *CertificateVerifier) verifyOld(s *Signature, material root.TrustedMaterial) (*evidence.Evidence, error) {
	k, err := newKey(s.leaf.PublicKey)
	if err != nil {
		return nil, evidence.Fail(evidence.UnsupportedFormat, "%w", err)
	}
	// Check the certificate's CA first, so that a certificate of an unknown CA is reported as such.
	if err := verifyChain(material, s.leaf, s.leaf.NotBefore); err != nil {
		return nil, v.diagnose(s, material, err)
	}
	hash, err := k.verify(s)
	if err != nil {
		return nil, evidence.Fail(evidence.InvalidSignature, "does not verify under %s: %w", describe(s.leaf), plainly(err))
	}
	entry, err := s.old.promised(v.material.RekorLogs(), nil, s.leaf)
	if err != nil {
		return nil, evidence.Fail(evidence.TransparencyLogEntryInvalid, "log entry: %w", err).AsAuthentic(true)
	}
	chains, err := verify.VerifyLeafCertificate(entry.Time, s.leaf, material)
	if err != nil {
		return nil, expired(s, "%s was not valid when the signature was made, at %s: %w", describe(s.leaf), entry.Time.Format(time.RFC3339), err)
	}
	if v.demands.certificateLog {
		if err := verify.VerifySignedCertificateTimestamp(chains, 1, material); err != nil {
			return nil, evidence.Fail(evidence.CertificateLogInvalid, "%w", err).AsAuthentic(true)
		}
	}
	e := certificateEvidence(s.leaf)
	e.Log, e.Time, e.Hash = entry, entry.Time, hash
	if err := identify(e, v.subjects, s.leaf); err != nil {
		return nil, &evidence.Failure{Reason: evidence.SubjectMismatch, Authentic: true, Evidence: e, Err: err}
	}
	return e, nil
}
