package policy

import (
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Scopes returns the scopes that cover the reference, most specific first: the reference itself, its
// repository, each parent path, host[:port], then without the port "*." and each shorter domain. It is the
// search order of containers/image (docker/policyconfiguration) and serves registries.d files too.
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

// CanonicalScope is a scope, or a prefix of one, with its host in the form in which references have it: in lower case,
// and Docker Hub as docker.io.
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
