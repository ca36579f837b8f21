package clusters

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
)

// verifiedField is the verdict for what a container names, by the policies that count for its
// namespace. It is computed when asked, and not stored.
const verifiedField = "verified"

// reasonField is why that verdict is so.
const reasonField = "reason"

// reasonLike is how reasons are written.
var reasonLike = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// areVerdicts returns why what is demanded of the field "verified" is no verdict.
func areVerdicts(demanded []fields.Requirement, words []string) error {
	for _, r := range demanded {
		if !slices.Contains(words, r.Value) {
			return fmt.Errorf("field label %q of clusterpods cannot be %q: it is %s", verifiedField, r.Value, strings.Join(words, ", "))
		}
	}
	return nil
}

// without takes a field that is computed when asked out of a selector, and returns what is demanded
// of it.
func without(o *internalversion.ListOptions, field string) (_ *internalversion.ListOptions, demanded []fields.Requirement) {
	if o == nil || o.FieldSelector == nil {
		return o, nil
	}
	for _, r := range o.FieldSelector.Requirements() {
		if r.Field == field {
			demanded = append(demanded, r)
		}
	}
	if len(demanded) == 0 {
		return o, nil
	}
	out := *o
	out.FieldSelector, _ = o.FieldSelector.Transform(func(name, value string) (string, string, error) {
		if name == field {
			return "", "", nil
		}
		return name, value, nil
	})
	return &out, demanded
}

// isVerifiedSo reports whether a pod that was described meets what is demanded of its verdicts and
// their reasons: with =, that one of its containers has the verdict or the reason, with !=, that
// none has. A container that has a reason counts only if its verdict is among those that are
// demanded.
func isVerifiedSo(p *ClusterPod, verified, reasons []fields.Requirement) bool {
	demands := func(word string) bool { // word is the verdict of a container that has the reason
		some := false
		for _, r := range verified {
			if r.Operator != selection.NotEquals {
				if r.Value == word {
					return true
				}
				some = true
			}
		}
		return !some
	}
	for _, r := range verified {
		has := slices.ContainsFunc(p.Spec.Containers, func(c ClusterPodContainer) bool { return c.Verified == r.Value })
		if has == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	for _, r := range reasons {
		not := r.Operator == selection.NotEquals
		has := slices.ContainsFunc(p.Spec.Containers, func(c ClusterPodContainer) bool {
			return c.Reason == r.Value && (not || demands(c.Verified))
		})
		if has == not {
			return false
		}
	}
	return true
}

// The values of the field "outdated", which is computed when asked.
const (
	driftTrue    = "true"    // a container runs something else than its tag leads to now
	driftUnknown = "unknown" // none is known to, and one may
	driftFalse   = "false"   // none does
)

// driftOf is the value of the field "outdated" of a pod that was described. If values of the field
// "image" are selected, only containers that have one count.
func driftOf(p *ClusterPod, values []string) string {
	drift := driftFalse
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if len(values) > 0 && !podimages.Selected(values, podimages.Values(c.Image, c.ImageID), p.Spec.Platform) {
			continue
		}
		switch {
		case c.Outdated != "":
			return driftTrue
		case c.OutdatedUnknown != "":
			drift = driftUnknown
		}
	}
	return drift
}

// isDriftSo reports whether a value of the field "outdated" meets what is demanded.
func isDriftSo(drift string, demanded []fields.Requirement) bool {
	return !slices.ContainsFunc(demanded, func(r fields.Requirement) bool {
		return (drift == r.Value) == (r.Operator == selection.NotEquals)
	})
}
