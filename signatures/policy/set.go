package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/signatures/gpg"
	"github.com/tidewaiter/tidewaiter/signatures/sigstore"
)

// Policy is one ClusterImagePolicy, parsed and ready to use. It does not change.
type Policy struct {
	Name     string
	File     string // where it was read from, "" if not from a file
	Document int    // the document within the file, from 1
	Scopes   []string
	Identity Identity

	// The root of trust: one of the two is set.
	Sigstore sigstore.Verifier
	GPG      *gpg.Keyring

	lines map[string]int // of the fields that a set can find fault with
	hash  string
}

// Hash changes whenever the policy's meaning may have changed: it covers the document and the content of the
// files it names.
func (p *Policy) Hash() string { return p.hash }

// Set is the policies in force. It does not change; a new one replaces it. The zero Set and nil cover nothing.
type Set struct {
	policies []*Policy
	byScope  map[string]*Policy
	hash     string
}

// NewSet makes a Set. Two policies with the same name, or for the same scope, are an error: with one scope inside
// another the most specific wins, but between equals there is nothing to choose by.
func NewSet(policies []*Policy) (*Set, error) {
	s := &Set{byScope: map[string]*Policy{}}
	var errs []error
	byName := map[string]*Policy{}
	h := sha256.New()
	for _, p := range policies {
		refuse := func(field, format string, args ...any) {
			errs = append(errs, &Error{File: p.File, Document: p.Document, Line: p.lines[field], Field: field, Err: fmt.Errorf(format, args...)})
		}
		if other, ok := byName[p.Name]; ok {
			refuse("metadata.name", "%q is the name of another policy, in %s", p.Name, other.where())
		}
		byName[p.Name] = p
		for _, scope := range p.Scopes {
			if other, ok := s.byScope[scope]; ok && other != p {
				refuse("spec.scopes", "%q is a scope of policy %q too, in %s", scope, other.Name, other.where())
			}
			s.byScope[scope] = p
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.policies = slices.Clone(policies)
	slices.SortFunc(s.policies, func(a, b *Policy) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range s.policies {
		h.Write([]byte(p.hash))
	}
	s.hash = hex.EncodeToString(h.Sum(nil))
	return s, nil
}

func (p *Policy) where() string {
	if p.File == "" {
		return "the same set"
	}
	return fmt.Sprintf("%s document %d", p.File, p.Document)
}

// Policies returns the policies in order of their names.
func (s *Set) Policies() []*Policy {
	if s == nil {
		return nil
	}
	return slices.Clone(s.policies)
}

// Hash changes whenever one of the policies does, comes or goes.
func (s *Set) Hash() string {
	if s == nil {
		return ""
	}
	return s.hash
}

// For returns the policy for an image: the one with the most specific scope, and no other. It returns nil when
// no policy covers the image.
func (s *Set) For(r reference.Reference) *Policy {
	if s == nil || len(s.byScope) == 0 {
		return nil
	}
	for _, scope := range Scopes(r) {
		if p, ok := s.byScope[scope]; ok {
			return p
		}
	}
	return s.byScope[catchAll]
}
