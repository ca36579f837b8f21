package find

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Media types of layers that cosign and in-toto make.
const (
	mediaTypeEnvelope = payload.MediaTypeEnvelope
	mediaTypeInToto   = "application/vnd.in-toto+json"
)

// signatureTag reads the tag for signatures that cosign derives from a digest.
func (s *search) signatureTag(ctx context.Context) error {
	if s.withoutSigstore {
		return nil
	}
	m, err := s.tag(ctx, s.digestTag()+".sig", s.demanded)
	if err == nil && m != nil {
		before := len(s.found)
		err = s.simpleSigningLayers(ctx, m)
		s.holding(m, before)
	}
	return err
}

// attestationTag reads the tag for attestations that cosign derives from a digest.
func (s *search) attestationTag(ctx context.Context) error {
	m, err := s.tag(ctx, s.digestTag()+".att", s.attested)
	if err == nil && m != nil {
		s.attestationLayers(m)
	}
	return err
}

// digestTag is the image's digest as a tag. The image's signature and attestation tags begin with
// it.
func (s *search) digestTag() string { return strings.Replace(s.digest, ":", "-", 1) }

// tag fetches the manifest of a tag; nil if there is no usable one. If the list of tags lacks the
// tag and no policy demands its contents, it sends no request. If a policy does demand them, it
// requests the tag anyway, because a proxy's list may be incomplete, until the lists of this part
// of the registry, including this one, have proved to be complete. A tag that exists but cannot be
// read may have signatures: for instance, a proxy may answer with a web page.
func (s *search) tag(ctx context.Context, tag string, demanded bool) (*manifest, error) {
	lacks := false
	if !demanded {
		if has, known, err := s.tags.has(ctx, s, tag); err != nil || known && !has {
			return nil, err
		}
	} else if lacks = s.tags.lacks(ctx, s, tag); lacks && s.tags.agreed.Load() && s.abilities.showsTags() {
		return nil, nil
	}
	m, err := s.client.manifest(ctx, tag)
	if lacks && (err == nil || errors.Is(err, errUnusable)) {
		s.abilities.compared(m != nil || err != nil)
		s.tags.agreed.Store(true)
	}
	if isTooLarge(err) {
		s.cut("tag %s: %v", tag, err)
		return nil, nil
	}
	if errors.Is(err, errUnusable) {
		s.notRead("tag %s: %v", tag, err)
		return nil, nil
	}
	return m, err
}

// simpleSigningLayers adds every layer of a manifest that is a cosign signature. The same payload
// can be in several layers, each with another signature in its annotations.
func (s *search) simpleSigningLayers(ctx context.Context, m *manifest) error {
	isSignature := func(l descriptor) bool { return l.MediaType == payload.MediaTypeSimpleSigning }
	if !slices.ContainsFunc(m.Layers, isSignature) {
		s.notUsable("manifest %s: it has the tag of a signature, but does not contain one", m.digest)
	}
	for _, l := range m.Layers {
		if !isSignature(l) {
			continue
		}
		if !s.countCandidate() {
			return nil
		}
		body, err := s.blob(ctx, l)
		if s.lost(err, "signature "+l.Digest) {
			continue
		}
		if err != nil {
			return err
		}
		content, err := (&payload.Blob{MediaType: l.MediaType, Payload: body, Annotations: l.Annotations}).Marshal()
		if err != nil {
			return err
		}
		s.add(signatures.TypeSimpleSigning, content)
	}
	return nil
}

// attestationLayers lists every layer of a manifest that is an attestation.
func (s *search) attestationLayers(m *manifest) {
	for _, l := range m.Layers {
		if l.MediaType == mediaTypeEnvelope || l.MediaType == mediaTypeInToto {
			s.attest(Attestation{
				Type:   cmp.Or(l.Annotations["predicateType"], l.Annotations["in-toto.io/predicate-type"], l.MediaType),
				Digest: m.digest, Layer: l.Digest, MediaType: l.MediaType, Size: l.Size,
				// an unsigned statement cannot be judged
			}, l, l.MediaType == mediaTypeEnvelope)
		}
	}
}

// blob is client.blob with a cache for this search.
func (s *search) blob(ctx context.Context, d descriptor) ([]byte, error) {
	if b, ok := s.blobs[d.Digest]; ok {
		return b, nil
	}
	b, err := s.client.blob(ctx, d)
	if err == nil {
		s.blobs[d.Digest] = b
	}
	return b, err
}

// leftOut turns an error about a single object into a warning, and reports whether it did.
func (s *search) leftOut(err error, what string) bool {
	if !errors.Is(err, errUnusable) {
		return false
	}
	s.warn("%s: %v", what, err)
	return true
}

// lost is leftOut for an object that may be a signature.
func (s *search) lost(err error, what string) bool {
	if !errors.Is(err, errUnusable) {
		return false
	}
	s.notUsable("%s: %v", what, err)
	return true
}
