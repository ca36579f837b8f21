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

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/signatures"
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

// referrers reads every manifest whose subject is the image.
func (s *search) referrers(ctx context.Context) error {
	list, err := s.listReferrers(ctx)
	if err != nil {
		return err
	}
	// If there are too many, the choice must not depend on the registry's order.
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
		switch d.Annotations[annotationPredType] {
		case "", payload.PredicateCosignSign:
			// a list by tag may have digests alone, as cosign writes it
			if s.maySign(d.ArtifactType) || d.ArtifactType == "" && !s.withoutSigstore {
				out = s.lost
			}
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

// listReferrers reads all pages of the API (OCI distribution specification 1.1, "Listing
// Referrers"). If there is no API, or if it fails, it reads the fallback tag, whose contents count
// in any case.
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
	if failure, passing := s.abilities.failing(s.memory.clock.Now()); failure != nil {
		answered()
		if passing {
			s.passing = failure
		}
		s.pageNotRead(0, failure)
		return s.fallbackTag(ctx)
	}
	var list []descriptor
	pages := s.client.List(s.client.Path("referrers/"+s.digest), 0)
	for page := 0; pages.Path() != ""; page++ {
		if page == maxPages {
			s.cut("more than %d pages of referrers; the rest was not read", maxPages)
			return list, nil
		}
		referrers, header, err := s.referrersPage(ctx, pages.Path(), page)
		answered()
		switch {
		case errors.Is(err, errUnusable): // it is too large
			s.cut("referrers: %v", err)
			return list, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && pages.IsGuess():
			return list, nil // the registry has no further page, although its answer named one
		case err != nil && page > 0:
			s.pageNotRead(page, err)
			return list, nil
		case errors.Is(err, errNoReferrers):
			return s.fallbackTag(ctx)
		case err != nil:
			s.pageNotRead(page, err)
			return s.fallbackTag(ctx)
		}
		digests := make([]string, len(referrers))
		for i, d := range referrers {
			digests[i] = d.Digest
		}
		isNew, elsewhere := pages.Read(header, digests)
		if isNew {
			list = append(list, referrers...)
		}
		if why := pages.Cut(); why != "" {
			s.cut("referrers: %s; the rest was not read", why)
		}
		if elsewhere {
			s.notRead("the next page of the referrers is on another host; the rest was not read")
		}
		if len(list) > MaxLooked {
			break // look() will say so
		}
	}
	return list, nil
}

// maxErrorText bounds how much of a registry's error message is shown, in bytes.
const maxErrorText = 200

// errNoReferrers is the error for a registry without a referrers API.
var errNoReferrers = errors.New("the registry has no referrers API")

// pageNotRead warns that a page of the referrers could not be read.
func (s *search) pageNotRead(page int, err error) {
	s.notRead("page %d of the referrers cannot be read: %v", page+1, shortened(err))
}

// shortened shortens a registry's message within an error.
func shortened(err error) error {
	answer, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return err
	}
	err = fmt.Errorf("status %d", answer.StatusCode)
	if len(answer.Errors) > 0 {
		err = fmt.Errorf("%w (%s: %s)", err, answer.Errors[0].Code, printable.Line(answer.Errors[0].Message, maxErrorText))
	}
	return err
}

// referrersPage reads one page of the referrers.
func (s *search) referrersPage(ctx context.Context, path string, page int) ([]descriptor, http.Header, error) {
	body, status, header, err := s.client.get(ctx, path, mediaTypeIndex, MaxManifest,
		http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errUnusable) && s.abilities.fails(err, s.memory.clock.Now()) && page == 0 {
			s.passing = err
		}
		return nil, nil, err
	}
	if status != http.StatusOK {
		if page == 0 {
			s.abilities.answered(status, header, s.memory.clock.Now())
			return nil, nil, errNoReferrers
		}
		return nil, nil, fmt.Errorf("status %d", status)
	}
	var index manifest
	// The Content-Type is not checked: registries send all sorts.
	err = json.Unmarshal(body, &index)
	if err == nil && index.Manifests == nil && index.MediaType != mediaTypeIndex {
		err = errors.New("it is not an index")
	}
	if err != nil {
		// If a server answers with a web page, it is unknown whether the registry has referrers.
		return nil, nil, err
	}
	s.abilities.answered(status, header, s.memory.clock.Now())
	return index.Manifests, header, nil
}

// fallbackTag reads the index that clients keep under a tag if the registry has no referrers API.
func (s *search) fallbackTag(ctx context.Context) ([]descriptor, error) {
	index, err := s.tag(ctx, s.digestTag(), s.demanded || s.attested)
	if err != nil || index == nil || index.digest == s.digest {
		// cosign copy pushes the image itself under this tag
		return nil, err
	}
	if index.Manifests == nil && index.MediaType != mediaTypeIndex {
		s.notUsable("tag %s: it has the name of an index of signatures, but is not one", s.digestTag())
	}
	return index.Manifests, nil
}

// maySign reports whether artifacts of a type are, or may be, signatures that are read.
func (s *search) maySign(artifact string) bool {
	return artifact == artifactNotation || !s.withoutSigstore && (strings.HasPrefix(artifact, bundlePrefix) || artifact == artifactCosignSig)
}

// referrer determines the kind of a referrer, and adds it. It reads the manifest itself, because
// descriptors in a listing may lack annotations or have a wrong artifact type.
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

// bundle adds a sigstore bundle: as a signature if it is one, otherwise as an attestation. If the
// manifest's annotations say that it is an attestation, the bundle is not read now, because SBOMs
// are large. A user who can put a false annotation on a signature could also remove the signature.
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
// statement. It only sorts bundles.
func predicateOf(bundle []byte) (string, error) {
	envelope, err := payload.ParseBundle(bundle)
	if err != nil {
		return "", unusable("%w", err)
	}
	if envelope == nil {
		return "", nil
	}
	statement, err := envelope.Statement()
	switch {
	case errors.Is(err, payload.ErrPayloadType):
		return "unknown", nil
	case err != nil:
		return "", unusable("%w", err)
	}
	return cmp.Or(statement.PredicateType, "unknown"), nil
}
