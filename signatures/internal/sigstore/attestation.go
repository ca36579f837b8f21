package sigstore

import (
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore-go/pkg/bundle"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// AttestationOf parses an attestation: a sigstore bundle of version 0.1 to 0.3, or a layer that
// `cosign attest` writes, as a payload.Blob. The Signature that it returns has its Statement set. A
// statement that is an image signature is refused. Errors are *evidence.Failure.
func AttestationOf(content []byte) (s *Signature, err error) {
	err = guarded(func() error {
		if payload.IsBlob(content) {
			s, err = attestationOfLayer(content)
		} else {
			s, err = fromBundle(content, nil)
		}
		switch {
		case err != nil:
			return err
		case s.Statement == nil:
			return invalid("a signature without a statement is not an attestation")
		case s.Statement.PredicateType == payload.PredicateCosignSign:
			return invalid("a statement of type %q is an image signature, not an attestation", s.Statement.PredicateType)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func attestationOfLayer(content []byte) (*Signature, error) {
	b, err := payload.ParseBlob(content)
	if err != nil {
		return nil, invalid("%w", err)
	}
	if b.MediaType != payload.MediaTypeEnvelope {
		return nil, evidence.Fail(evidence.UnsupportedFormat, "attestation media type %q is not supported", b.MediaType)
	}
	envelope, err := payload.ParseEnvelope(b.Payload)
	if err != nil {
		return nil, invalid("envelope: %w", err)
	}
	s := &Signature{}
	if err := s.readEnvelope(envelope); err != nil {
		return nil, err
	}
	stamp := s.readAnnotations(b)
	if len(s.logs) == 1 && isOldEntry(s.logs[0]) {
		s.logs, s.old = nil, newOldEntry(s.logs[0], b.Payload)
	}
	s.entity = func(asKey bool) (*bundle.Bundle, error) {
		mediaType, err := bundle.MediaTypeString("0.1")
		if err != nil {
			return nil, err
		}
		return bundle.NewBundle(&protobundle.Bundle{
			MediaType:            mediaType,
			VerificationMaterial: s.material(stamp, asKey),
			Content:              &protobundle.Bundle_DsseEnvelope{DsseEnvelope: inProtobuf(envelope)},
		})
	}
	return s, nil
}

func inProtobuf(e *payload.Envelope) *protodsse.Envelope {
	out := &protodsse.Envelope{PayloadType: e.PayloadType, Payload: e.Payload}
	for _, s := range e.Signatures {
		out.Signatures = append(out.Signatures, &protodsse.Signature{Keyid: s.KeyID, Sig: s.Sig})
	}
	return out
}
