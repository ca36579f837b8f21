package signatures

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/internal/sigstore"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Signature is stored signature material: an ImageSignature's type and content.
type Signature struct {
	Type    string
	Content []byte
}

// Image is the image that a signature is judged for.
type Image struct {
	Digest string // "sha256:hex", of the manifest
	// Reference is the image's name, which decides which policy applies and what the signature must
	// name
	Reference string
	// Manifest is the raw manifest, if available. Only bundles that sign the manifest itself with
	// Ed25519, or with another hash than SHA-256, need it.
	Manifest []byte
}

// Verify judges one signature of an image by the policy that covers the image, at the time now.
// With several policies it returns the best verdict: the image must meet all policies, but one
// signature need not.
func Verify(s Signature, image Image, set *policy.Set, now time.Time) Verdict {
	ref, unfit := referenceOf(image)
	policies, err := cover(ref, unfit, set)
	switch {
	case err != nil:
		return unjudged(ReasonNoMatchingPolicy, fmt.Sprintf("no policy can be chosen: %v", err))
	case len(policies) == 0:
		return noPolicy(ref)
	}
	best := decide(s, image, ref, policies[0], check(s, image, policies[0], now))
	for _, p := range policies[1:] {
		if v := decide(s, image, ref, p, check(s, image, p, now)); v.informs() > best.informs() {
			best = v
		}
	}
	return best
}

// referenceOf parses the image's reference. The error says why no policy can be chosen for it.
func referenceOf(image Image) (reference.Reference, error) {
	ref, err := reference.Parse(image.Reference)
	switch {
	case err != nil:
	case ref.Tag != "" && ref.Digest != "":
		// The tag and the digest can disagree, and policies treat them differently.
		// containers/image refuses both, too.
		err = fmt.Errorf("image reference %q has both a tag and a digest; use one", image.Reference)
	case ref.Digest != "" && ref.Digest != image.Digest:
		err = fmt.Errorf("image reference %q names a different digest than the image %s", image.Reference, image.Digest)
	}
	return ref, err
}

// cover finds the policies for a reference. If there are policies, it returns unfit, the error of
// an invalid reference: such an image must not count as one that no policy covers.
func cover(ref reference.Reference, unfit error, set *policy.Set) ([]*policy.Policy, error) {
	switch {
	case unfit == nil:
		return set.For(ref), nil
	case len(set.Policies()) == 0:
		return nil, nil
	}
	return nil, unfit
}

// signedContent is the content of a signature. Trust only what the checker vouches for.
type signedContent struct {
	simple    *payload.SimpleSigning
	statement *payload.Statement
	digest    string // set when the manifest itself is signed
}

// covers reports whether the signature is over the image digest.
func (s signedContent) covers(digest string) bool {
	switch {
	case s.simple != nil:
		return s.simple.Digest == digest
	case s.statement != nil:
		return s.statement.Covers(digest)
	}
	return s.digest != "" && s.digest == digest
}

func (s signedContent) signedDigest() string {
	switch {
	case s.simple != nil:
		return s.simple.Digest
	case s.statement != nil:
		return s.statement.Digest()
	}
	return s.digest
}

// checked is the result of the cryptography. The error is an *evidence.Failure. If the failure is
// authentic, the content of the signature is there, too.
type checked struct {
	what     signedContent
	evidence *evidence.Evidence
	err      error
}

// checks has the results for one image at one time, so that the cryptography is done once for each
// signature and policy, however many repositories and tags the image is judged for.
type checks map[checkKey]checked

// checkKey identifies a signature by the address of its content's first byte, and a policy.
type checkKey struct {
	content *byte
	by      *policy.Policy
}

// of returns the result for a signature.
func (c checks) of(s Signature, image Image, p *policy.Policy, now time.Time) checked {
	if len(s.Content) == 0 {
		return check(s, image, p, now)
	}
	key := checkKey{&s.Content[0], p}
	result, ok := c[key]
	if !ok {
		result = check(s, image, p, now)
		c[key] = result
	}
	return result
}

// check does the cryptography.
func check(s Signature, image Image, p *policy.Policy, now time.Time) checked {
	what, e, err := checkContent(s, image, p, now)
	return checked{what, e, err}
}

func checkContent(s Signature, image Image, p *policy.Policy, now time.Time) (signedContent, *evidence.Evidence, error) {
	if len(s.Content) > verdicts.MaxContent {
		return signedContent{}, nil, evidence.Fail(evidence.InvalidSignature, "the content has %d bytes, at most %d are accepted", len(s.Content), verdicts.MaxContent)
	}
	switch s.Type {
	case TypeAtomic, TypeAtomicAlias:
		// Lookaside storage holds both forms under one name.
		if payload.IsBlob(s.Content) {
			return checkBlob(s.Content, p, now)
		}
		if p.GPG == nil {
			return signedContent{}, nil, evidence.Fail(evidence.NoMatchingKey, "an OpenPGP signature, but the policy trusts no OpenPGP keys")
		}
		doc, e, err := p.GPG.Verify(s.Content, now)
		return signedContent{simple: doc}, e, err
	case TypeSimpleSigning:
		return checkBlob(s.Content, p, now)
	case TypeBundle:
		parsed, err := sigstore.FromBundle(s.Content, image.Manifest)
		if err != nil {
			return signedContent{}, nil, err
		}
		return checkSigstore(parsed, p, now)
	case TypeAttestation:
		parsed, err := sigstore.AttestationOf(s.Content)
		if err != nil {
			return signedContent{}, nil, err
		}
		return checkSigstore(parsed, p, now)
	case TypeNotation:
		if p.Notary == nil {
			return signedContent{}, nil, evidence.Fail(evidence.NoMatchingKey, "a Notary Project signature, but the policy trusts none of these")
		}
		digest, e, err := p.Notary.Verify(s.Content, now)
		return signedContent{digest: digest}, e, err
	}
	return signedContent{}, nil, evidence.Fail(evidence.UnsupportedFormat, "signatures of type %q cannot be verified", s.Type)
}

func checkBlob(content []byte, p *policy.Policy, now time.Time) (signedContent, *evidence.Evidence, error) {
	blob, err := payload.ParseBlob(content)
	if err != nil {
		return signedContent{}, nil, evidence.Fail(evidence.InvalidSignature, "%w", err)
	}
	parsed, err := sigstore.FromBlob(blob)
	if err != nil {
		return signedContent{}, nil, err
	}
	return checkSigstore(parsed, p, now)
}

func checkSigstore(parsed *sigstore.Signature, p *policy.Policy, now time.Time) (signedContent, *evidence.Evidence, error) {
	if p.Sigstore == nil {
		return signedContent{}, nil, evidence.Fail(evidence.NoMatchingKey, "a sigstore signature, but the policy trusts none of these")
	}
	e, err := p.Sigstore.Verify(parsed, now)
	return signedContent{simple: parsed.SimpleSigning, statement: parsed.Statement, digest: parsed.SignedDigest()}, e, err
}

// decide decides the verdict. The cryptography was checked first, because the contents of a
// signature count only if its signer is known; then the digest is compared, then the name.
func decide(s Signature, image Image, ref reference.Reference, p *policy.Policy, c checked) Verdict {
	what, e, err := c.what, c.evidence, c.err
	if err == nil && p.Distrusts(e) {
		err = evidence.Fail(evidence.NoMatchingKey, "signed by %s, who is revoked", e.Signer())
	}
	v := Verdict{Policy: p.ID(), Repository: ref.Name()}
	if s.Type == TypeAttestation && what.statement != nil {
		v.PredicateType, v.Statement = printable.Line(what.statement.PredicateType, maxClaimBytes), what.statement.Sum
	}
	if err != nil {
		var f *evidence.Failure
		if !errors.As(err, &f) { // checkers must return a Failure
			f = evidence.Fail(evidence.InvalidSignature, "%w", err)
		}
		if f.Reason == evidence.UnsupportedFormat {
			return unjudged(f.Reason, v.message(f.Error()))
		}
		v.set(verdicts.Trusted, false, f.Reason, f.Error())
		v.NotAfter = f.NotBefore
		if f.Authentic {
			v.setForImage(what, image)
		} else {
			v.setUnknown(verdicts.ForImage, ReasonNotEvaluated, "no signer trusted by the policy signed this digest")
		}
		if f.Expired {
			v.set(verdicts.Expired, true, f.Reason, f.Error())
		}
		if f.Revoked {
			v.set(verdicts.Revoked, true, f.Reason, f.Error())
		}
		if f.Evidence != nil {
			v.describe(what, f.Evidence, p)
		}
		return v
	}
	v.NotAfter = e.NotAfter
	v.describe(what, e, p)
	v.setForImage(what, image)
	if s.Type == TypeAttestation {
		v.attest(what, image, p, e)
		return v
	}
	switch {
	case !what.covers(image.Digest):
		v.set(verdicts.Trusted, false, ReasonDigestMismatch,
			fmt.Sprintf("signed by %s, but for the image %s", e.Signer(), what.signedDigest()))
	case p.Identity.DigestOnly():
		v.set(verdicts.Trusted, true, ReasonSignatureVerified, fmt.Sprintf("signed by %s", e.Signer()))
	case what.simple == nil:
		v.set(verdicts.Trusted, false, ReasonNoSignedIdentity,
			fmt.Sprintf("signed by %s, but the signature does not name an image: only matchPolicy DigestOnly accepts a bundle", e.Signer()))
	case !p.Identity.Match(ref, what.simple.Reference):
		v.set(verdicts.Trusted, false, ReasonSignedIdentityMismatch,
			fmt.Sprintf("signed by %s as %q, which by %s is not the reference %s", e.Signer(), what.simple.Reference, p.Identity, ref))
	default:
		v.set(verdicts.Trusted, true, ReasonSignatureVerified,
			fmt.Sprintf("signed by %s as %q, judged for the reference %s", e.Signer(), what.simple.Reference, ref))
	}
	if v.Trusted() {
		v.issue(e, p)
	}
	return v
}
