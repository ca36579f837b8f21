package imageapi

import (
	"strings"

	"github.com/distribution/reference"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
)

// parsedReference is what a reference says, in full form: its repository begins with a registry.
type parsedReference struct{ repository, tag, digest string }

// parseReference parses a reference as reference.ParseNormalizedNamed does, which takes long for what
// is seen most.
func parseReference(s string) (parsedReference, error) {
	if p, ok := parsePlainReference(s); ok {
		return p, nil
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return parsedReference{}, err
	}
	p := parsedReference{repository: named.Name()}
	if tagged, ok := named.(reference.Tagged); ok {
		p.tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		p.digest = digested.Digest().String()
	}
	return p, nil
}

// parsePlainReference parses references such as registry.example.com:5000/team/app@sha256:…, by a
// digest and of a registry that is not Docker Hub; false of all others.
func parsePlainReference(s string) (p parsedReference, ok bool) {
	p.repository, p.digest, _ = strings.Cut(s, "@")
	if !strings.HasPrefix(p.digest, "sha256:") || manifest.ValidDigest(p.digest) != nil {
		return p, false
	}
	registry, path, _ := strings.Cut(p.repository, "/")
	host, port, hasPort := strings.Cut(registry, ":")
	if hasPort && (port == "" || strings.Trim(port, "0123456789") != "") {
		return p, false
	}
	if !hasPort && !strings.Contains(host, ".") || strings.HasSuffix(host, "docker.io") {
		return p, false
	}
	if len(path) > reference.RepositoryNameTotalLengthMax || !areNames(host, ".-") {
		return p, false
	}
	for path != "" {
		var component string
		var more bool
		component, path, more = strings.Cut(path, "/")
		if !areNames(component, "._-") || more && path == "" {
			return p, false
		}
		ok = true
	}
	return p, ok
}

// areNames reports whether s is of lower case letters and digits, with single separators in between.
func areNames(s, separators string) bool {
	in := false
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			in = true
		case in && strings.IndexByte(separators, c) >= 0:
			in = false
		default:
			return false
		}
	}
	return in
}
