package importer

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
)

// maxReferenceLength bounds a reference before it is parsed, in bytes. The
// longest valid one is a 255-byte name, a 128-byte tag and a 71-byte digest.
const maxReferenceLength = 512

// Reference is a parsed image reference with nothing left out: Docker Hub's
// short names are spelled in full, and one of Tag and Digest is set.
type Reference struct {
	// Host is the registry, with its port if it has one. Docker Hub is
	// index.docker.io, the name under which its credentials are stored.
	Host string
	// Repository is the path within the registry.
	Repository string
	// Tag is empty if a digest was given: a digest decides, and a tag beside
	// it is not looked at.
	Tag string
	// Digest is "sha256:" and 64 hex digits, or empty.
	Digest string
}

// String is the canonical spelling. ParseReference reads it back to an equal
// Reference.
func (r Reference) String() string {
	if r.Digest != "" {
		return r.Name() + "@" + r.Digest
	}
	return r.Name() + ":" + r.Tag
}

// Name is the repository with its host.
func (r Reference) Name() string { return r.Host + "/" + r.Repository }

// identifier is the end of the manifest's URL.
func (r Reference) identifier() string { return cmp.Or(r.Digest, r.Tag) }

// WithDigest is the reference of another manifest of the same repository.
func (r Reference) WithDigest(digest string) Reference {
	return Reference{Host: r.Host, Repository: r.Repository, Digest: digest}
}

// WithTag is the reference of a tag of the same repository.
func (r Reference) WithTag(tag string) Reference {
	return Reference{Host: r.Host, Repository: r.Repository, Tag: tag}
}

// ReferenceError says why a string is not an image reference.
type ReferenceError struct {
	// Input is the string as given, cut if very long.
	Input string
	// Problem is the rule it breaks.
	Problem string
	// Suggestion is a valid reference that was probably meant, or empty.
	Suggestion string
}

func (e *ReferenceError) Error() string {
	s := fmt.Sprintf("%q is not an image reference: %s", e.Input, e.Problem)
	if e.Suggestion != "" {
		s += fmt.Sprintf("; did you mean %q?", e.Suggestion)
	}
	return s
}

// ParseReference reads a reference as Docker does: "busybox" is
// index.docker.io/library/busybox:latest. With both a tag and a digest the
// digest counts. The grammar is that of github.com/distribution/reference. An
// error is a *[ReferenceError].
func ParseReference(s string) (Reference, error) {
	ref, problem := parseReference(s)
	if problem == "" {
		return ref, nil
	}
	e := &ReferenceError{Input: s, Problem: problem}
	if len(s) > maxReferenceLength {
		e.Input = strings.ToValidUTF8(s[:64], "") + "…"
		return Reference{}, e
	}
	if better := repair(s); better != s {
		if _, stillWrong := parseReference(better); stillWrong == "" {
			e.Suggestion = better
		}
	}
	return Reference{}, e
}

// ParseRepository reads a repository without tag or digest, as Tags takes it.
func ParseRepository(s string) (Reference, error) {
	ref, err := ParseReference(s)
	if err != nil {
		return Reference{}, err
	}
	// What ParseReference added is not in s; what the user wrote is.
	if ref.Digest != "" || strings.HasSuffix(s, ":"+ref.Tag) && strings.LastIndex(s, ":") > strings.LastIndex(s, "/") {
		e := &ReferenceError{Input: s, Problem: "a repository is wanted here, without tag or digest", Suggestion: ref.Name()}
		return Reference{}, e
	}
	return Reference{Host: ref.Host, Repository: ref.Repository}, nil
}

// parseReference returns the rule that s breaks, or "".
func parseReference(s string) (Reference, string) {
	switch {
	case s == "":
		return Reference{}, "it is empty"
	case len(s) > maxReferenceLength:
		return Reference{}, fmt.Sprintf("it is longer than %d bytes", maxReferenceLength)
	case strings.IndexFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) >= 0:
		return Reference{}, "it contains white space or unprintable characters"
	case schemes.MatchString(s):
		return Reference{}, "a reference has no URL scheme"
	case bareDigest.MatchString(s):
		return Reference{}, "a digest needs the repository it is in, as in registry.example.com/team/app@sha256:…"
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return Reference{}, explain(s, err)
	}
	ref := Reference{Host: reference.Domain(named), Repository: reference.Path(named)}
	if digested, ok := named.(reference.Digested); ok {
		if algorithm := digested.Digest().Algorithm(); algorithm != "sha256" {
			return Reference{}, fmt.Sprintf("digests are sha256 here, not %s", algorithm)
		}
		ref.Digest = digested.Digest().String()
	} else if tagged, ok := reference.TagNameOnly(named).(reference.Tagged); ok {
		ref.Tag = tagged.Tag()
	}
	// The two libraries differ in what they call Docker Hub and in a few
	// host names: what cannot be asked for is refused here, with the reason.
	repository, err := name.NewRepository(ref.Name())
	if err != nil {
		return Reference{}, err.Error()
	}
	ref.Host, ref.Repository = repository.RegistryStr(), repository.RepositoryStr()
	return ref, ""
}

var (
	schemes    = regexp.MustCompile(`^[a-zA-Z][a-zA-Z+.-]*://`)
	bareDigest = regexp.MustCompile(`^(sha256:)?[0-9a-fA-F]{64}$`)
	digestTail = regexp.MustCompile(`@([a-z0-9]+):([^@]*)$`)
	upperCase  = regexp.MustCompile(`[A-Z]`)
)

// explain says more than "invalid reference format" where it can.
func explain(s string, err error) string {
	path, _, _ := strings.Cut(s, "@")
	if i := strings.Index(path, "/"); i >= 0 {
		path = path[i+1:]
	}
	switch tail := digestTail.FindStringSubmatch(s); {
	case tail != nil && tail[1] == "sha256" && len(tail[2]) != 64:
		return fmt.Sprintf("a sha256 digest has 64 hex digits, this one has %d characters", len(tail[2]))
	case tail == nil && strings.Contains(s, "@"):
		return "what follows @ is a digest, as in @sha256:…; a tag follows a colon"
	case strings.HasSuffix(s, ":"):
		return "the tag after the last colon is missing"
	case strings.HasSuffix(s, "/") || strings.HasPrefix(s, "/") || strings.Contains(s, "//"):
		return "a part of the name between slashes is empty"
	case upperCase.MatchString(strings.Split(path, ":")[0]):
		return "a repository name is in lower case"
	}
	return err.Error()
}

// repair undoes the common mistakes. It returns s if it knows none.
func repair(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), "")
	s = schemes.ReplaceAllString(s, "")
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	s = strings.Trim(s, "/:@")
	if at := strings.LastIndex(s, "@"); at >= 0 && !strings.Contains(s[at:], ":") && !strings.Contains(s[:at], "@") {
		s = s[:at] + ":" + s[at+1:]
	}
	// Only the name is case-insensitive in people's minds; a tag is not.
	end := len(s)
	if at := strings.Index(s, "@"); at >= 0 {
		end = at
	}
	if colon := strings.LastIndex(s[:end], ":"); colon > strings.LastIndex(s[:end], "/") {
		end = colon
	}
	return strings.ToLower(s[:end]) + s[end:]
}
