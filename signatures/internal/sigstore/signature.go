package sigstore

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"google.golang.org/protobuf/proto"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// maxCertificates bounds the certificates in one signature's chain.
const maxCertificates = 16

// Signature is a parsed signature that is not verified yet.
type Signature struct {
	// SimpleSigning and Statement are the signed content. One of them is set, or neither for a bundle
	// that signs the manifest itself (SignedDigest).
	SimpleSigning *payload.SimpleSigning
	Statement     *payload.Statement

	message    []byte // the exact bytes that were signed; nil if only their digest is known
	digest     []byte // SHA-256 of the manifest that a message signature bundle claims to sign
	signature  []byte
	isEnvelope bool   // message is the pre-authentication encoding of a DSSE envelope
	hint       string // the key that a bundle names

	leaf  *x509.Certificate
	chain []*x509.Certificate // only helps path building; never trusted

	// The errors of reading annotations of a cosign signature. Only a verifier that needs an
	// annotation returns its error: annotations are not signed, so anyone who can write to the
	// registry can add invalid ones to a valid signature.
	certificateErr, logErr, stampErr error

	// entity returns the signature in sigstore-go's form. asKey leaves out the certificate that a
	// cosign signature may have although it is checked with a key.
	entity func(asKey bool) (*bundle.Bundle, error)
	logs   []*protorekor.TransparencyLogEntry
	old    *oldEntry // set instead of an entry in logs
	stamps int       // number of RFC 3161 timestamps
}

// SignedDigest is the image digest ("sha256:hex") that a bundle signs if it signs the manifest
// itself; "" for every other signature.
func (s *Signature) SignedDigest() string {
	if s.digest == nil {
		return ""
	}
	return "sha256:" + hex.EncodeToString(s.digest)
}

func invalid(format string, args ...any) error {
	return evidence.Fail(evidence.InvalidSignature, format, args...)
}

// FromBlob parses a cosign signature. Errors are *evidence.Failure.
func FromBlob(b *payload.Blob) (*Signature, error) {
	if b.MediaType != payload.MediaTypeSimpleSigning {
		return nil, evidence.Fail(evidence.UnsupportedFormat, "payload media type %q is not supported", b.MediaType)
	}
	claims, err := payload.ParseSimpleSigning(b.Payload, payload.TypeCosign)
	if err != nil {
		return nil, invalid("payload: %w", err)
	}
	s := &Signature{SimpleSigning: claims, message: b.Payload}
	if s.signature, err = base64.StdEncoding.DecodeString(b.Annotations[payload.AnnotationSignature]); err != nil {
		return nil, invalid("signature annotation is not base64: %w", err)
	}
	if len(s.signature) == 0 {
		return nil, invalid("the signature is empty")
	}
	stamp := s.readAnnotations(b)
	s.entity = func(asKey bool) (*bundle.Bundle, error) { return s.asBundle(stamp, asKey) }
	return s, nil
}

// readAnnotations reads the annotations that cosign adds to the signature, and returns the
// timestamp.
func (s *Signature) readAnnotations(b *payload.Blob) (stamp []byte) {
	s.leaf, s.chain, s.certificateErr = parseCertificateAnnotations(b)
	if text := b.Annotations[payload.AnnotationLogBundle]; text != "" {
		entry, err := parseLogBundle([]byte(text))
		if err != nil {
			s.logErr = fmt.Errorf("log bundle annotation: %w", err)
		} else {
			s.logs = []*protorekor.TransparencyLogEntry{entry}
		}
	}
	if text := b.Annotations[payload.AnnotationTimestamp]; text != "" {
		err := payload.Object([]byte(text), payload.Fields{"SignedRFC3161Timestamp": payload.Bytes(&stamp)}, nil)
		if err != nil {
			s.stampErr = fmt.Errorf("timestamp annotation: %w", err)
		} else {
			s.stamps = 1
		}
	}
	return stamp
}

func parseCertificateAnnotations(b *payload.Blob) (leaf *x509.Certificate, chain []*x509.Certificate, err error) {
	text := b.Annotations[payload.AnnotationCertificate]
	if text == "" {
		return nil, nil, nil
	}
	leafs, err := ParseCertificates([]byte(text))
	if err != nil {
		return nil, nil, fmt.Errorf("certificate annotation: %w", err)
	}
	if len(leafs) != 1 {
		return nil, nil, fmt.Errorf("certificate annotation holds %d certificates, must hold exactly one", len(leafs))
	}
	if chain, err = ParseCertificates([]byte(b.Annotations[payload.AnnotationChain])); err != nil {
		return nil, nil, fmt.Errorf("chain annotation: %w", err)
	}
	return leafs[0], chain, nil
}

// asBundle converts a cosign signature to a version 0.1 bundle. Later versions require an inclusion
// proof, which cosign's annotations lack.
func (s *Signature) asBundle(stamp []byte, asKey bool) (*bundle.Bundle, error) {
	mediaType, err := bundle.MediaTypeString("0.1")
	if err != nil {
		return nil, err
	}
	algorithm, digest := s.loggedDigest()
	return bundle.NewBundle(&protobundle.Bundle{
		MediaType:            mediaType,
		VerificationMaterial: s.material(stamp, asKey),
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: algorithm, Digest: digest},
			Signature:     s.signature,
		}},
	})
}

// material returns the content of cosign's annotations in a bundle's form.
func (s *Signature) material(stamp []byte, asKey bool) *protobundle.VerificationMaterial {
	material := &protobundle.VerificationMaterial{}
	if s.leaf != nil && !asKey {
		material.Content = &protobundle.VerificationMaterial_X509CertificateChain{
			X509CertificateChain: &protocommon.X509CertificateChain{
				Certificates: []*protocommon.X509Certificate{{RawBytes: s.leaf.Raw}},
			},
		}
	} else {
		material.Content = &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}}
	}
	material.TlogEntries = s.logs
	if s.stamps > 0 {
		material.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp}},
		}
	}
	return material
}

// loggedDigest computes the message's digest with the algorithm that the log entry names, so that
// the two can be compared. Without an entry it uses SHA-256.
func (s *Signature) loggedDigest() (protocommon.HashAlgorithm, []byte) {
	algorithm, hash := protocommon.HashAlgorithm_SHA2_256, crypto.SHA256
	if len(s.logs) > 0 {
		if entry, err := tlog.ParseTransparencyLogEntry(s.logs[0]); err == nil && tlog.ValidateEntry(entry) == nil {
			switch _, name, _ := entry.GetHashedRekordDigest(); name {
			case "sha384":
				algorithm, hash = protocommon.HashAlgorithm_SHA2_384, crypto.SHA384
			case "sha512":
				algorithm, hash = protocommon.HashAlgorithm_SHA2_512, crypto.SHA512
			}
		}
	}
	h := hash.New()
	h.Write(s.message)
	return algorithm, h.Sum(nil)
}

// parseLogBundle reads cosign's bundle annotation: a Rekor entry and the log's signed promise to
// include it.
func parseLogBundle(data []byte) (*protorekor.TransparencyLogEntry, error) {
	var promise, body, keyID []byte
	var logID string
	var index, integrated int64
	err := payload.Object(data, payload.Fields{
		"SignedEntryTimestamp": payload.Bytes(&promise),
		"Payload": func(raw json.RawMessage) error {
			return payload.Object(raw, payload.Fields{
				"body":           payload.Bytes(&body),
				"integratedTime": payload.Int(&integrated),
				"logIndex":       payload.Int(&index),
				"logID":          payload.String(&logID),
			}, nil)
		},
	}, nil)
	if err != nil {
		return nil, err
	}
	if keyID, err = hex.DecodeString(logID); err != nil || len(keyID) == 0 {
		return nil, fmt.Errorf("log ID %q is not hex", logID)
	}
	var kind, version string
	err = payload.Object(body, payload.Fields{"kind": payload.String(&kind), "apiVersion": payload.String(&version)},
		func(string, json.RawMessage) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("entry body: %w", err)
	}
	return &protorekor.TransparencyLogEntry{
		LogIndex:          index,
		LogId:             &protocommon.LogId{KeyId: keyID},
		KindVersion:       &protorekor.KindVersion{Kind: kind, Version: version},
		IntegratedTime:    integrated,
		InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: promise},
		CanonicalizedBody: body,
	}, nil
}

// FromBundle parses a sigstore bundle, version 0.1 to 0.3. manifest is the image manifest, if
// available. Only a bundle that signs the manifest itself needs it, and only if its algorithm
// cannot work from a SHA-256 digest. Errors are *evidence.Failure.
func FromBundle(raw, manifest []byte) (s *Signature, err error) {
	err = guarded(func() error {
		if s, err = fromBundle(raw, manifest); err == nil && s.Statement != nil && s.Statement.PredicateType != payload.PredicateCosignSign {
			err = evidence.Fail(evidence.UnsupportedFormat, "an attestation of type %q is not an image signature", s.Statement.PredicateType)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func fromBundle(raw, manifest []byte) (*Signature, error) {
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(raw); err != nil {
		if errors.Is(err, bundle.ErrUnsupportedMediaType) {
			return nil, evidence.Fail(evidence.UnsupportedFormat, "%w", err)
		}
		return nil, invalid("bundle: %w", err)
	}
	envelope, err := payload.ParseBundle(raw)
	if err != nil {
		return nil, invalid("bundle: %w", err)
	}
	s := &Signature{entity: func(bool) (*bundle.Bundle, error) { return b, nil }}
	material := b.GetVerificationMaterial()
	s.logs = material.GetTlogEntries()
	s.stamps = len(material.GetTimestampVerificationData().GetRfc3161Timestamps())
	s.hint = material.GetPublicKey().GetHint()

	raws := material.GetX509CertificateChain().GetCertificates()
	if c := material.GetCertificate(); c != nil {
		raws = []*protocommon.X509Certificate{c}
	}
	if len(raws) > maxCertificates {
		return nil, invalid("%d certificates, at most %d allowed", len(raws), maxCertificates)
	}
	for i, c := range raws {
		cert, err := x509.ParseCertificate(c.GetRawBytes())
		if err != nil {
			return nil, invalid("certificate %d: %w", i, err)
		}
		if i == 0 {
			s.leaf = cert
		} else {
			s.chain = append(s.chain, cert)
		}
	}
	if m := b.GetMessageSignature(); m != nil {
		return s, s.fromMessageSignature(m, manifest)
	}
	// sigstore-go verifies its own parse result, so compare it with ours.
	if envelope == nil || !proto.Equal(inProtobuf(envelope), b.GetDsseEnvelope()) {
		return nil, invalid("bundle: its envelope can be read in two ways")
	}
	return s, s.readEnvelope(envelope)
}

func (s *Signature) fromMessageSignature(m *protocommon.MessageSignature, manifest []byte) error {
	s.signature = m.GetSignature()
	claimed := m.GetMessageDigest().GetDigest()
	sum256, sum384, sum512 := sha256.Sum256(manifest), sha512.Sum384(manifest), sha512.Sum512(manifest)
	var sum []byte
	switch m.GetMessageDigest().GetAlgorithm() {
	case protocommon.HashAlgorithm_SHA2_256:
		sum = sum256[:]
	case protocommon.HashAlgorithm_SHA2_384:
		sum = sum384[:]
	case protocommon.HashAlgorithm_SHA2_512:
		sum = sum512[:]
	default:
		return evidence.Fail(evidence.UnsupportedFormat, "message digest algorithm %s is not supported", m.GetMessageDigest().GetAlgorithm())
	}
	switch {
	case manifest != nil && bytes.Equal(sum, claimed):
		s.message, s.digest = manifest, sum256[:]
	case m.GetMessageDigest().GetAlgorithm() == protocommon.HashAlgorithm_SHA2_256 && len(claimed) == sha256.Size:
		s.digest = claimed
	case manifest == nil:
		return evidence.Fail(evidence.UnsupportedFormat, "%w", errNeedsManifest)
	default:
		return evidence.Fail(evidence.UnsupportedFormat,
			"the signature covers a %s of something other than this image's manifest", m.GetMessageDigest().GetAlgorithm())
	}
	return nil
}

func (s *Signature) readEnvelope(envelope *payload.Envelope) error {
	statement, err := envelope.Statement()
	if errors.Is(err, payload.ErrPayloadType) {
		return evidence.Fail(evidence.UnsupportedFormat, "%w", err)
	}
	if err != nil {
		return invalid("%w", err)
	}
	s.Statement = statement
	s.signature = envelope.Signatures[0].Sig
	s.isEnvelope = true
	s.message = preAuthenticationEncoding(envelope.PayloadType, envelope.Payload)
	return nil
}

// preAuthenticationEncoding is the PAE function of the DSSE protocol,
// https://github.com/secure-systems-lab/dsse/blob/master/protocol.md.
func preAuthenticationEncoding(typ string, body []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(typ), typ, len(body), body)
}

// ParseCertificates reads certificates in PEM form, at most 16.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(bytes.TrimSpace(text)) > 0 {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block of type %q, expected CERTIFICATE", block.Type)
		}
		if len(certs) == maxCertificates {
			return nil, fmt.Errorf("more than %d certificates", maxCertificates)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

// guarded calls f and turns a panic into an error. The libraries' parsers read untrusted bytes from
// a registry. A bug in one of them must fail one signature, not the server.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = invalid("the signature caused a panic in the parser: %v", r)
		}
	}()
	return f()
}
