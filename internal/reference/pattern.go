package reference

import (
	"fmt"
	"path"
	"strings"
)

// MatchPath reports whether a repository's path matches a pattern, segment by segment with
// path.Match. A last segment ** matches one or more segments: team/** matches what is below
// team, and not team itself.
func MatchPath(pattern, repository string) bool {
	return match(strings.Split(pattern, "/"), strings.Split(repository, "/"))
}

func match(pattern, segments []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			// CheckPathPattern allows ** as the last segment only, which keeps matching
			// linear.
			return len(segments) > 0
		}
		if len(segments) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], segments[0]); !ok || err != nil {
			return false
		}
		pattern, segments = pattern[1:], segments[1:]
	}
	return len(segments) == 0
}

// CheckPathPattern returns an error for a pattern that MatchPath cannot use.
func CheckPathPattern(pattern string) error {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if s == "" {
			return fmt.Errorf("repository pattern %q has an empty segment", pattern)
		}
		if strings.Contains(s, "**") && (s != "**" || i != len(segments)-1) {
			return fmt.Errorf("repository pattern %q: ** may only be the whole last segment, as in team/**", pattern)
		}
		if _, err := path.Match(s, ""); err != nil {
			return fmt.Errorf("repository pattern %q: %w", pattern, err)
		}
	}
	return nil
}
