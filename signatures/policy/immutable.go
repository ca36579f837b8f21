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

// TagPatterns are patterns of tags, separated by commas, in which * stands for any characters: v*,
// *-release. They are checked when they are read. The zero value matches no tag.
type TagPatterns string

// maxTagPatterns bounds the patterns of one rule.
const maxTagPatterns = 32

var isTagPattern = regexp.MustCompile(`^[A-Za-z0-9_.*-]{1,128}$`).MatchString

// NewTagPatterns returns TagPatterns, or an error about an invalid pattern.
func NewTagPatterns(all []string) (TagPatterns, error) {
	if len(all) > maxTagPatterns {
		return "", fmt.Errorf("has %s, and may have %d", table.Quantity(len(all), "pattern"), maxTagPatterns)
	}
	for _, pattern := range all {
		if !isTagPattern(pattern) {
			return "", fmt.Errorf("%.64q is not a pattern of tags, such as v* or *-release", pattern)
		}
	}
	return TagPatterns(strings.Join(all, ",")), nil
}

// check returns an error about an invalid pattern in p.
func (p TagPatterns) check() error {
	if p == "" {
		return nil
	}
	all := strings.Split(string(p), ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	if slices.Equal(all, []string{""}) {
		return errors.New("is empty, must be patterns of tags, such as v*, *-release")
	}
	_, err := NewTagPatterns(all)
	return err
}

// Match returns the first pattern that matches a tag; "" if none does.
func (p TagPatterns) Match(tag string) string {
	if p == "" || tag == "" {
		return ""
	}
	for pattern := range strings.SplitSeq(string(p), ",") {
		pattern = strings.TrimSpace(pattern)
		// no pattern is malformed
		if matches, _ := path.Match(pattern, tag); matches {
			return pattern
		}
	}
	return ""
}
