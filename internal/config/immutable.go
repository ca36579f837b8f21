package config

import (
	"fmt"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// readImmutable reads the ImmutableTags of Registries.
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
		prefix, err := reference.ParsePrefix(r.Prefix)
		if err == nil {
			err = c.immutable.Add(prefix, patterns)
		}
		if err != nil {
			return c.Fault(key, err)
		}
	}
	return nil
}

// Immutable returns the rule by which a tag must not move; "" if it may.
func (c *Config) Immutable(tag reference.Reference) string {
	patterns, prefix, _ := c.immutable.Longest(tag)
	if pattern := patterns.Match(tag.Tag); pattern != "" {
		return fmt.Sprintf("immutableTags of %s: %s", prefix.Prefix(), pattern)
	}
	return ""
}
