package signatures

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/signatures/attestation"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// TypeAttestation is an in-toto statement that is not an image signature. Its content is the
// unchanged JSON of a sigstore bundle from the registry, or a layer of cosign's .att tag as a
// sigstore blob (payload.Blob).
const TypeAttestation = verdicts.TypeAttestation

// Reasons of conditions on attestations, and of the verdicts that attestations decide.
const (
	ReasonAttestationVerified evidence.Reason = "AttestationVerified" // Trusted=True
	// the policy's expression is false for the predicate
	ReasonPredicateRefused evidence.Reason = "PredicateRefused"
	// the repository has no attestation of the demanded type
	ReasonAttestationMissing evidence.Reason = "AttestationMissing"
	// an attestation of the demanded type is in the repository and could not be stored
	ReasonAttestationLeftOut evidence.Reason = "AttestationLeftOut"
	// the repository has attestations, but no signature
	ReasonOnlyAttestations evidence.Reason = "OnlyAttestations"
)

// attest judges an attestation that the root of trust vouches for. It is trusted if its subject is
// the image and, if the policy demands its type, it meets one of the demands of that type.
func (v *Verdict) attest(content signedContent, image Image, p *policy.Policy, e *evidence.Evidence) {
	if !content.covers(image.Digest) {
		v.set(verdicts.Trusted, false, ReasonDigestMismatch, fmt.Sprintf("attested by %s, but of the image %s", e.Signer(), content.signedDigest()))
		return
	}
	var refusal error
	for _, d := range p.Attestations {
		if d.PredicateType != content.statement.PredicateType {
			continue
		}
		if err := d.Check(content.statement.Predicate); err == nil {
			v.Meets = append(v.Meets, d.Name)
		} else if refusal == nil {
			refusal = fmt.Errorf("attestation %q: %w", d.Name, err)
		}
	}
	if len(v.Meets) == 0 && refusal != nil {
		v.set(verdicts.Trusted, false, ReasonPredicateRefused, fmt.Sprintf("attested by %s, but %v", e.Signer(), refusal))
		return
	}
	v.set(verdicts.Trusted, true, ReasonAttestationVerified, fmt.Sprintf("%s, attested by %s", content.statement.PredicateType, e.Signer()))
}

// isAttestation distinguishes attestations from signatures: an attestation states something about
// an image, which does not mean that its signer approves the image.
func isAttestation(s *imagev1.ImageSignature) bool { return s.Type == TypeAttestation }

// demanded combines the attestations in a repository into one verdict by a policy that demands
// some. All demands must be met. The first one that is not met decides; the verdict's reason is
// that of the best attestation of the demanded type. rank is how informative it is, as in met.
func (p verdictScope) demanded(by *policy.Policy, judged []judgement) (v annotation.Verdict, rank int) {
	v = annotation.Verdict{Verified: verdicts.VerifiedTrue, Reason: string(ReasonAttestationVerified)}
	var there []string
	for _, d := range by.Attestations {
		var best *judgement
		for i := range judged {
			if j := &judged[i]; j.attestation && j.by == by.ID() && j.PredicateType == d.PredicateType && (best == nil || j.nearer(best, d.Name)) {
				best = j
			}
		}
		if best != nil && best.meets(d.Name) {
			there = append(there, d.PredicateType)
			v.Signers = append(v.Signers, best.signers()...)
			continue
		}
		v.Signers = nil
		v.Verified, v.Reason, v.Message = p.unmet(by, d, best)
		v.Message = printable.Line(v.Message, maxSummary)
		if best != nil {
			rank = best.informs()
		}
		return v, rank
	}
	v.Message = printable.Line(fmt.Sprintf("in %s: all attestations that policy %q demands are there: %s", p.repository, by.ID(), strings.Join(there, ", ")), maxSummary)
	return v, rank
}

// maxVouched bounds the vouched-for documents of one repository or tag.
const maxVouched = 16

// vouched returns the signed statements with SBOMs and VEX documents: the digest of each, and its
// trusted signers.
func vouched(judged []judgement) (all map[string]string) {
	for i := range judged {
		j := &judged[i]
		if !j.attestation || !j.Trusted() || !packages.IsDocument(j.PredicateType) {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		if _, known := all[j.Statement]; known || len(all) < maxVouched {
			all[j.Statement] = max(all[j.Statement], cmp.Or(j.IssuedTo.CommonName, j.IssuedTo.PublicKeyID))
		}
	}
	return all
}

// attested combines the attestations in a repository into one verdict if no policy demands any.
func (p verdictScope) attested(judged []judgement) string {
	state := verdicts.Unsigned
	for i := range judged {
		if j := &judged[i]; j.attestation && decides(j.state(), state) {
			state = j.state()
		}
	}
	switch {
	case state != verdicts.Unsigned:
		return state
	case len(p.leftOut()) > 0:
		return verdicts.VerifiedUnknown
	}
	return ""
}

func (p verdictScope) unmet(by *policy.Policy, d *attestation.Demand, best *judgement) (verified, reason, message string) {
	switch {
	case best != nil:
		c, _ := best.Condition(verdicts.Trusted)
		verified = verdicts.VerifiedFalse
		if c.Status == corev1.ConditionUnknown {
			verified = verdicts.VerifiedUnknown
		}
		if forImage, _ := best.Condition(verdicts.ForImage); c.Status == corev1.ConditionTrue && forImage.Status != corev1.ConditionTrue {
			c = forImage
		}
		return verified, string(c.Reason), fmt.Sprintf("attestation %q (%s): %s", d.Name, d.PredicateType, c.Message)
	case slices.Contains(p.leftOut(), d.PredicateType):
		return verdicts.VerifiedUnknown, string(ReasonAttestationLeftOut),
			fmt.Sprintf("in %s: attestation %q (%s) is at the registry and too large, or one of too many, to be read", p.repository, d.Name, d.PredicateType)
	}
	return verdicts.VerifiedFalse, string(ReasonAttestationMissing),
		fmt.Sprintf("in %s: policy %q demands the attestation %q (%s), and there is none", p.repository, by.ID(), d.Name, d.PredicateType)
}

// meets reports whether an attestation is trusted and meets the demand of that name.
func (j *judgement) meets(demand string) bool { return j.Trusted() && slices.Contains(j.Meets, demand) }

// nearer reports whether an attestation is closer to meeting a demand than another: it meets the
// demand, its predicate was judged, or more is known about it.
func (j *judgement) nearer(other *judgement, demand string) bool {
	rank := func(j *judgement) int {
		trusted, _ := j.Condition(verdicts.Trusted)
		switch {
		case j.meets(demand):
			return 4
		case trusted.Reason == ReasonPredicateRefused:
			return 3
		case j.IssuedTo != nil:
			return 2
		case trusted.Status == corev1.ConditionFalse:
			return 1
		}
		return 0
	}
	return rank(j) > rank(other)
}

// onlyAttestations describes the attestations of an image without a signature, and their signers.
func (p verdictScope) onlyAttestations(judged []judgement) (reason, message string) {
	best := map[string]judgement{} // the best of several policies' verdicts
	for _, j := range judged {
		if b, ok := best[j.name]; j.attestation && (!ok || j.informs() > b.informs()) {
			best[j.name] = j
		}
	}
	found := map[string]bool{}
	for _, j := range best {
		switch {
		case j.Trusted():
			found[fmt.Sprintf("%s by %s", j.PredicateType, cmp.Or(j.IssuedTo.CommonName, j.IssuedTo.PublicKeyID))] = true
		case j.IssuedTo != nil:
			found[fmt.Sprintf("%s by %s, who is not trusted (%s)", j.PredicateType, cmp.Or(j.IssuedTo.CommonName, j.IssuedTo.PublicKeyID), j.Reason())] = true
		default:
			found[fmt.Sprintf("%s by an untrusted signer (%s)", cmp.Or(j.PredicateType, "of an unreadable type"), j.Reason())] = true
		}
	}
	for _, typ := range p.leftOut() {
		found[typ+", not read"] = true
	}
	if len(found) == 0 {
		return "", ""
	}
	return string(ReasonOnlyAttestations), printable.Line(fmt.Sprintf("in %s: no signature, but attestations: %s",
		p.repository, strings.Join(slices.Sorted(maps.Keys(found)), "; ")), maxSummary)
}

// leftOut returns the types, sorted, of the attestations that a search found in the repository and
// did not store.
func (p verdictScope) leftOut() []string {
	var listed []struct {
		Type    string `json:"type"`
		LeftOut string `json:"leftOut"`
	}
	if len(p.found.Attestations) == 0 || json.Unmarshal(p.found.Attestations, &listed) != nil {
		return nil
	}
	var out []string
	for _, a := range listed {
		if a.LeftOut != "" {
			out = append(out, a.Type)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
