package reference_test

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, repository string
		want                bool
	}{
		{"team/**", "team/app", true},
		{"team/**", "team/sub/app", true},
		{"team/**", "team", false},
		{"team/**", "teams/app", false},
		{"**", "app", true},
		{"lib/*", "lib/app", true},
		{"lib/*", "lib", false},
		{"lib/*", "lib/sub/app", false},
	} {
		if got := reference.MatchPath(tt.pattern, tt.repository); got != tt.want {
			t.Errorf("%s, %s: %v", tt.pattern, tt.repository, got)
		}
	}
}
