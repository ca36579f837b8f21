package signatures

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// TagAge returns a text about when a registry last confirmed where a tag leads. A zero checked
// means that this is unknown.
func TagAge(tag reference.Reference, checked, now time.Time) string {
	if checked.IsZero() {
		return fmt.Sprintf("it is unknown when the registry last confirmed where %s leads", tag)
	}
	if tags.IsAhead(checked, now) {
		return fmt.Sprintf("it is unknown how long ago the registry last confirmed where %s leads: that was at %s by a clock that has been set back since", tag, checked.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("where %s leads was last checked %s ago", tag, duration.HumanDuration(max(0, now.Sub(checked))))
}

// TooOld returns the policies whose maximum tag age is exceeded, and a text with the reason. For
// these policies it is unknown where the tag leads now. v is the verdict on the image to which the
// tag leads, at the time at; the age is as of now. Among alternatives, only those count that vouch
// for the image, and only if the age exceeds the bounds of all of them; if none vouches, each
// counts. A reference with a digest is never too old.
func TooOld(by []*policy.Policy, v annotation.Verdict, asked reference.Reference, digest string, checked, at, now time.Time) (of []*policy.Policy, why string) {
	if asked.Tag == "" || asked.Digest != "" {
		return nil, ""
	}
	age := now.Sub(checked)
	if tags.IsAhead(checked, now) {
		age = math.MaxInt64
	}
	for _, r := range policy.Requirements(by) {
		among := Vouching(r, v, asked, digest, at)
		if slices.ContainsFunc(among, func(p *policy.Policy) bool { return !p.Admission.IsTooOld(age) }) {
			continue
		}
		if len(among) == 0 {
			among = r
		}
		for _, p := range among {
			if p.Admission.IsTooOld(age) {
				of = append(of, p)
				why = fmt.Sprintf("%s, and policy %q allows %s", TagAge(asked, checked, now), p.ID(), p.Admission.MaxTagAge)
			}
		}
	}
	return of, why
}
