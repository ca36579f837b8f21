package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// Reference is an image reference in the fully expanded form: index.docker.io and an absent host are
// docker.io, official images are under library/. At most one of Tag and Digest is set; no default tag is added.
type Reference struct {
	Repository string // host[:port]/path
	Tag        string
	Digest     string // algorithm:hex
}

// ParseReference reads an image reference. One with both a tag and a digest is an error, because the two can
// disagree and policies treat them differently (containers/image refuses them too).
func ParseReference(s string) (Reference, error) {
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return Reference{}, fmt.Errorf("image reference %q: %w", s, err)
	}
	r := Reference{Repository: named.Name()}
	if t, ok := named.(reference.Tagged); ok {
		r.Tag = t.Tag()
	}
	if d, ok := named.(reference.Digested); ok {
		r.Digest = d.Digest().String()
	}
	if r.Tag != "" && r.Digest != "" {
		return Reference{}, fmt.Errorf("image reference %q: %w", s, errors.New("has both a tag and a digest; use one"))
	}
	return r, nil
}

func (r Reference) String() string {
	switch {
	case r.Digest != "":
		return r.Repository + "@" + r.Digest
	case r.Tag != "":
		return r.Repository + ":" + r.Tag
	}
	return r.Repository
}

// Scopes returns the scopes that cover the reference, most specific first: the reference itself, its
// repository, each parent path, host[:port], then without the port "*." and each shorter domain. It is the
// search order of containers/image (docker/policyconfiguration) and serves registries.d files too.
func (r Reference) Scopes() []string {
	var scopes []string
	if r.Tag != "" || r.Digest != "" {
		scopes = append(scopes, r.String())
	}
	for name := r.Repository; ; {
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
