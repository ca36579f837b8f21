package payload

import (
	"encoding/json"
	"errors"
)

// maxEnvelopeSignatures bounds the signatures that are read of an envelope. Only an envelope with a
// single signature is judged.
const maxEnvelopeSignatures = 16

// ErrPayloadType is wrapped by the error about an envelope that holds something else than an
// in-toto statement.
var ErrPayloadType = errors.New("payload type is not supported")

// Envelope is a DSSE envelope
// (https://github.com/secure-systems-lab/dsse/blob/master/envelope.md).
type Envelope struct {
	PayloadType string
	Payload     []byte
	Signatures  []EnvelopeSignature
}

// EnvelopeSignature is a signature of an Envelope.
type EnvelopeSignature struct {
	KeyID string
	Sig   []byte
}

// Statement reads the statement in the envelope. It refuses an envelope that has not exactly one
// signature: of several, one verifier may look for a good one and another may take the first, and
// they would disagree on who signed.
func (e *Envelope) Statement() (*Statement, error) {
	if n := len(e.Signatures); n != 1 {
		return nil, malformed("envelope has %d signatures, must have exactly one", n)
	}
	if e.PayloadType != MediaTypeInToto {
		return nil, malformed("envelope payload type %q: %w", e.PayloadType, ErrPayloadType)
	}
	s, err := ParseStatement(e.Payload)
	if err != nil {
		return nil, inField("statement", err)
	}
	return s, nil
}

// ParseEnvelope reads a DSSE envelope. It refuses keys that the format does not have: another
// reader may find a second payload under one of them. A signature may have more keys than its two,
// as some signers put a certificate there.
func ParseEnvelope(data []byte) (*Envelope, error) {
	if err := Unambiguous(data, true); err != nil {
		return nil, err
	}
	e := &Envelope{}
	ignore := func(string, json.RawMessage) error { return nil }
	err := Object(data, Fields{
		"payloadType": String(&e.PayloadType),
		"payload":     Bytes(&e.Payload),
		"signatures": Array(maxEnvelopeSignatures, func(raw json.RawMessage) error {
			var one EnvelopeSignature
			err := Object(raw, Fields{"keyid": String(&one.KeyID), "sig": Bytes(&one.Sig)}, ignore)
			e.Signatures = append(e.Signatures, one)
			return err
		}),
	}, nil)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// ParseBundle reads the envelope in a sigstore bundle; nil if the bundle signs something without
// one. The rest of the bundle is not looked at, but for its keys: those of protobuf's other
// spelling (dsse_envelope), of another case, and repeated ones are refused anywhere in it.
func ParseBundle(data []byte) (e *Envelope, err error) {
	if err := Unambiguous(data, true); err != nil {
		return nil, err
	}
	ignore := func(json.RawMessage) error { return nil }
	err = Object(data, Fields{
		"mediaType":            ignore,
		"verificationMaterial": ignore,
		"messageSignature":     ignore,
		"dsseEnvelope": func(raw json.RawMessage) (err error) {
			e, err = ParseEnvelope(raw)
			return err
		},
	}, nil)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// ParseAttestation reads the statement in an attestation as it is in a registry, or as an Image
// holds it: a sigstore bundle, a DSSE envelope, or one as a Blob. Whoever needs a statement that is
// signed reads it here, those who verify it too: so what was verified is what is read. Nobody has
// verified it yet.
func ParseAttestation(content []byte) (*Statement, error) {
	if IsBlob(content) {
		b, err := ParseBlob(content)
		if err != nil {
			return nil, err
		}
		if b.MediaType != MediaTypeEnvelope {
			return nil, malformed("media type %q is not one of an attestation", b.MediaType)
		}
		content = b.Payload
	} else if e, err := ParseBundle(content); err == nil && e != nil {
		return e.Statement()
	} else if err == nil {
		return nil, malformed("a signature without a statement is not an attestation")
	} else if isBundle(content) {
		return nil, err
	}
	e, err := ParseEnvelope(content)
	if err != nil {
		return nil, err
	}
	return e.Statement()
}

// isBundle tells a bundle from an envelope, for the choice between two errors.
func isBundle(content []byte) bool {
	bundle := false
	_ = Object(content, Fields{"mediaType": func(json.RawMessage) error { bundle = true; return nil }}, func(string, json.RawMessage) error { return nil })
	return bundle
}
