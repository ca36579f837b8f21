// Package named selects objects by a part of their names.
package named

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
)

// Match reports whether one of an object's names contains, or with != none of them contains, each
// part that is demanded, in either case of letters.
func Match(demanded []fields.Requirement, names ...string) bool {
	for _, r := range demanded {
		part := strings.ToLower(r.Value)
		has := slices.ContainsFunc(names, func(name string) bool { return strings.Contains(strings.ToLower(name), part) })
		if has == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	return true
}
