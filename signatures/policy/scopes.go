package policy

import (
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Scopes returns the scopes that cover the reference, most specific first: the reference itself, its repository, each
// parent path, host[:port], then "*." and each shorter domain, without the port. It is the search order of
// containers/image (docker/policyconfiguration), and serves registries.d files too.
func Scopes(r reference.Reference) []string {
	var scopes []string
	if r.Tag != "" || r.Digest != "" {
		scopes = append(scopes, r.String())
	}
	for name := r.Name(); ; {
		scopes = append(scopes, name)
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			break
		}
		name = name[:i]
	}
	host, _, _ := strings.Cut(scopes[len(scopes)-1], ":")
	for {
		i := strings.IndexByte(host, '.')
		if i < 0 {
			return scopes
		}
		host = host[i+1:]
		scopes = append(scopes, "*."+host)
	}
}

// enclosing returns the next scope that holds all of a scope. The catch-all is not one.
func enclosing(scope string) string {
	if domain, ok := strings.CutPrefix(scope, "*."); ok {
		_, domain, ok = strings.Cut(domain, ".")
		if !ok {
			return catchAll
		}
		return "*." + domain
	}
	path := strings.LastIndexByte(scope, '/')
	if i := strings.LastIndexAny(scope, ":@"); i > path && path >= 0 { // the tag or the digest of an image
		if at := strings.IndexByte(scope, '@'); at >= 0 {
			i = at
		}
		return scope[:i]
	}
	if path >= 0 {
		return scope[:path]
	}
	host, _, _ := strings.Cut(scope, ":")
	_, domain, ok := strings.Cut(host, ".")
	if !ok {
		return catchAll
	}
	return "*." + domain
}

// CanonicalScope returns a scope, or a prefix of one, with its host written as references write it: in lower case, and
// Docker Hub as docker.io.
func CanonicalScope(scope string) string {
	host, path, hasPath := strings.Cut(scope, "/")
	if canonical, err := reference.ParseHost(host); err == nil {
		host = canonical
	} else {
		host = strings.ToLower(host) // *.Example.com
	}
	if hasPath {
		host += "/" + path
	}
	return host
}
