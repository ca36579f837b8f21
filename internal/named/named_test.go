package named

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	names := []string{"shop-7d9f-x2", "Shop"}
	for selector, want := range map[string]bool{
		"named=shop":             true,
		"named=7D9F":             true,
		"named=bank":             false,
		"named!=bank":            true,
		"named!=hop":             false,
		"named=shop,named=x2":    true,
		"named=shop,named!=7d9f": false,
		"":                       true,
	} {
		if got := Match(fields.ParseSelectorOrDie(selector).Requirements(), names...); got != want {
			t.Errorf("%q: %v, not %v", selector, got, want)
		}
	}
}
