package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// immutableTags are the tags below a prefix that must not move.
type immutableTags struct {
	prefix   reference.Reference
	patterns policy.TagPatterns
}

// readImmutable reads the ImmutableTags of Registries, the longest prefix first.
func (c *Config) readImmutable() error {
	for i, r := range c.Registries {
		if r.ImmutableTags == nil {
			continue
		}
		key := fmt.Sprintf("registries[%d]", i)
		patterns, err := policy.NewTagPatterns(r.ImmutableTags)
		if err != nil {
			return c.Fault(key+".immutableTags", err)
		}
		name, path, _ := strings.Cut(strings.TrimSuffix(r.Prefix, "/"), "/")
		host, err := reference.ParseHost(name)
		if err != nil {
			return c.Fault(key, fmt.Errorf("prefix %q does not begin with a registry host, such as docker.io: %w", r.Prefix, err))
		}
		c.immutable = append(c.immutable, immutableTags{reference.Reference{Host: host, Repository: path}, patterns})
	}
	slices.SortStableFunc(c.immutable, func(a, b immutableTags) int {
		return cmp.Compare(len(b.prefix.Repository), len(a.prefix.Repository))
	})
	return nil
}

// Immutable returns the rule by which a tag must not move; "" if it may.
func (c *Config) Immutable(tag reference.Reference) string {
	for _, of := range c.immutable {
		if !tag.Below(of.prefix) {
			continue
		}
		if pattern := of.patterns.Match(tag.Tag); pattern != "" {
			return fmt.Sprintf("immutableTags of %s: %s", strings.TrimSuffix(of.prefix.Host+"/"+of.prefix.Repository, "/"), pattern)
		}
		return ""
	}
	return ""
}
