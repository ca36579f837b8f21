package payload

import (
	"bytes"
	"encoding/json"
)

// blobMagic opens the sigstore form of containers/image's signature blobs; a bare OpenPGP message
// never begins with a zero byte.
const blobMagic = "\x00sigstore-json\n"

// MediaTypeSimpleSigning is the media type of a cosign payload, both as a layer and inside a blob.
const MediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"

// MediaTypeEnvelope is the media type of a DSSE envelope, which `cosign attest` writes into layers.
const MediaTypeEnvelope = "application/vnd.dsse.envelope.v1+json"

// Keys of the annotations that cosign puts on a signature layer.
const (
	AnnotationSignature   = "dev.cosignproject.cosign/signature" // base64
	AnnotationCertificate = "dev.sigstore.cosign/certificate"    // PEM, the leaf
	AnnotationChain       = "dev.sigstore.cosign/chain"          // PEM, intermediates then root
	// JSON, the Rekor entry with its promise
	AnnotationLogBundle = "dev.sigstore.cosign/bundle"
	// JSON, a timestamp authority's answer
	AnnotationTimestamp = "dev.sigstore.cosign/rfc3161timestamp"
	maxAnnotations      = 64
)

// Blob is one cosign signature or attestation, with everything that is needed to verify it:
// payload, media type and annotations.
type Blob struct {
	MediaType   string
	Payload     []byte
	Annotations map[string]string
}

// IsBlob reports whether content is in the sigstore blob form.
func IsBlob(content []byte) bool { return bytes.HasPrefix(content, []byte(blobMagic)) }

// ParseBlob reads the sigstore blob form.
func ParseBlob(content []byte) (*Blob, error) {
	body, ok := bytes.CutPrefix(content, []byte(blobMagic))
	if !ok {
		return nil, malformed("not a sigstore signature blob")
	}
	b := &Blob{}
	err := Object(body, Fields{
		"mimeType":    String(&b.MediaType),
		"payload":     Bytes(&b.Payload),
		"annotations": stringMap(&b.Annotations),
	}, nil)
	if err != nil {
		return nil, err
	}
	if len(b.Annotations) > maxAnnotations {
		return nil, malformed("%d annotations, at most %d allowed", len(b.Annotations), maxAnnotations)
	}
	return b, nil
}

// Marshal writes the sigstore blob form. The same Blob always gives the same bytes.
func (b *Blob) Marshal() ([]byte, error) {
	body, err := json.Marshal(struct {
		MediaType   string            `json:"mimeType"`
		Payload     []byte            `json:"payload"`
		Annotations map[string]string `json:"annotations"`
	}{b.MediaType, b.Payload, b.Annotations})
	if err != nil {
		return nil, err
	}
	return append([]byte(blobMagic), body...), nil
}
