package hooks

import (
	"fmt"
	"path"
	"strings"
)

// matchAny reports whether the repository matches one of the patterns, or there
// are none.
func matchAny(patterns []string, repository string) bool {
	for _, p := range patterns {
		if match(strings.Split(p, "/"), strings.Split(repository, "/")) {
			return true
		}
	}
	return len(patterns) == 0
}

// match matches segment by segment with path.Match; a segment ** stands for one or
// more segments, so team/** is what is below team and not team itself.
func match(pattern, segments []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			// A trailing ** takes the rest; validPattern allows no other, which keeps
			// matching linear.
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

func validPattern(p string) error {
	segments := strings.Split(p, "/")
	for i, s := range segments {
		if s == "" {
			return fmt.Errorf("repository pattern %q has an empty segment", p)
		}
		if strings.Contains(s, "**") && (s != "**" || i != len(segments)-1) {
			return fmt.Errorf("repository pattern %q: ** may only be the whole last segment, as in team/**", p)
		}
		if _, err := path.Match(s, ""); err != nil {
			return fmt.Errorf("repository pattern %q: %w", p, err)
		}
	}
	return nil
}
