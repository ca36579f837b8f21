package containers

import (
	"fmt"
	"strings"

	dockerreference "go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// registry returns these mirrors as an entry of registries.conf, as OpenShift's machine config
// operator writes them there.
func (m Mirrors) registry() (*sysregistriesv2.Registry, error) {
	source, err := location(strings.Replace(m.Source, "*.", "x.", 1))
	if err != nil {
		return nil, fmt.Errorf("mirrors of %q: %w", m.Source, err)
	}
	r := &sysregistriesv2.Registry{Prefix: source, Endpoint: sysregistriesv2.Endpoint{Location: source}, Blocked: m.NeverContactSource}
	if strings.HasPrefix(m.Source, "*.") {
		if strings.ContainsAny(source, "/:") {
			return nil, fmt.Errorf("mirrors of %q: a prefix that begins with *. has neither a port nor a path", m.Source)
		}
		// each host stays as it is
		r.Prefix, r.Location = strings.Replace(source, "x.", "*.", 1), ""
	}
	add := func(mirrors []string, pull string) {
		for _, mirror := range mirrors {
			at, e := location(mirror)
			if e != nil {
				err = fmt.Errorf("mirrors of %q: %q: %w", m.Source, mirror, e)
			}
			r.Mirrors = append(r.Mirrors, sysregistriesv2.Endpoint{Location: at, PullFromMirror: pull})
		}
	}
	add(m.Digests, sysregistriesv2.MirrorByDigestOnly)
	add(m.Tags, sysregistriesv2.MirrorByTagOnly)
	return r, err
}

// location reads a host, or a host and the beginning of a path, and returns its canonical form.
func location(s string) (string, error) {
	host, path, below := strings.Cut(strings.TrimSuffix(s, "/"), "/")
	host, err := reference.ParseHost(host)
	if err != nil {
		return "", err
	}
	if below {
		host += "/" + path
	}
	_, err = reference.ParseRepository(host + "/x")
	return host, err
}

// PullSources implements importer.Files.
func (f *Files) PullSources(ref reference.Reference) ([]pull.Source, error) {
	r, own, name := f.mirrored(ref.Name()), true, ref.Name()
	if r == nil {
		e, err := f.find(name)
		if err != nil {
			return nil, err
		}
		if e.Registry == nil {
			return []pull.Source{{Reference: ref}}, nil
		}
		r, own, name = e.Registry, false, e.name
	}
	named, err := dockerreference.ParseNormalizedNamed(name + strings.TrimPrefix(ref.String(), ref.Name()))
	if err != nil {
		return nil, err
	}
	sources, err := r.PullSourcesFromReference(named)
	if err != nil {
		return nil, err
	}
	var out []pull.Source
	for i, s := range sources {
		at, err := reference.Parse(s.Reference.String())
		if err != nil {
			return nil, fmt.Errorf("the mirror of %s: %w", ref, err)
		}
		source, rewritten := i == len(sources)-1, at.Name() != ref.Name()
		if source && r.Blocked && (own || rewritten) {
			break
		}
		// The source's own settings are those that Registry returns.
		out = append(out, pull.Source{Reference: at, Insecure: s.Endpoint.Insecure && (!source || rewritten)})
	}
	return out, nil
}

// mirrored returns the entry with the longest source that matches, or nil.
func (f *Files) mirrored(name string) (found *sysregistriesv2.Registry) {
	for _, r := range f.mirrors {
		if matches(name, r.Prefix) && (found == nil || len(r.Prefix) > len(found.Prefix)) {
			found = r
		}
	}
	return found
}

// matches reports whether a source is host/repository or the beginning of it.
func matches(name, source string) bool {
	if below, ok := strings.CutPrefix(source, "*"); ok {
		host, _, _ := strings.Cut(name, "/")
		return strings.HasSuffix(host, below)
	}
	rest, ok := strings.CutPrefix(name, source)
	return ok && (rest == "" || rest[0] == '/')
}
