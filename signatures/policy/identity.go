package policy

import (
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Identity is a parsed signedIdentity: the rule for the reference inside a signature.
type Identity struct {
	match        string
	repository   string // ExactRepository
	prefix       string // RemapIdentity
	signedPrefix string
}

// DigestOnly reports whether only the digest inside the signature matters, not the reference. It is
// the only rule that a sigstore bundle can meet, because bundles have no reference.
func (i Identity) DigestOnly() bool { return i.match == MatchDigestOnly }

// LooksAtTags reports whether the rule may accept a signature for one tag of a repository and
// refuse it for another tag, or for a digest.
func (i Identity) LooksAtTags() bool {
	switch i.match {
	case MatchRepository, MatchExactRepository, MatchDigestOnly:
		return false
	}
	return true
}

// String names the rule for messages.
func (i Identity) String() string {
	switch i.match {
	case MatchExactRepository:
		return i.match + " " + i.repository
	case MatchRemapIdentity:
		return i.match + " " + i.prefix + " to " + i.signedPrefix
	}
	return i.match
}

// Match reports whether a signature that names signed, its unchanged docker-reference, is valid for
// an image under the reference intended. The rules are those of containers/image
// (signature/policy_reference_match.go):
//
//   - MatchRepoDigestOrExact: signed must have a tag or digest. For an intended tag, the references
//     must be equal; for an intended digest, the repositories. The digest in the name is ignored,
//     because the signed digest is compared.
//   - MatchRepository: equal repositories.
//   - ExactRepository: signed is in the configured repository.
//   - RemapIdentity: a prefix of intended is replaced, then as MatchRepoDigestOrExact.
//   - DigestOnly: always.
func (i Identity) Match(intended reference.Reference, signed string) bool {
	if i.match == MatchDigestOnly {
		return true
	}
	s, err := reference.ParseSigned(signed)
	if err != nil {
		return false
	}
	// Hosts are compared as written, except Docker Hub's: to containers/image, Example.com is another
	// host than example.com.
	if host, _, ok := strings.Cut(signed, "/"); ok && host != s.Host && (s.Host != reference.DockerHub || host != strings.ToLower(host)) {
		return false
	}
	switch i.match {
	case MatchRepository:
		return s.Name() == intended.Name()
	case MatchExactRepository:
		return s.Name() == i.repository
	case MatchRemapIdentity:
		intended.Host, intended.Repository, _ = strings.Cut(i.remap(intended.Name()), "/")
		return matchRepoDigestOrExact(intended, s)
	}
	return matchRepoDigestOrExact(intended, s)
}

func matchRepoDigestOrExact(intended, signed reference.Reference) bool {
	if signed.Tag == "" && signed.Digest == "" {
		return false
	}
	if intended.Tag != "" {
		return signed == intended
	}
	return intended.Digest != "" && signed.Name() == intended.Name()
}

func (i Identity) remap(repository string) string {
	if repository == i.prefix || strings.HasPrefix(repository, i.prefix+"/") {
		return i.signedPrefix + repository[len(i.prefix):]
	}
	return repository
}
