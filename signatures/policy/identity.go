package policy

import (
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Identity is a parsed signedIdentity: the rule for the reference inside a signature.
type Identity struct {
	match        string
	repository   string // ExactRepository
	prefix       string // RemapIdentity
	signedPrefix string
}

// DigestOnly tells that only the digest inside the signature matters, not the reference. It is the
// only rule that a sigstore bundle can meet, since bundles carry no reference.
func (i Identity) DigestOnly() bool { return i.match == MatchDigestOnly }

// LooksAtTags tells that the rule may accept a signature for one tag of a repository and refuse it
// for another tag, or for a digest.
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

// Match reports whether an image asked for as intended may carry a signature that names signed, the
// docker-reference exactly as it was signed. The rules are those of containers/image
// (signature/policy_reference_match.go):
//
//   - MatchRepoDigestOrExact: signed must have a tag or digest; for an intended tag both must be
//     equal, for an intended digest the repositories must be. The digest in the name is not looked
//     at: that which is signed is.
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
	// Hosts are compared as they are written, except Docker Hub's: to containers/image Example.com
	// is another host.
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
