package containers

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.podman.io/image/v5/pkg/sysregistriesv2"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// MirrorOf returns the references for which a reference may be read: those whose mirrors have its
// name. A source that stands for many hosts, *.example.com, is left out, because a mirror's name
// does not tell which one.
func (f *Files) MirrorOf(ref reference.Reference) (all []reference.Reference, err error) {
	return f.renamed(ref, func(r *sysregistriesv2.Registry, mirror string) (from, to string) { return mirror, r.Prefix })
}

// MirrorsOf returns the names that a reference has on mirrors: MirrorOf leads back from each.
func (f *Files) MirrorsOf(ref reference.Reference) (all []reference.Reference, err error) {
	return f.renamed(ref, func(r *sysregistriesv2.Registry, mirror string) (from, to string) { return r.Prefix, mirror })
}

// renamed returns a reference with its name's beginning replaced, by each mirror of each registry.
// as returns what is replaced, and by what.
func (f *Files) renamed(ref reference.Reference, as func(r *sysregistriesv2.Registry, mirror string) (from, to string)) (all []reference.Reference, err error) {
	listed, err := sysregistriesv2.GetRegistries(f.system)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("registries.conf: %w", err)
	}
	known := slices.Clone(f.mirrors)
	for i := range listed {
		known = append(known, &listed[i])
	}
	for _, r := range known {
		if strings.HasPrefix(r.Prefix, "*") {
			continue
		}
		for _, mirror := range r.Mirrors {
			from, to := as(r, mirror.Location)
			if !matches(ref.Name(), from) {
				continue
			}
			source, err := reference.ParseRepository(to + strings.TrimPrefix(ref.Name(), from))
			if err != nil {
				continue // the mirror's path is a part of one that no repository can have
			}
			source.Tag, source.Digest = ref.Tag, ref.Digest
			if source != ref && !slices.Contains(all, source) {
				all = append(all, source)
			}
		}
	}
	return all, nil
}
