package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
)

// alternatives checks the name of a group; "" is none.
func (b *builder) alternatives(group string) (string, error) {
	if group == "" {
		if _, written := b.doc.lines["spec.alternatives"]; written {
			return "", b.fail("spec.alternatives", "is empty: write the name of a group, such as release, or leave it out")
		}
		return "", nil
	}
	if wrong := validation.IsDNS1123Label(group); len(wrong) > 0 {
		return "", b.fail("spec.alternatives", "is %.64q, which is not the name of a group, such as release: %s", group, wrong[0])
	}
	return group, nil
}

// isAlternative reports whether two policies are in one group.
func (p *Policy) isAlternative(other *Policy) bool {
	return p.Alternatives != "" && p.Alternatives == other.Alternatives && p.Namespace == other.Namespace
}

// Requirement is what an image must meet: one policy, or any of several alternatives, in the order
// of their names.
type Requirement []*Policy

// Requirements returns what an image must meet by the policies that cover a reference, as [Set.For]
// and [Set.InNamespaces] return them. Each group of alternatives is one requirement, and so is each
// policy without a group; the image must meet all of them. A policy of a group that does not cover
// the reference is not in covering, and so is no alternative there.
func Requirements(covering []*Policy) (all []Requirement) {
	for _, p := range covering {
		at := slices.IndexFunc(all, func(r Requirement) bool { return p.isAlternative(r[0]) })
		if at < 0 {
			all = append(all, Requirement{p})
			continue
		}
		all[at] = append(all[at], p)
	}
	return all
}

// Alone returns the scopes at which a policy of a group has no alternative in the set. The name of
// the group may be misspelt.
func (s *Set) Alone(p *Policy) (scopes []string) {
	if p.Alternatives == "" {
		return nil
	}
	for _, scope := range p.Scopes {
		if s == nil || !slices.ContainsFunc(s.scopesOf(p)[scope], func(other *Policy) bool { return other.Key() != p.Key() && p.isAlternative(other) }) {
			scopes = append(scopes, scope)
		}
	}
	return scopes
}
