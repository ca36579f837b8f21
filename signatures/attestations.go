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

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/attestation"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// TypeAttestation is an in-toto statement that is not an image signature. Its content is a sigstore
// bundle's JSON as it was in the registry, or a layer of cosign's .att tag as a sigstore blob
// (payload.Blob).
const TypeAttestation = verdicts.TypeAttestation

// Reasons of conditions on attestations, and of the verdicts that attestations decide.
const (
	ReasonAttestationVerified evidence.Reason = "AttestationVerified" // Trusted=True
	// the policy's expression is not true of the predicate
	ReasonPredicateRefused evidence.Reason = "PredicateRefused"
	// of a repository: none of the demanded type is there
	ReasonAttestationMissing evidence.Reason = "AttestationMissing"
	// of a repository: one of the demanded type could not be kept
	ReasonAttestationLeftOut evidence.Reason = "AttestationLeftOut"
	// of a repository: no signature, but attestations
	ReasonOnlyAttestations evidence.Reason = "OnlyAttestations"
)

// attest judges an attestation that the root of trust vouches for. It is trusted if it is about the
// image. Where the policy demands its type, it also has to meet one of the demands of that type.
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

// isAttestation tells attestations from signatures: an attestation says something about an image,
// but not that anybody approves of it.
func isAttestation(s *imagev1.ImageSignature) bool { return s.Type == TypeAttestation }

// demanded makes one verdict of the attestations in a repository, by a policy that demands some.
// All of them have to be there. The first that is missing decides, and its reason is that of the
// best attestation of its type.
func (p verdictScope) demanded(by *policy.Policy, judged []judgement) annotation.Verdict {
	v := annotation.Verdict{Verified: verdicts.VerifiedTrue, Reason: string(ReasonAttestationVerified)}
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
			v.Signers = append(v.Signers, cmp.Or(best.IssuedTo.CommonName, best.IssuedTo.PublicKeyID))
			continue
		}
		v.Signers = nil
		v.Verified, v.Reason, v.Message = p.unmet(by, d, best)
		v.Message = printable.Line(v.Message, maxSummary)
		return v
	}
	v.Message = printable.Line(fmt.Sprintf("in %s: all attestations that policy %q demands are there: %s", p.repository, by.ID(), strings.Join(there, ", ")), maxSummary)
	return v
}

// attested makes one verdict of the attestations in a repository where no policy demands any.
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

// meets reports whether a trusted attestation meets the demand of that name.
func (j *judgement) meets(demand string) bool { return j.Trusted() && slices.Contains(j.Meets, demand) }

// nearer reports whether one attestation comes closer to a demand than another: it meets the
// demand, it was judged, or more is known of it.
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

// onlyAttestations describes the attestations of an image without a signature, and who vouches for
// them.
func (p verdictScope) onlyAttestations(judged []judgement) (reason, message string) {
	best := map[string]judgement{} // of several policies
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

// leftOut are the types, sorted, of the attestations that a search saw in the repository and did
// not bring.
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
