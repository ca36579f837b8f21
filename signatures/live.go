package signatures

import (
	"context"
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Live is the policies in force in a running server, and a clock. The policies are a Set that can
// be replaced while others use it. The image API asks Live for verdicts (it is its Verifier).
// NewLive makes one.
type Live struct {
	// Written, if set before the first verdict, gets each covered Image and the policies by which
	// it was judged.
	Written func(image *imagev1.Image, set *policy.Set)

	// Current, if set before the first verdict, puts in force what has been written elsewhere. If
	// it fails, the policies in force stay.
	Current func(context.Context) error

	clock clock.PassiveClock
	set   atomic.Pointer[policy.Set]
}

// NewLive puts a set in force; nil is one without policies.
func NewLive(set *policy.Set, c clock.PassiveClock) *Live {
	l := &Live{clock: c}
	l.set.Store(set)
	return l
}

// Set returns the policies in force, nil if there are none. A caller that judges more than once by
// the same policies keeps what it got.
func (l *Live) Set() *policy.Set { return l.set.Load() }

// Replace puts other policies in force.
func (l *Live) Replace(set *policy.Set) { l.set.Store(set) }

// Verify is VerifyImage by the policies in force, now.
func (l *Live) Verify(ctx context.Context, image *imagev1.Image, indexes func(repository string) ([]*imagev1.Image, error)) (covered bool) {
	if l.Current != nil {
		_ = l.Current(ctx) // which logs the error
	}
	set := l.Set()
	if _, covered = VerifyImage(image, set, l.clock.Now(), indexes); covered && l.Written != nil {
		l.Written(image, set)
	}
	return covered
}

// Stale is Stale by the policies in force, now.
func (l *Live) Stale(image *imagev1.Image) bool { return Stale(image, l.Set(), l.clock.Now()) }
