package server

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
)

// usageSynced fails until the server knows which images the pods use.
func usageSynced(core *coreapi.API) healthz.HealthChecker {
	return healthz.NamedCheck("image-usage", func(*http.Request) error {
		if !core.Usage.Synced() { // clusters that are away do not delay readiness
			return errors.New("the pods that use images are still being read")
		}
		return nil
	})
}

// policiesRead fails until the API objects of policies are in force.
func policiesRead(keeper *policyapi.Keeper) healthz.HealthChecker {
	return healthz.NamedCheck("policies", func(r *http.Request) error {
		if keeper.Loaded() == nil {
			return nil
		}
		return keeper.Load(r.Context())
	})
}

// ownPodsPatience is the longest time that readiness waits for the server's own pods.
const ownPodsPatience = 10 * time.Second

// ownPodsRead fails until the server knows what its own pods run: before that, it refuses to delete
// images. Once the check has succeeded, it always succeeds. It also succeeds if the store has a
// fault, or after ownPodsPatience: one unreadable pod must not keep the server from answering.
func ownPodsRead(stale func() string, fault func() error, c clock.PassiveClock) healthz.HealthChecker {
	var passed atomic.Bool
	begun := c.Now()
	return healthz.NamedCheck("own-pods", func(*http.Request) error {
		if passed.Load() {
			return nil
		}
		if reason := stale(); reason != "" && fault() == nil && c.Since(begun) < ownPodsPatience {
			return errors.New(reason)
		}
		passed.Store(true)
		return nil
	})
}

// passes waits until a check succeeds or ctx is done.
func passes(ctx context.Context, check healthz.HealthChecker) error {
	return wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) { return check.Check(nil) == nil, nil })
}
