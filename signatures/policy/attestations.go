package policy

import (
	"fmt"
	"strings"

	"github.com/tidewaiter/tidewaiter/signatures/attestation"
)

// Attestation (an addition of ours) is an attestation that an image must have. The names of the
// fields are from sigstore's policy-controller; there, the type "cel" does not exist.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Attestation struct {
	// Name is unique within the policy, and is used in messages.
	Name string `json:"name"`
	// PredicateType is a URI, or one of the names that cosign has for some: slsaprovenance1,
	// spdxjson, cyclonedx, vuln, ….
	PredicateType string `json:"predicateType"`
	// Policy is a condition on the predicate. Without it, any predicate is accepted.
	Policy *PredicatePolicy `json:"policy,omitempty"`
}

// PredicatePolicy is a condition on a predicate.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PredicatePolicy struct {
	// Type is "cel".
	Type string `json:"type"`
	// Data is an expression of type bool, in which "predicate" is the predicate.
	Data string `json:"data"`
}

// typeCEL is the one value of a predicate policy's type.
const typeCEL = "cel"

// maxAttestations bounds the attestations that a policy demands.
const maxAttestations = 16

func (b *builder) attestations(p *Policy, d *DocumentPolicy) error {
	const at = "spec.policy.attestations"
	switch {
	case d.Attestations == nil:
		return nil
	case len(d.Attestations) == 0 || len(d.Attestations) > maxAttestations:
		return b.fail(at, "has %d items, must have 1 to %d; leave it out to demand a signature", len(d.Attestations), maxAttestations)
	case p.Sigstore == nil:
		return b.fail(at, "cannot be met: attestations are signed with sigstore's keys or certificates, and this root of trust is of others")
	case d.SignedIdentity != nil && !p.Identity.DigestOnly():
		return b.fail(at, "cannot be met: attestations are about a digest and name no image; leave signedIdentity out, or write matchPolicy: DigestOnly")
	}
	seen := map[string]bool{}
	for i, a := range d.Attestations {
		item := fmt.Sprintf("%s[%d]", at, i)
		expression := ""
		switch {
		case a.Name == "":
			return b.fail(item+".name", "is required")
		case seen[a.Name]:
			return b.fail(item+".name", "%q appears twice", a.Name)
		case a.PredicateType == "":
			return b.fail(item+".predicateType", "is required")
		case a.Policy == nil:
		case a.Policy.Type != typeCEL:
			return b.fail(item+".policy.type", "is %q, must be %s: write what the predicate must be in CEL", a.Policy.Type, typeCEL)
		case strings.TrimSpace(a.Policy.Data) == "":
			return b.fail(item+".policy.data", "is required; leave policy out to accept any predicate")
		default:
			expression = a.Policy.Data
		}
		if _, err := attestation.TypeOf(a.PredicateType); err != nil {
			return b.fail(item+".predicateType", "%w", err)
		}
		demand, err := attestation.NewDemand(a.Name, a.PredicateType, expression)
		if err != nil {
			return b.fail(item+".policy.data", "%w", err)
		}
		seen[a.Name] = true
		p.Attestations = append(p.Attestations, demand)
	}
	return nil
}
