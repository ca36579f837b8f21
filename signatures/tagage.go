package signatures

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// TagAge returns a text about when a registry last confirmed where a tag leads. A zero checked
// means that this is unknown.
func TagAge(tag reference.Reference, checked, now time.Time) string {
	if checked.IsZero() {
		return fmt.Sprintf("it is unknown when the registry last confirmed where %s leads", tag)
	}
	return fmt.Sprintf("where %s leads was last checked %s ago", tag, duration.HumanDuration(max(0, now.Sub(checked))))
}

// TooOld returns the policies whose maximum tag age is exceeded, and a text that says why: for them
// it is unknown where the tag leads now. A reference with a digest is never too old.
func TooOld(by []*policy.Policy, asked reference.Reference, checked, now time.Time) (of []*policy.Policy, why string) {
	if asked.Tag == "" || asked.Digest != "" {
		return nil, ""
	}
	for _, p := range by {
		if p.Admission.IsTooOld(now.Sub(checked)) {
			of = append(of, p)
			why = fmt.Sprintf("%s, and policy %q allows %s", TagAge(asked, checked, now), p.ID(), p.Admission.MaxTagAge)
		}
	}
	return of, why
}
