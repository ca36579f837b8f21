package manifest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
)

// schema1Layer is an entry of fsLayers, the newest layer first.
type schema1Layer struct {
	BlobSum string `json:"blobSum"`
}

// schema1History is an entry of history, parallel to fsLayers. V1Compatibility is a JSON document.
type schema1History struct {
	V1Compatibility string `json:"v1Compatibility"`
}

// jwsSignature is one signature of a "pretty" JWS. Only the protected header matters here, because
// it defines the signed payload. The keys of the signatures do not identify a signer, and are not
// checked.
type jwsSignature struct {
	Protected string `json:"protected"`
}

// jwsProtected is the protected header: the payload is the first FormatLength bytes of the document
// followed by the decoded FormatTail.
type jwsProtected struct {
	FormatLength int    `json:"formatLength"`
	FormatTail   string `json:"formatTail"`
}

// parseSchema1 reads a Docker image manifest of version 2, schema 1. Only the payload counts,
// because the digest covers it.
func parseSchema1(raw []byte, wire *wireManifest, given string) (*Manifest, error) {
	mediaType := MediaTypeSchema1
	payload := raw
	if wire.Signatures != nil {
		mediaType = MediaTypeSchema1Signed
		var err error
		if payload, err = jwsPayload(raw, *wire.Signatures); err != nil {
			return nil, err
		}
		if wire, err = decode(payload); err != nil {
			return nil, err
		}
		if wire.SchemaVersion != 1 || wire.Signatures != nil {
			return nil, fmt.Errorf("manifest is %w: its signed payload is not a schema 1 manifest", ErrAmbiguous)
		}
	}
	if given != "" && given != mediaType {
		return nil, fmt.Errorf("manifest is %w: it was served as %q but is %q", ErrAmbiguous, given, mediaType)
	}
	if wire.MediaType != "" && wire.MediaType != mediaType {
		return nil, fmt.Errorf("manifest is %w: its mediaType is %q but it is %q", ErrAmbiguous, wire.MediaType, mediaType)
	}
	if wire.Manifests != nil || wire.Layers != nil || wire.Config != nil {
		return nil, fmt.Errorf("manifest is %w: schemaVersion 1 with fields of schemaVersion 2", ErrAmbiguous)
	}
	if wire.FSLayers == nil || wire.History == nil || len(*wire.FSLayers) == 0 || len(*wire.FSLayers) != len(*wire.History) {
		return nil, fmt.Errorf("manifest: %w: schema 1 needs fsLayers and history of the same length", ErrInvalid)
	}
	m := &Manifest{MediaType: mediaType, Kind: KindSchema1, SchemaVersion: 1, canonical: payload}
	for i, l := range *wire.FSLayers {
		var c struct {
			Size int64 `json:"Size"`
		}
		if err := json.Unmarshal([]byte((*wire.History)[i].V1Compatibility), &c); err != nil {
			return nil, fmt.Errorf("manifest: %w: history[%d].v1Compatibility: %v", ErrInvalid, i, err)
		}
		m.Layers = append(m.Layers, Descriptor{MediaType: mediaTypeSchema1Layer, Digest: l.BlobSum, Size: c.Size})
	}
	slices.Reverse(m.Layers)
	config, err := ParseConfig([]byte((*wire.History)[0].V1Compatibility))
	if err != nil {
		return nil, fmt.Errorf("manifest: history[0].v1Compatibility: %w", err)
	}
	m.history = config
	return m, nil
}

// jwsPayload rebuilds the payload of a pretty JWS. All signatures must agree on it.
func jwsPayload(raw []byte, signatures []jwsSignature) ([]byte, error) {
	if len(signatures) == 0 {
		return nil, fmt.Errorf("manifest: %w: signatures is empty", ErrInvalid)
	}
	var payload []byte
	for i, s := range signatures {
		header, err := base64.RawURLEncoding.DecodeString(s.Protected)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w: signatures[%d].protected: %v", ErrInvalid, i, err)
		}
		var p jwsProtected
		if err := json.Unmarshal(header, &p); err != nil {
			return nil, fmt.Errorf("manifest: %w: signatures[%d].protected: %v", ErrInvalid, i, err)
		}
		tail, err := base64.RawURLEncoding.DecodeString(p.FormatTail)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w: signatures[%d].protected.formatTail: %v", ErrInvalid, i, err)
		}
		if p.FormatLength < 0 || p.FormatLength > len(raw) {
			return nil, fmt.Errorf("manifest: %w: signatures[%d].protected.formatLength: %d is outside the document", ErrInvalid, i, p.FormatLength)
		}
		if i > 0 {
			if p.FormatLength+len(tail) != len(payload) || !bytes.Equal(payload[:p.FormatLength], raw[:p.FormatLength]) || !bytes.Equal(payload[p.FormatLength:], tail) {
				return nil, fmt.Errorf("manifest is %w: its signatures cover different payloads", ErrAmbiguous)
			}
			continue
		}
		payload = slices.Concat(raw[:p.FormatLength], tail)
	}
	return payload, nil
}
