package find

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/payload"
)

// Artifact and media types of referrers.
const (
	bundlePrefix       = "application/vnd.dev.sigstore.bundle"
	artifactCosignSig  = "application/vnd.dev.cosign.artifact.sig.v1+json"
	artifactNotation   = "application/vnd.cncf.notary.signature"
	annotationPredType = "dev.sigstore.bundle.predicateType"
	annotationContent  = "dev.sigstore.bundle.content"
	mediaTypeIndex     = "application/vnd.oci.image.index.v1+json"
)

// referrers looks at every manifest whose subject is the image.
func (s *search) referrers(ctx context.Context) error {
	list, err := s.listReferrers(ctx)
	if err != nil {
		return err
	}
	// Of too many, those looked at must not depend on the order in which the registry lists them.
	slices.SortStableFunc(list, func(a, b descriptor) int { return strings.Compare(a.Digest, b.Digest) })
	for _, d := range list {
		if !s.countCandidate() {
			return nil
		}
		if !digestPattern.MatchString(d.Digest) {
			s.warn("referrer %q: its digest is not sha256", clip(d.Digest))
			continue
		}
		out := s.leftOut
		if s.maySign(d.ArtifactType) && d.Annotations[annotationPredType] == "" {
			out = s.lost
		}
		m, err := s.client.manifest(ctx, d.Digest)
		if err == nil && m == nil {
			err = unusable("the registry lists it but does not have it")
		}
		if out(err, "referrer "+d.Digest) {
			continue
		}
		if err != nil {
			return err
		}
		switch {
		case m.Subject == nil || m.Subject.Digest != s.digest:
			s.warn("referrer %s: it is listed for the image but refers to another one", d.Digest)
		default:
			before := len(s.found)
			if err := s.referrer(ctx, m); err != nil {
				return err
			}
			s.holding(m, before)
		}
	}
	return nil
}

// listReferrers asks the API (OCI distribution specification 1.1, "Listing Referrers") for all its
// pages, and reads the fallback tag when there is no API.
func (s *search) listReferrers(ctx context.Context) ([]descriptor, error) {
	answered, err := s.abilities.await(ctx)
	if err != nil {
		return nil, err
	}
	defer answered()
	if s.abilities.lacksReferrers(s.memory.clock.Now()) {
		answered()
		return s.fallbackTag(ctx)
	}
	var list []descriptor
	here := s.client.Path("referrers/" + s.digest)
	visited := map[string]bool{}
	for page := 0; here != ""; page++ {
		if page == maxPages || visited[here] {
			s.cut("more than %d pages of referrers, or a page that leads back; the rest was not read", maxPages)
			return list, nil
		}
		visited[here] = true
		body, status, header, err := s.client.get(ctx, here, mediaTypeIndex, MaxManifest,
			http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented)
		if errors.Is(err, errUnusable) { // it is too large
			s.cut("referrers: %v", err)
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if page == 0 && status != http.StatusOK {
			s.abilities.answered(status, header, s.memory.clock.Now())
		}
		answered()
		var index manifest
		// The Content-Type is not checked: registries send all sorts.
		if status == http.StatusOK {
			err = json.Unmarshal(body, &index)
			if err == nil && index.Manifests == nil && index.MediaType != mediaTypeIndex {
				err = errors.New("it is not an index")
			}
		}
		if status != http.StatusOK || err != nil {
			// A server that answers with a web page may have referrers, as far as is known. One
			// that says it has no API has none.
			if page > 0 || err != nil {
				s.notRead("page %d of the referrers cannot be read: %v", page+1, cmp.Or(err, fmt.Errorf("status %d", status)))
			}
			if page > 0 {
				return list, nil
			}
			return s.fallbackTag(ctx)
		}
		s.abilities.answered(status, header, s.memory.clock.Now())
		list = append(list, index.Manifests...)
		if len(list) > MaxLooked {
			break // look() will say so
		}
		elsewhere := false
		if here, elsewhere = s.client.Next(header, here); elsewhere {
			s.notRead("the next page of the referrers is on another host; the rest was not read")
		}
	}
	return list, nil
}

// fallbackTag reads the index that clients keep at a tag where the registry has no referrers API.
func (s *search) fallbackTag(ctx context.Context) ([]descriptor, error) {
	index, err := s.tag(ctx, strings.Replace(s.digest, ":", "-", 1), s.demanded || s.attested)
	if err != nil || index == nil || index.digest == s.digest {
		// cosign copy leaves the image itself there
		return nil, err
	}
	if index.Manifests == nil && index.MediaType != mediaTypeIndex {
		s.notUsable("tag %s: it has the name of an index of signatures, but is not one", strings.Replace(s.digest, ":", "-", 1))
	}
	return index.Manifests, nil
}

// maySign reports whether artifacts of a type are, or may be, signatures that are read.
func (s *search) maySign(artifact string) bool {
	return artifact == artifactNotation || !s.withoutSigstore && (strings.HasPrefix(artifact, bundlePrefix) || artifact == artifactCosignSig)
}

// referrer finds out what a referrer is, and takes it. It reads the manifest itself: descriptors in
// a listing may lack annotations or have a wrong artifact type.
func (s *search) referrer(ctx context.Context, m *manifest) error {
	kind := cmp.Or(m.ArtifactType, m.Config.MediaType)
	var first descriptor
	if len(m.Layers) > 0 {
		first = m.Layers[0]
	}
	switch {
	case strings.HasPrefix(kind, bundlePrefix) || strings.HasPrefix(first.MediaType, bundlePrefix):
		return s.bundle(ctx, m, first)
	case kind == artifactCosignSig || first.MediaType == payload.MediaTypeSimpleSigning:
		if s.withoutSigstore {
			return nil
		}
		return s.simpleSigningLayers(ctx, m)
	case kind == artifactNotation || m.Config.MediaType == artifactNotation:
		body, err := s.blob(ctx, first)
		if s.lost(err, "Notary signature "+m.digest) {
			return nil
		}
		if err != nil {
			return err
		}
		s.add(signatures.TypeNotation, body)
	case first.MediaType == mediaTypeEnvelope || first.MediaType == mediaTypeInToto:
		s.attestationLayers(m)
	default:
		s.attest(Attestation{Type: cmp.Or(kind, first.MediaType, "unknown"), Digest: m.digest, MediaType: first.MediaType, Size: first.Size}, first, false)
	}
	return nil
}

// bundle takes a sigstore bundle: as a signature if it is one, otherwise as an attestation. If the
// manifest's annotations say that it is an attestation, the bundle is not fetched now, because
// SBOMs are large. Somebody who can put a false annotation on a signature could as well remove the
// signature.
func (s *search) bundle(ctx context.Context, m *manifest, layer descriptor) error {
	predicate := m.Annotations[annotationPredType]
	isSignature := predicate == payload.PredicateCosignSign || m.Annotations[annotationContent] == "message-signature"
	if isSignature && s.withoutSigstore {
		return nil
	}
	out := s.lost
	if s.withoutSigstore {
		out = s.leftOut
	}
	var body []byte
	if predicate == "" || isSignature {
		var err error
		body, err = s.blob(ctx, layer)
		if out(err, "bundle "+m.digest) {
			return nil
		}
		if err != nil {
			return err
		}
		if predicate, err = predicateOf(body); out(err, "bundle "+m.digest) {
			return nil
		}
		isSignature = predicate == "" || predicate == payload.PredicateCosignSign
	}
	if isSignature {
		if !s.withoutSigstore {
			s.add(signatures.TypeBundle, body)
		}
		return nil
	}
	s.attest(Attestation{Type: predicate, Digest: m.digest, MediaType: layer.MediaType, Size: layer.Size}, layer, true)
	return nil
}

// predicateOf reads the predicate type of the statement in a bundle; "" for a bundle without a
// statement. It only sorts bundles. One that it takes for a signature is parsed strictly when it is
// verified.
func predicateOf(bundle []byte) (string, error) {
	var b struct {
		Envelope *struct {
			Payload []byte `json:"payload"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		return "", unusable("%w", err)
	}
	if b.Envelope == nil {
		return "", nil
	}
	var statement struct {
		PredicateType string `json:"predicateType"`
	}
	if err := json.Unmarshal(b.Envelope.Payload, &statement); err != nil {
		return "", unusable("statement: %w", err)
	}
	return cmp.Or(statement.PredicateType, "unknown"), nil
}
