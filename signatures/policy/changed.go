package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/internal/sigstore"
)

// With returns a Set that has these policies, too, in place of those of the same names.
func (s *Set) With(changed ...*Policy) (*Set, error) {
	kept := slices.DeleteFunc(s.Policies(), func(p *Policy) bool {
		return slices.ContainsFunc(changed, func(c *Policy) bool { return c.Key() == p.Key() })
	})
	return NewSet(append(kept, changed...))
}

// Without returns a Set without the policy of that name; ok is false if there is none.
func (s *Set) Without(key types.NamespacedName) (without *Set, ok bool, err error) {
	all := s.Policies()
	kept := slices.DeleteFunc(slices.Clone(all), func(p *Policy) bool { return p.Key() == key })
	without, err = NewSet(kept)
	return without, len(kept) < len(all), err
}

// Revoke returns a Set whose policies no longer trust the signers. Policies that cannot have
// trusted them stay as they are.
func (s *Set) Revoke(signers Signers) (*Set, error) {
	all := s.Policies()
	for i, p := range all {
		if !p.mayTrust(signers) {
			continue
		}
		revoked := *p
		revoked.revoked = signers
		sum := sha256.Sum256([]byte(p.hash + " without " + signers.String()))
		revoked.hash = hex.EncodeToString(sum[:])
		all[i] = &revoked
	}
	return NewSet(all)
}

// Distrusts reports whether the policy is one of [Set.Revoke], and evidence names whom that
// revoked.
func (p *Policy) Distrusts(e *evidence.Evidence) bool { return p.revoked.made(e) }

// mayTrust reports whether the policy may trust one of the signers. Whom a certificate is for is
// known only once it has signed.
func (p *Policy) mayTrust(signers Signers) bool {
	switch {
	case p.GPG != nil:
		for id, user := range p.GPG.Keys() {
			if signers.made(&evidence.Evidence{KeyID: id, Subject: user}) {
				return true
			}
		}
		return false
	case p.Sigstore != nil:
		if ids, ok := sigstore.KeyIDs(p.Sigstore); ok {
			return slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(signers.keys, id) })
		}
	}
	return true
}

// Object returns the policy as an object in JSON, if it was parsed from a document: with the
// content of the files that the document names.
func (p *Policy) Object() ([]byte, error) {
	d := Document{APIVersion: apiVersion, Kind: kind, Metadata: Metadata{Name: p.Name, Namespace: p.Namespace, Annotations: p.Admission}, Spec: p.Spec}
	if p.Namespace != "" {
		d.Kind = namespacedKind
	}
	return json.Marshal(d)
}
