// Package reference reads image references. It has the one type in which rooms pass them on, the
// one grammar, and the one canonical form.
//
// A reference is [host[:port]/]path[:tag][@digest]. The grammar is that of
// github.com/distribution/reference, which Docker, containerd and Kubernetes use;
// the package's fuzz target compares the two and lists where this one is
// stricter, and why. In the canonical form
//
//   - the host is always there and in lower case, and an IPv6 address is written
//     as RFC 5952 has it;
//   - port 443 is left out, if what is left is still a host: registry.example.com:443
//     is registry.example.com, and registry:443 stays, because registry alone would be
//     a path on Docker Hub;
//   - Docker Hub is docker.io, and its official images are under library/:
//     busybox, index.docker.io/busybox and registry-1.docker.io/busybox are
//     docker.io/library/busybox.
//
// Every other port is another registry, port 80 too. A client asks a host without a
// port over TLS at port 443 first, and plain HTTP at port 80 only where its
// configuration calls the registry insecure and TLS failed. The canonical form must not
// depend on a configuration, which changes while references are stored, and which each
// node of a cluster has of its own. So registry.example.com and registry.example.com:80
// stay two registries, even where an insecure one answers to both names. For the same
// reason a registry that speaks plain HTTP at port 443 has no name here: its name means
// TLS at 443, then plain HTTP at 80.
//
// go-containerregistry and containers/image keep :443 and registry-1.docker.io as they
// are written. This package goes further because a policy that covers one spelling of a
// host must cover the others. [ParseSigned] reads names as containers/image does.
//
// The package is a leaf: it imports nothing of this module and nothing of
// Kubernetes, so that every room can use it.
package reference

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// DockerHub is the canonical host of Docker Hub. Its API is served by
// registry-1.docker.io, and its credentials are stored under index.docker.io.
const DockerHub = "docker.io"

// Other names of Docker Hub: the host by which Docker's first clients knew it, and the host that
// serves its API.
const (
	dockerHubAlias = "index.docker.io"
	dockerHubAPI   = "registry-1.docker.io"
)

// defaultPort is the port of a registry that is named without one. The canonical form leaves it
// out.
const defaultPort = "443"

// FormVersion is raised when the canonical form changes. Indexes whose values are canonical have it
// in their names, and so are built again.
const FormVersion = "2"

// defaultTag is the tag that is pulled when a reference has none.
const defaultTag = "latest"

// Bounds, in bytes.
const (
	// maxLength bounds a reference before it is parsed. The longest that can be
	// meant is a host of 253 with its port, a path, a tag and a sha512 digest.
	maxLength = 1024
	maxPath   = 255 // github.com/distribution/reference, RepositoryNameTotalLengthMax
	maxTag    = 128 // OCI distribution specification, "Pulling manifests"
)

// Reference is an image reference in its canonical form. Equal references are
// equal by ==. The zero Reference refers to nothing.
type Reference struct {
	// Host is the registry, with its port if one was given.
	Host string
	// Repository is the path within the registry.
	Repository string
	// Tag is empty when none was given; see [Reference.Pulled].
	Tag string
	// Digest is sha256: or sha512: and lower-case hex digits, or empty.
	Digest string
}

// Parse reads a reference. It adds no tag, and keeps a tag beside a digest. An
// error is an *[Error].
func Parse(s string) (Reference, error) {
	r, problem := parse(s)
	if problem != "" {
		return Reference{}, explain(s, problem, func(s string) bool { _, problem := parse(s); return problem == "" })
	}
	return r, nil
}

// ParseSigned reads the name inside a signature, in the form that containers/image gives it: port
// 443 and registry-1.docker.io stay. So a signature vouches for no name that containers/image would
// refuse.
func ParseSigned(s string) (Reference, error) {
	r, problem := parseWith(s, signedHost)
	if problem != "" {
		return Reference{}, &Error{Input: cut(s), Problem: problem}
	}
	return r, nil
}

// ParseRepository reads a reference that has neither tag nor digest. An error is
// an *[Error].
func ParseRepository(s string) (Reference, error) {
	r, err := Parse(s)
	if err != nil {
		return Reference{}, err
	}
	if r.Tag != "" || r.Digest != "" {
		return Reference{}, &Error{Input: s, Problem: "expected a repository, without tag or digest", Suggestion: r.Name()}
	}
	return r, nil
}

// Below reports whether r is in a registry, or in a repository of it or below that: prefix has a
// Host, and may have a Repository.
func (r Reference) Below(prefix Reference) bool {
	return r.Host == prefix.Host && (prefix.Repository == "" || r.Repository == prefix.Repository || strings.HasPrefix(r.Repository, prefix.Repository+"/"))
}

// ParseHost reads a registry's host[:port] and returns its canonical form. A name
// that has neither a dot nor a port, and is not localhost, is refused: in a
// reference it would be the beginning of a path on Docker Hub. An error is an
// *[Error].
func ParseHost(s string) (string, error) {
	fail := func(problem string) (string, error) {
		return "", &Error{Input: cut(s), kind: "a registry host", Problem: problem}
	}
	switch {
	case s == "":
		return fail("it is empty")
	case len(s) > maxLength:
		return fail(fmt.Sprintf("it is longer than %d bytes", maxLength))
	case !isHost(s):
		return fail("without a dot or a port it cannot stand in an image reference; give it with its port, as in " + s + ":443")
	}
	host, problem := parseHost(s)
	if problem != "" {
		return fail(problem + "; write host or host:port, without a scheme or a path")
	}
	return canonicalHost(host), nil
}

// OtherNames returns the other ways to write a host in canonical form, in lower case. Files that
// people wrote for other programs, such as credentials, may have it under one of them.
func OtherNames(host string) []string {
	switch {
	case host == DockerHub:
		return []string{dockerHubAlias, dockerHubAPI, host + ":" + defaultPort}
	case host == "" || strings.LastIndexByte(host, ':') > strings.LastIndexByte(host, ']'):
		return nil
	}
	return []string{host + ":" + defaultPort}
}

// String is the canonical form. Parse reads it back to an equal Reference.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// NamesRegistry reports whether a reference, as a person writes it, names its registry.
func NamesRegistry(text string) bool {
	first, _, hasPath := strings.Cut(text, "/")
	return hasPath && (strings.ContainsAny(first, ".:") || strings.EqualFold(first, "localhost"))
}

// Name is host/path, without tag and digest.
func (r Reference) Name() string {
	if r.Host == "" {
		return r.Repository
	}
	return r.Host + "/" + r.Repository
}

// Pulled returns what a client pulls when it is given r: the digest if there is one, without
// looking at the tag, else the tag, else the tag latest. Docker
// (distribution/reference.ParseDockerRef) and Kubernetes do the same.
func (r Reference) Pulled() Reference {
	switch {
	case r.Digest != "":
		r.Tag = ""
	case r.Tag == "":
		r.Tag = defaultTag
	}
	return r
}

// Identifier returns the digest, else the tag, to request from a registry.
func (r Reference) Identifier() string { return cmp.Or(r.Digest, r.Tag) }

// Bare is r without tag and digest.
func (r Reference) Bare() Reference { return Reference{Host: r.Host, Repository: r.Repository} }

// WithTag refers to a tag in r's repository, and has no digest.
func (r Reference) WithTag(tag string) Reference {
	return Reference{Host: r.Host, Repository: r.Repository, Tag: tag}
}

// WithDigest refers to a manifest in r's repository, and has no tag.
func (r Reference) WithDigest(digest string) Reference {
	return Reference{Host: r.Host, Repository: r.Repository, Digest: digest}
}

// IsTag reports whether s is a tag: a letter, digit or underscore, and up to 127
// more of these, dots and dashes (OCI distribution specification, "Pulling
// manifests").
func IsTag(s string) bool {
	if s == "" || len(s) > maxTag || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && !('A' <= c && c <= 'Z') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// IsDigest reports whether s is a digest by a registered algorithm: sha256: and 64,
// or sha512: and 128 lower-case hex digits (OCI image specification,
// descriptor.md, "Registered Algorithms").
func IsDigest(s string) bool {
	digits, want := s, 64
	if rest, ok := strings.CutPrefix(s, "sha256:"); ok {
		digits = rest
	} else if rest, ok := strings.CutPrefix(s, "sha512:"); ok {
		digits, want = rest, 128
	} else {
		return false
	}
	if len(digits) != want {
		return false
	}
	for i := range len(digits) {
		if c := digits[i]; !('0' <= c && c <= '9') && !('a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// ShortDigest is the part of a digest that people compare: the algorithm and 12 digits. A text that
// is shorter or has no algorithm is returned whole.
func ShortDigest(digest string) string {
	algorithm, _, _ := strings.Cut(digest, ":")
	return digest[:min(len(digest), len(algorithm)+13)]
}

// parse returns the rule that s breaks, or "".
func parse(s string) (r Reference, problem string) { return parseWith(s, canonicalHost) }

func parseWith(s string, form func(host string) string) (r Reference, problem string) {
	if len(s) > maxLength {
		return Reference{}, fmt.Sprintf("it is longer than %d bytes", maxLength)
	}
	name, digest, hasDigest := strings.Cut(s, "@")
	name, tag, hasTag := cutTag(name)
	r, problem = parseName(name, form)
	switch {
	case s == "":
		problem = "it is empty"
	case isBareHex(s) || isBareDigest(s):
		problem = "a digest needs the repository it is in, as in registry.example.com/team/app@sha256:…"
	case problem != "":
	case hasDigest && !IsDigest(digest):
		problem = explainDigest(digest)
	case hasTag && tag == "":
		problem = "the tag after the last colon is missing"
	case hasTag && !IsTag(tag):
		problem = fmt.Sprintf("a tag is a letter, a digit or _ and up to %d more of these, dots and dashes", maxTag-1)
	}
	switch {
	case problem == "":
		r.Tag, r.Digest = tag, digest
		return r, ""
	case strings.ContainsFunc(s, isUnprintable):
		problem = "it contains white space or unprintable characters"
	case scheme.MatchString(s):
		problem = "a reference has no URL scheme"
	}
	return Reference{}, problem
}

// cutTag cuts off what follows the last colon, unless that is a host's port.
func cutTag(s string) (name, tag string, ok bool) {
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// parseName reads [host[:port]/]path.
func parseName(s string, form func(host string) string) (r Reference, problem string) {
	host, path, ok := strings.Cut(s, "/")
	if ok && isHost(host) {
		if r.Host, problem = parseHost(host); problem != "" {
			return r, problem
		}
		r.Host = form(r.Host)
	} else {
		r.Host, path = DockerHub, s
	}
	if problem = checkPath(path); problem != "" {
		return r, problem
	}
	if r.Host == DockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	if len(path) > maxPath {
		return r, fmt.Sprintf("the repository's path is longer than %d bytes", maxPath)
	}
	r.Repository = path
	return r, ""
}

// isHost reports whether the first part of a name is a host and not a part of a
// path on Docker Hub.
func isHost(s string) bool {
	return strings.IndexByte(s, '.') >= 0 || strings.IndexByte(s, ':') >= 0 || strings.EqualFold(s, "localhost")
}

// canonicalHost returns the one form of a host that parseHost has read.
func canonicalHost(host string) string {
	if rest, ok := strings.CutSuffix(host, ":"+defaultPort); ok && isHost(rest) {
		host = rest
	}
	if host == dockerHubAPI {
		return DockerHub
	}
	return signedHost(host)
}

// signedHost returns the form that containers/image gives to a host that parseHost has read.
func signedHost(host string) string {
	if host == dockerHubAlias {
		return DockerHub
	}
	return host
}

// parseHost reads host[:port] and writes it in lower case, and an IPv6 address as RFC 5952 has it.
func parseHost(s string) (host, problem string) {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i:]
		if n, err := strconv.ParseUint(port[1:], 10, 16); err != nil || n == 0 || port[1] == '0' {
			return "", fmt.Sprintf("%q is not a port, a number from 1 to 65535", port[1:])
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		address, err := netip.ParseAddr(inner)
		// Other clients refuse an address with an IPv4 address in it; one that is written without
		// dots would get them.
		if !ok || err != nil || !address.Is6() || address.Is4In6() || strings.Contains(inner, ".") || address.Zone() != "" {
			return "", fmt.Sprintf("%q is not an IPv6 address", host)
		}
		return "[" + address.String() + "]" + port, ""
	}
	for label := range strings.SplitSeq(host, ".") {
		if !isLabel(label) {
			return "", fmt.Sprintf("%q is not a host name: between dots it has letters, digits and dashes", host)
		}
	}
	return strings.ToLower(s), ""
}

// isLabel reports whether s is a part of a host name.
func isLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && !('A' <= c && c <= 'Z') && c != '-' {
			return false
		}
	}
	return true
}

// checkPath returns the rule that a repository's path breaks, or "".
func checkPath(s string) (problem string) {
	for more := true; more; {
		var part string
		part, s, more = strings.Cut(s, "/")
		switch {
		case isPathPart(part):
		case part == "":
			return "a part of the name between slashes is empty"
		case strings.ContainsFunc(part, unicode.IsUpper):
			return "a repository name is in lower case"
		default:
			return fmt.Sprintf("%q is not a valid part of a repository name: letters and digits, with one ., one or two _, or dashes in between", cut(part))
		}
	}
	return ""
}

// isPathPart reports whether s is letters and digits, with separators between them.
func isPathPart(s string) bool {
	separator := 0 // where the present separator began
	for i := range len(s) {
		c := s[i]
		switch {
		case isAlphanumeric(c):
			separator = i + 1
		case i == 0 || c != '-' && c != '_' && c != '.':
			return false
		case i == separator: // a new separator
		case c != s[separator], c == '.', c == '_' && i > separator+1:
			return false
		}
	}
	return separator == len(s) && s != ""
}

func isAlphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
