package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// CatchAll is the scope of every image that no other scope covers.
const CatchAll = "*"

// Scopes returns the scopes that cover the reference, most specific first: the reference itself,
// its repository, each parent path, host[:port], then "*." and each shorter domain, without the
// port. It is the search order of containers/image (docker/policyconfiguration), which also applies
// to registries.d files.
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

// enclosing returns the next larger scope that contains a scope; "" if there is none. It does not
// return the catch-all.
func enclosing(scope string) string {
	if domain, ok := strings.CutPrefix(scope, "*."); ok {
		_, domain, ok = strings.Cut(domain, ".")
		if !ok {
			return CatchAll
		}
		return "*." + domain
	}
	path := strings.LastIndexByte(scope, '/')
	if i := strings.LastIndexAny(scope, ":@"); i > path && path >= 0 {
		// the tag or the digest of an image
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
		return CatchAll
	}
	return "*." + domain
}

// CanonicalScope returns a scope, or a prefix of one, in canonical form: its host as from
// reference.ParseHost, and an image with a tag or digest as from reference.Parse.
func CanonicalScope(scope string) string {
	host, path, hasPath := strings.Cut(scope, "/")
	if hasPath && strings.ContainsAny(path, ":@") {
		if r, err := reference.Parse(scope); err == nil {
			return r.String()
		}
	}
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

// signedScope returns a prefix for names in signatures in the form in which containers/image
// compares them.
func signedScope(prefix string) string {
	host, path, _ := strings.Cut(prefix, "/")
	if r, err := reference.ParseSigned(host + "/x"); err == nil {
		host = r.Host
	}
	return strings.TrimSuffix(host+"/"+path, "/")
}

// checkScope returns an error for an invalid scope without a wildcard.
func checkScope(scope string) error {
	host, path, below := strings.Cut(scope, "/")
	refuse := func(problem string) error {
		return fmt.Errorf("%q is not host[:port], host[:port]/path, or one image with its tag or digest: %s", scope, problem)
	}
	switch {
	case scope == "":
		return refuse("it is empty")
	case below && path == "":
		return refuse("it ends in a slash")
	case !strings.ContainsAny(host, ".:") && !strings.EqualFold(host, "localhost"):
		image := "docker.io/library/" + host
		if below {
			image = "docker.io/" + scope
		}
		return refuse(fmt.Sprintf("%s has neither a dot nor a port, and is not localhost, so it would be a path on Docker Hub; write %s, or the host with its port, as in %s:5000", host, image, host))
	}
	_, err := reference.ParseHost(host)
	var r reference.Reference
	if err == nil && below {
		r, err = reference.Parse(scope)
	}
	var e *reference.Error
	switch {
	case errors.As(err, &e) && e.Suggestion != "":
		return refuse(fmt.Sprintf("%s; did you mean %q?", e.Problem, e.Suggestion))
	case errors.As(err, &e):
		return refuse(e.Problem)
	case r.Tag != "" && r.Digest != "":
		return refuse("it has both a tag and a digest, so no image matches it")
	}
	return err
}
