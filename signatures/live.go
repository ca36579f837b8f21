package signatures

import (
	"context"
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Live is the policies in force in a running server, and a clock. The policies are a Set that can
// be replaced while others use it. Live is the image API's Verifier.
type Live struct {
	// CatchUp, if set before the first verdict, puts policies in force that other servers have
	// written. It returns an error if they cannot be read.
	CatchUp func(context.Context) error

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

// Current puts policies in force that other servers have written. After an error no verdict may be
// stored, because the policies in force may be out of date.
func (l *Live) Current(ctx context.Context) error {
	if l.CatchUp == nil {
		return nil
	}
	return l.CatchUp(ctx)
}

// Verify is VerifyImage by the policies in force, now. Call Current before.
func (l *Live) Verify(_ context.Context, image *imagev1.Image, indexes func(repository string) ([]*imagev1.Image, error)) (covered bool) {
	_, covered = VerifyImage(image, l.Set(), l.clock.Now(), indexes)
	return covered
}

// Stale is Stale by the policies in force, now.
func (l *Live) Stale(image *imagev1.Image) bool { return Stale(image, l.Set(), l.clock.Now()) }
