package server

import (
	"errors"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func TestReadinessWaitsForOwnPods(t *testing.T) {
	t.Parallel()
	for name, passes := range map[string]func(stale *string, fault *error, c *testclock.FakePassiveClock){
		"they are known":        func(stale *string, _ *error, _ *testclock.FakePassiveClock) { *stale = "" },
		"nothing can be stored": func(_ *string, fault *error, _ *testclock.FakePassiveClock) { *fault = errors.New("disk full") },
		"they cannot be known":  func(_ *string, _ *error, c *testclock.FakePassiveClock) { c.SetTime(c.Now().Add(ownPodsPatience)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stale, fault, c := "not yet", error(nil), testclock.NewFakePassiveClock(time.Now())
			check := ownPodsRead(func() string { return stale }, func() error { return fault }, c)
			if err := check.Check(nil); err == nil || err.Error() != stale {
				t.Errorf("it is ready with %v", err)
			}
			passes(&stale, &fault, c)
			if err := check.Check(nil); err != nil {
				t.Error(err)
			}
			stale, fault = "a moment ago", nil
			c.SetTime(c.Now().Add(-ownPodsPatience))
			if err := check.Check(nil); err != nil {
				t.Errorf("a server that was ready is not: %v", err)
			}
		})
	}
}
