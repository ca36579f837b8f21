package policy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/table"
)

// TagPatterns are patterns of tags in which * stands for any characters, such as v* and *-release.
// The zero value matches no tag.
type TagPatterns []string

// maxTagPatterns bounds the patterns of one rule.
const maxTagPatterns = 32

var isTagPattern = regexp.MustCompile(`^[A-Za-z0-9_.*-]{1,128}$`).MatchString

// NewTagPatterns returns patterns, or why one is none.
func NewTagPatterns(all []string) (TagPatterns, error) {
	if len(all) > maxTagPatterns {
		return nil, fmt.Errorf("has %s, and may have %d", table.Quantity(len(all), "pattern"), maxTagPatterns)
	}
	for _, pattern := range all {
		if !isTagPattern(pattern) {
			return nil, fmt.Errorf("%.64q is not a pattern of tags, such as v* or *-release", pattern)
		}
	}
	return slices.Clone(all), nil
}

// parseTagPatterns reads patterns that commas separate.
func parseTagPatterns(text string) (TagPatterns, error) {
	all := strings.Split(text, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	if slices.Equal(all, []string{""}) {
		return nil, errors.New("is empty, must be patterns of tags, such as v*, *-release")
	}
	return NewTagPatterns(all)
}

// Match returns the first pattern that matches a tag; "" if none does.
func (p TagPatterns) Match(tag string) string {
	for _, pattern := range p {
		// no pattern is malformed
		if matches, _ := path.Match(pattern, tag); matches {
			return pattern
		}
	}
	return ""
}

// Immutable returns the pattern by which a tag must not move; "" if it may. Patterns that cannot be
// read count as *.
func (a Admission) Immutable(tag string) string {
	if a.ImmutableTags == "" || tag == "" {
		return ""
	}
	patterns, err := parseTagPatterns(a.ImmutableTags)
	if err != nil {
		return "*"
	}
	return patterns.Match(tag)
}
