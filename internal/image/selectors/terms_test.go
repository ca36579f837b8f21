package selectors

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
)

// TestLayersShareIndexValues: two digests may share a value in the index, and a selector
// distinguishes them.
func TestLayersShareIndexValues(t *testing.T) {
	one, other := "sha256:"+strings.Repeat("ab", 32), "sha256:"+strings.Repeat("ab", 31)+"00"
	asked := NewSelector(fields.OneTermEqualSelector(Layer, one))
	value, ok := asked.RequiresExactMatch(Layer)
	if !ok || value != IndexValue(Layer, one) || value != IndexValue(Layer, other) || len(value) != indexedDigits {
		t.Errorf("the index is asked for %q, %t", value, ok)
	}
	for digest, want := range map[string]bool{one: true, other: false} {
		key, has := Term(Layer, digest)
		if got := asked.Matches(fields.Set{key: has}); got != want {
			t.Errorf("%s is selected: %t", digest, got)
		}
	}
	if got := IndexValue(Lists, one); got != one {
		t.Errorf("the index of another field has %q", got)
	}
	for _, short := range []string{"", "sha256:", "sha256:ab", "ab"} {
		if got := IndexValue(Layer, short); len(got) > len(short) {
			t.Errorf("%q is indexed as %q", short, got)
		}
	}
}
