package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/internal/sigstore"
)

// With returns a Set with these policies added. They replace policies with the same names.
func (s *Set) With(changed ...*Policy) (*Set, error) {
	if s != nil && len(changed) == 1 {
		return s.withOne(changed[0])
	}
	kept := slices.DeleteFunc(s.Policies(), func(p *Policy) bool {
		return slices.ContainsFunc(changed, func(c *Policy) bool { return c.Key() == p.Key() })
	})
	return NewSet(append(kept, changed...))
}

// Accepts returns the error with which With would refuse a policy, nil if it would not.
func (s *Set) Accepts(p *Policy) error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, scope := range p.Scopes {
		sharing := slices.DeleteFunc(slices.Clone(s.scopesOf(p)[scope]), func(other *Policy) bool { return other.Key() == p.Key() })
		errs = append(errs, p.tooManyShare(scope, append(sharing, p)))
	}
	return errors.Join(errs...)
}

// withOne is With for one policy. Apart from copies and the hash, its cost depends only on this
// policy.
func (s *Set) withOne(p *Policy) (*Set, error) {
	if err := s.Accepts(p); err != nil {
		return nil, err
	}
	next := s.clone()
	next.remove(p.Key())
	at, _ := slices.BinarySearchFunc(next.policies, p, byName)
	next.policies = slices.Insert(next.policies, at, p)
	of := next.scopesOf(p)
	for _, scope := range p.Scopes {
		of[scope] = append(slices.Clone(of[scope]), p)
		slices.SortFunc(of[scope], byName)
	}
	next.sum()
	return next, nil
}

// Without returns a Set without the policy of this name; ok is false if there is none.
func (s *Set) Without(key types.NamespacedName) (without *Set, ok bool) {
	if s.Named(key) == nil {
		return s, false
	}
	next := s.clone()
	next.remove(key)
	next.sum()
	return next, true
}

// clone returns a Set with the same policies. The caller must call sum.
func (s *Set) clone() *Set {
	next := &Set{policies: slices.Clone(s.policies), byScope: maps.Clone(s.byScope), inNamespaces: maps.Clone(s.inNamespaces)}
	if next.byScope == nil { // the zero Set
		next.byScope, next.inNamespaces = map[string][]*Policy{}, map[string][]*Policy{}
	}
	return next
}

// scopesOf returns the map of scopes that a policy belongs to.
func (s *Set) scopesOf(p *Policy) map[string][]*Policy {
	if p.Namespace != "" {
		return s.inNamespaces
	}
	return s.byScope
}

// remove removes the policy of a name, if there is one, from a clone.
func (s *Set) remove(key types.NamespacedName) {
	former := s.Named(key)
	if former == nil {
		return
	}
	s.policies = slices.DeleteFunc(s.policies, func(p *Policy) bool { return p == former })
	of := s.scopesOf(former)
	for _, scope := range former.Scopes {
		if of[scope] = slices.DeleteFunc(slices.Clone(of[scope]), func(p *Policy) bool { return p == former }); len(of[scope]) == 0 {
			delete(of, scope)
		}
	}
}

// Revoke returns a Set whose policies no longer trust the signers. Policies that cannot trust them
// do not change.
func (s *Set) Revoke(signers Signers) (*Set, error) {
	all := s.Policies()
	signers.met = make([]*atomic.Bool, len(signers.all))
	for i := range signers.met {
		signers.met[i] = &atomic.Bool{}
	}
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

// Distrusts reports whether evidence names a signer that [Set.Revoke] has revoked in the policy.
func (p *Policy) Distrusts(e *evidence.Evidence) bool {
	made := false
	for i, one := range p.revoked.all {
		if one.made(e) {
			made = true
			p.revoked.met[i].Store(true)
		}
	}
	return made
}

// Unmet returns the signers that no policy of a Set from [Set.Revoke] names and that made none of
// the signatures judged so far. They may be misspelt.
func (s *Set) Unmet(signers Signers) (names []string) {
	for i, one := range signers.all {
		if !slices.ContainsFunc(s.Policies(), func(p *Policy) bool {
			return i < len(p.revoked.met) && (p.revoked.met[i].Load() || p.names(one))
		}) {
			names = append(names, one.String())
		}
	}
	return names
}

// names reports whether a policy explicitly trusts a signer.
func (p *Policy) names(one signer) bool {
	if p.Sigstore != nil {
		return sigstore.Names(p.Sigstore, one.ids, one.subject)
	}
	return p.GPG != nil && slices.ContainsFunc(p.GPG.Signers(), one.made)
}

// mayTrust reports whether the policy may trust one of the signers. A certificate's subject is
// known only from a signature.
func (p *Policy) mayTrust(signers Signers) bool {
	switch {
	case p.GPG != nil:
		return slices.ContainsFunc(p.GPG.Signers(), signers.made)
	case p.Sigstore != nil:
		if ids, ok := sigstore.KeyIDs(p.Sigstore); ok {
			return slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(signers.keys(), id) })
		}
	}
	return true
}

// Object returns the policy as a JSON object, if it was parsed from a document. It has the contents
// of the files that the document names.
func (p *Policy) Object() ([]byte, error) {
	d := Document{APIVersion: apiVersion, Kind: kind, Metadata: Metadata{Name: p.Name, Namespace: p.Namespace, Annotations: p.Admission}, Spec: p.Spec}
	if p.Namespace != "" {
		d.Kind = namespacedKind
	}
	return json.Marshal(d)
}
