package signatures

import (
	"sync/atomic"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"tidewaiter/signatures/policy"
)

// Live is the policies in force in a running server: a Set that can be replaced while others use it. Its zero
// value has no policies.
type Live struct {
	set atomic.Pointer[policy.Set]
}

// Set returns the policies in force, nil if there are none. A caller that judges more than once by the same
// policies keeps what it got.
func (l *Live) Set() *policy.Set { return l.set.Load() }

// Replace puts other policies in force.
func (l *Live) Replace(set *policy.Set) { l.set.Store(set) }

// VerifyImage is VerifyImage by the policies in force.
func (l *Live) VerifyImage(image *imagev1.Image, now time.Time) (changed, covered bool) {
	return VerifyImage(image, l.Set(), now)
}

// VerifyUpdate is VerifyUpdate by the policies in force.
func (l *Live) VerifyUpdate(image, old *imagev1.Image, now time.Time) (covered bool) {
	return VerifyUpdate(image, old, l.Set(), now)
}

// Covered is Covered by the policies in force.
func (l *Live) Covered(image *imagev1.Image) bool { return Covered(image, l.Set()) }

// Stale is Stale by the policies in force.
func (l *Live) Stale(image *imagev1.Image, now time.Time) bool { return Stale(image, l.Set(), now) }
