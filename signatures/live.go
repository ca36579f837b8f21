package signatures

import (
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Live has the policies in force in a running server, and a clock. The policies are a Set, which
// can be replaced while others use it.
type Live struct {
	clock clock.PassiveClock
	set   atomic.Pointer[policy.Set]
}

// NewLive puts a set in force; nil is one without policies.
func NewLive(set *policy.Set, c clock.PassiveClock) *Live {
	l := &Live{clock: c}
	l.set.Store(set)
	return l
}

// Set returns the policies in force, nil if there are none. A caller that needs the same policies
// more than once keeps the Set.
func (l *Live) Set() *policy.Set { return l.set.Load() }

// Replace puts other policies in force.
func (l *Live) Replace(set *policy.Set) { l.set.Store(set) }

// Verify calls VerifyImage with the policies in force and the time now.
func (l *Live) Verify(image *imagev1.Image, indexes func(repository string) ([]*imagev1.Image, error)) (covered bool) {
	_, covered = VerifyImage(image, l.Set(), l.clock.Now(), indexes)
	return covered
}

// Stale calls the function Stale with the policies in force and the time now.
func (l *Live) Stale(image *imagev1.Image) bool { return Stale(image, l.Set(), l.clock.Now()) }
