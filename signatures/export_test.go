package signatures

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Verify judges one signature of an image by the policies that cover the image, at the time now, as
// VerifyImage judges each signature of an Image. It returns the best verdict.
func Verify(s Signature, image Image, set *policy.Set, now time.Time) Verdict {
	ref, unfit := referenceOf(image)
	policies, err := cover(ref, unfit, set)
	switch {
	case err != nil:
		return unjudged(ReasonNoMatchingPolicy, fmt.Sprintf("no policy can be chosen: %v", err))
	case len(policies) == 0:
		return noPolicy(ref)
	}
	best := decide(s, image, ref, policies[0], check(s, image, policies[0], now))
	for _, p := range policies[1:] {
		if v := decide(s, image, ref, p, check(s, image, p, now)); v.informs() > best.informs() {
			best = v
		}
	}
	return best
}
