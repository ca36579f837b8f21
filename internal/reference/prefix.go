package reference

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ParsePrefix reads a registry or a part of it: a host, or a host and the beginning of a
// repository's path, as in registry.example.com:5000/team.
func ParsePrefix(s string) (Reference, error) {
	name, path, _ := strings.Cut(strings.TrimSuffix(s, "/"), "/")
	host, err := ParseHost(name)
	if err != nil {
		return Reference{}, fmt.Errorf("prefix %q does not begin with a registry host, such as docker.io: %w", s, err)
	}
	// A name below a prefix must be a valid repository.
	if _, err := ParseRepository(host + strings.TrimSuffix("/"+path, "/") + "/x"); err != nil {
		return Reference{}, fmt.Errorf("prefix %q: %w", s, err)
	}
	return Reference{Host: host, Repository: path}, nil
}

// Prefixes has values for registries and for parts of them. The zero value has none.
type Prefixes[T any] struct{ all []prefixed[T] } // the longest prefix first

type prefixed[T any] struct {
	prefix Reference
	value  T
}

// Add adds the value for a prefix. It fails if there is one.
func (p *Prefixes[T]) Add(prefix Reference, value T) error {
	if slices.ContainsFunc(p.all, func(one prefixed[T]) bool { return one.prefix == prefix }) {
		return fmt.Errorf("prefix %q appears twice", prefix.Prefix())
	}
	p.all = append(p.all, prefixed[T]{prefix, value})
	slices.SortStableFunc(p.all, func(a, b prefixed[T]) int {
		return cmp.Compare(len(b.prefix.Repository), len(a.prefix.Repository))
	})
	return nil
}

// Longest returns the value for the longest prefix that a registry or a repository is below, and
// that prefix; ok is false if there is none.
func (p *Prefixes[T]) Longest(r Reference) (value T, prefix Reference, ok bool) {
	for i := range p.all {
		if r.Below(p.all[i].prefix) {
			return p.all[i].value, p.all[i].prefix, true
		}
	}
	return value, prefix, false
}

// Prefix is the text of a prefix.
func (r Reference) Prefix() string { return strings.TrimSuffix(r.Host+"/"+r.Repository, "/") }
