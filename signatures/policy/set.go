package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/signatures/attestation"
	"github.com/tidewaiter/tidewaiter/signatures/internal/gpg"
	"github.com/tidewaiter/tidewaiter/signatures/internal/notary"
	"github.com/tidewaiter/tidewaiter/signatures/internal/sigstore"
)

// Policy is one parsed ClusterImagePolicy or ImagePolicy. It does not change once it is in a Set.
type Policy struct {
	// Namespace is the namespace whose pods the policy is for; "" for a ClusterImagePolicy.
	Namespace string
	Name      string
	File      string // where it was read from, "" if not from a file
	Document  int    // the document within the file, from 1
	Scopes    []string
	Identity  Identity

	// The root of trust: one of the verifiers is set.
	Sigstore sigstore.Verifier
	GPG      *gpg.Keyring
	Notary   *notary.Verifier

	// Attestations, if any, are demanded in place of a signature.
	Attestations []*attestation.Demand

	// Alternatives is the policy's group; "" if the policy must be met. See [Requirements].
	Alternatives string

	// OwnSignatures is true if the signature of an index does not count for its platforms.
	OwnSignatures bool

	// Admission sets what happens to pods whose images do not meet the policy.
	Admission Admission

	// Spec is the spec of a parsed document, with the contents of the files that it names. It is empty
	// for an object.
	Spec DocumentSpec

	exceptions []exception
	revoked    Signers // signers that are no longer trusted

	usable func(now time.Time) error
	lines  map[string]int // of the fields about which NewSet may report an error
	hash   string
}

// Key names the policy uniquely.
func (p *Policy) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// ID is Key as shown to users: the name or, for a policy of a namespace, namespace/name.
func (p *Policy) ID() string { return strings.TrimPrefix(p.Key().String(), "/") }

// Hash changes if the policy's meaning may have changed. It covers the document and the content of
// the files that it names.
func (p *Policy) Hash() string { return p.hash }

// Version is short, and changes whenever Hash does, or an annotation on which verdicts for tags
// depend.
func (p *Policy) Version() string {
	sum := sha256.Sum256([]byte(p.hash + "/" + p.Admission.MaxTagAge + "/" + string(p.Admission.ImmutableTags)))
	return hex.EncodeToString(sum[:6])
}

// Usable returns an error if no signature can meet the policy at the time now, not even an old one:
// its CA, all of its OpenPGP keys, or all of its revocation lists have expired.
func (p *Policy) Usable(now time.Time) error {
	if p.Notary != nil {
		if err := p.Notary.Trust().Outdated(now); err != nil {
			return err
		}
	}
	if p.usable == nil {
		return nil
	}
	return p.usable(now)
}

// EndsSoon returns why Usable will return an error after the time soon, or why fewer signatures
// will meet the policy: one of its revocation lists is in the last fifth of its time, or has ended.
func (p *Policy) EndsSoon(now time.Time, soon time.Duration) error {
	if p.Notary != nil {
		if err := p.Notary.Trust().OutdatedSoon(now); err != nil {
			return err
		}
	}
	if p.usable == nil {
		return nil
	}
	return p.usable(now.Add(soon))
}

// OlderLists returns an error if a revocation list of the policy is older than the one that it
// would replace in before.
func (p *Policy) OlderLists(before *Policy) error {
	if p.Notary == nil || before.Notary == nil {
		return nil
	}
	return p.Notary.Trust().Older(before.Notary.Trust())
}

// olderLists returns an error if a policy has an older revocation list than in before.
func (s *Set) olderLists(before *Set) error {
	for _, p := range s.Policies() {
		if was := before.Named(p.Key()); was != nil {
			if err := p.OlderLists(was); err != nil {
				return p.refused(rootField+".notary", "%w", err)
			}
		}
	}
	return nil
}

// Excepted returns the exception that lets an image through now, and when it ends. asked is a
// reference to the image with a tag or a digest. If there are several exceptions, it returns the
// one that ends last.
func (p *Policy) Excepted(asked reference.Reference, digest string, now time.Time) (e Exception, until time.Time, ok bool) {
	if asked.Digest != "" && asked.Digest != digest {
		return e, until, false
	}
	for i := range p.exceptions {
		if one := &p.exceptions[i]; now.Before(one.until) && one.until.After(until) && one.has(asked, digest) {
			e, until, ok = one.Exception, one.until, true
		}
	}
	return e, until, ok
}

// ExceptsDigests reports whether an exception names an image by a digest.
func (p *Policy) ExceptsDigests() bool {
	return slices.ContainsFunc(p.exceptions, func(e exception) bool {
		return len(e.digests) > 0 || slices.ContainsFunc(e.images, func(image reference.Reference) bool { return image.Digest != "" })
	})
}

// LooksAtTags reports whether an image may meet the policy under one tag, and not under another tag
// or by its digest.
func (p *Policy) LooksAtTags() bool {
	return p.Identity.LooksAtTags() || slices.ContainsFunc(p.exceptions, func(e exception) bool {
		return slices.ContainsFunc(e.images, func(image reference.Reference) bool { return image.Digest == "" })
	})
}

// Exceptions returns the policy's exceptions, including ended ones, and the time when each ends, in
// the order of these times.
func (p *Policy) Exceptions() (all []Exception, until []time.Time) {
	sorted := slices.SortedStableFunc(slices.Values(p.exceptions), func(a, b exception) int { return a.until.Compare(b.until) })
	for _, e := range sorted {
		all, until = append(all, e.Exception), append(until, e.until)
	}
	return all, until
}

// Set is the policies in force. It does not change; a new one replaces it. The zero Set and nil
// cover nothing.
type Set struct {
	policies []*Policy
	byScope  map[string][]*Policy // in order of their names
	// the policies of namespaces by scope, in order of their namespaces and names
	inNamespaces map[string][]*Policy
	byTag        bool // a scope is a repository with a tag
	immutable    bool // a policy has tags that must not move
	hash         string
	contents     trusted.Contents // of the files from which the set was loaded; nil for none
}

// maxSharing bounds the policies that share a scope, because each costs a verification of each
// signature.
const maxSharing = 16

// NewSet returns a Set. Two policies with the same name are an error. As on OpenShift, an image
// must meet all policies that share a scope; of a group of alternatives, it must meet one.
func NewSet(policies []*Policy) (*Set, error) {
	s := &Set{byScope: map[string][]*Policy{}, inNamespaces: map[string][]*Policy{}}
	var errs []error
	named := map[types.NamespacedName]*Policy{}
	for _, p := range policies {
		if other, ok := named[p.Key()]; ok {
			errs = append(errs, p.refused("metadata.name", "%q is the name of another policy, in %s", p.Name, other.where()))
		}
		named[p.Key()] = p
		of := s.scopesOf(p)
		for _, scope := range p.Scopes {
			of[scope] = append(of[scope], p)
			if err := p.tooManyShare(scope, of[scope]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, of := range []map[string][]*Policy{s.byScope, s.inNamespaces} {
		for _, sharing := range of {
			slices.SortFunc(sharing, byName)
		}
	}
	s.policies = slices.Clone(policies)
	slices.SortFunc(s.policies, byName)
	s.sum()
	return s, nil
}

// sum derives what depends on all policies, which are in their order.
func (s *Set) sum() {
	h := sha256.New()
	var text []byte
	for _, p := range s.policies {
		text = text[:0]
		for _, part := range []string{p.hash, p.Admission.Mode, "/", p.Admission.Unknown, "/", p.Admission.MaxTagAge, "/", string(p.Admission.ImmutableTags)} {
			text = append(text, part...)
		}
		_, _ = h.Write(text) // never fails
		s.immutable = s.immutable || p.Admission.ImmutableTags != ""
		s.byTag = s.byTag || slices.ContainsFunc(p.Scopes, isTagged)
	}
	s.hash = hex.EncodeToString(h.Sum(nil))
}

func (p *Policy) refused(field, format string, args ...any) error {
	return &Error{File: p.File, Document: p.Document, Line: p.lines[field], Field: field, Err: fmt.Errorf(format, args...)}
}

// tooManyShare returns an error if more than maxSharing policies of the namespace share a scope
// with p.
func (p *Policy) tooManyShare(scope string, sharing []*Policy) error {
	n := 0
	for _, other := range sharing {
		if other.Namespace == p.Namespace {
			n++
		}
	}
	if n != maxSharing+1 {
		return nil
	}
	return p.refused("spec.scopes", "%q is a scope of more than %d policies, and each costs a verification of each signature: use fewer", scope, maxSharing)
}

func byName(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// isTagged reports whether a scope is one tag of a repository.
func isTagged(scope string) bool {
	return !strings.Contains(scope, "@") && strings.LastIndexByte(scope, ':') > strings.LastIndexByte(scope, '/') && strings.Contains(scope, "/")
}

func (p *Policy) where() string {
	if p.File == "" {
		return "the same set"
	}
	return fmt.Sprintf("%s document %d", p.File, p.Document)
}

// Policies returns the policies in order of their namespaces and names, those without a namespace
// first.
func (s *Set) Policies() []*Policy {
	if s == nil {
		return nil
	}
	return slices.Clone(s.policies)
}

// Named returns the policy of a name, nil if there is none.
func (s *Set) Named(key types.NamespacedName) *Policy {
	if s == nil {
		return nil
	}
	if at, found := slices.BinarySearchFunc(s.policies, &Policy{Namespace: key.Namespace, Name: key.Name}, byName); found {
		return s.policies[at]
	}
	return nil
}

// Len returns the number of policies.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.policies)
}

// Hash changes if a policy changes, is added or is removed.
func (s *Set) Hash() string {
	if s == nil {
		return ""
	}
	return s.hash
}

// For returns the policies for an image, in the order of their names: only those with the most
// specific scope. [Requirements] returns what the image must meet. If no policy covers the image,
// it returns none. The caller must not change the slice.
func (s *Set) For(r reference.Reference) []*Policy {
	if s == nil || len(s.byScope) == 0 {
		return nil
	}
	for _, scope := range Scopes(r) {
		if p, ok := s.byScope[scope]; ok {
			return p
		}
	}
	return s.byScope[CatchAll]
}

// Names reports whether a policy without a namespace covers the image by a scope other than the
// catch-all.
func (s *Set) Names(r reference.Reference) bool {
	by := s.For(r)
	return len(by) > 0 && !(len(s.byScope[CatchAll]) > 0 && &by[0] == &s.byScope[CatchAll][0])
}

// InNamespaces returns the policies of namespaces for an image, by namespace. For each namespace it
// returns those with the most specific scope. As on OpenShift, a ClusterImagePolicy takes
// precedence: for an image that one covers, InNamespaces returns nothing.
func (s *Set) InNamespaces(r reference.Reference) map[string][]*Policy {
	if s == nil || len(s.inNamespaces) == 0 || len(s.For(r)) > 0 {
		return nil
	}
	in := map[string][]*Policy{}
	for _, scope := range append(Scopes(r), CatchAll) {
		for sharing := s.inNamespaces[scope]; len(sharing) > 0; {
			namespace, n := sharing[0].Namespace, 1
			for n < len(sharing) && sharing[n].Namespace == namespace {
				n++
			}
			if _, ok := in[namespace]; !ok {
				in[namespace] = sharing[:n:n]
			}
			sharing = sharing[n:]
		}
	}
	return in
}

// Overrides reports whether a ClusterImagePolicy has the given canonical scope, or a scope that
// contains it. A namespace's policy is then not in force for the given scope.
func (s *Set) Overrides(scope string) bool {
	if s == nil {
		return false
	}
	for {
		if len(s.byScope[scope]) > 0 {
			return true
		}
		if scope == CatchAll {
			return false
		}
		scope = enclosing(scope)
	}
}

// Uncovered reports whether policies enforce for the pods of a namespace, and none of them has the
// scope "*". Images that no scope covers are then admitted, for instance by the registry's IP
// address or a mirror's name. With the namespace "", only ClusterImagePolicies count.
func (s *Set) Uncovered(namespace string) bool { return s.uncovered(namespace, nil) }

// UncoveredWith reports what Uncovered would report if the Set also had p, instead of any policy of
// that name. It looks at the pods of p's namespace.
func (s *Set) UncoveredWith(p *Policy) bool {
	if s == nil {
		s = &Set{}
	}
	return s.uncovered(p.Namespace, p)
}

// uncovered is Uncovered for a Set with one more policy, which replaces any policy of the same
// name; nil for none.
func (s *Set) uncovered(namespace string, more *Policy) bool {
	if s == nil || more != nil && slices.Contains(more.Scopes, CatchAll) {
		return false
	}
	counts := func(p *Policy) bool {
		return (p.Namespace == "" || p.Namespace == namespace) && (more == nil || p.Key() != more.Key())
	}
	enforces := func(p *Policy) bool { return p.Admission.Mode == "" || p.Admission.Mode == ModeEnforce }
	if slices.ContainsFunc(s.byScope[CatchAll], counts) || slices.ContainsFunc(s.inNamespaces[CatchAll], counts) {
		return false
	}
	return more != nil && enforces(more) || slices.ContainsFunc(s.policies, func(p *Policy) bool { return enforces(p) && counts(p) })
}

// ForNamespaces reports whether there are policies of namespaces.
func (s *Set) ForNamespaces() bool { return s != nil && len(s.inNamespaces) > 0 }

// ForTags reports whether a scope is one tag of a repository. Images there are judged by the tag of
// the reference.
func (s *Set) ForTags() bool { return s != nil && s.byTag }

// HasImmutableTags reports whether a policy has tags that must not move.
func (s *Set) HasImmutableTags() bool { return s != nil && s.immutable }

// Demands reports whether policies demand signatures, and attestations, of an image, given as a
// repository with a digest. Policies for any tag of the repository count, because the image may
// have that tag, and so do policies of namespaces.
func (s *Set) Demands(image reference.Reference) (signatures, attestations bool) {
	count := func(policies []*Policy) {
		for _, p := range policies {
			signatures, attestations = signatures || len(p.Attestations) == 0, attestations || len(p.Attestations) > 0
		}
	}
	count(s.For(image))
	for _, policies := range s.InNamespaces(image) {
		count(policies)
	}
	if s.ForTags() {
		for _, of := range []map[string][]*Policy{s.byScope, s.inNamespaces} {
			for scope, policies := range of {
				if tag, ok := strings.CutPrefix(scope, image.Name()+":"); ok && !strings.Contains(tag, "/") {
					count(policies)
				}
			}
		}
	}
	return signatures, attestations
}

// HasScope reports whether the reference itself, with its tag or digest, is a scope of a policy
// without a namespace.
func (s *Set) HasScope(r reference.Reference) bool { return s != nil && len(s.byScope[r.String()]) > 0 }

// HasScope reports whether the reference itself, with its tag or digest, is a scope of the policy.
func (p *Policy) HasScope(r reference.Reference) bool { return slices.Contains(p.Scopes, r.String()) }
