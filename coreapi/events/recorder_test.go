package events

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
)

// A flood of Events of one reason, such as of pushes, hides none of another, and is bounded; so are
// reasons.
func TestAFloodHidesNoOtherReason(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(time.Now())
	told := record.NewFakeRecorder(100_000)
	r := &Recorder{recorder: told, rates: rates{clock: clock}}
	event := func(reason string) {
		r.Event(&corev1.Pod{}, corev1.EventTypeNormal, reason, "it happened")
	}
	count := func(what string, want int) {
		t.Helper()
		if got := len(told.Events); got != want {
			t.Errorf("%s: %d Events, want %d", what, got, want)
		}
		for len(told.Events) > 0 {
			<-told.Events
		}
	}
	for range 10 * eventBurst {
		event("ImagePushed")
	}
	count("a flood", eventBurst)
	event("VerdictChanged")
	count("another reason", 1)
	clock.SetTime(clock.Now().Add(time.Second))
	for range eventBurst {
		event("ImagePushed")
	}
	count("a second later", eventsPerSecond)
	for i := range 10 * maxReasons {
		for range 2 * eventBurst {
			event(fmt.Sprint("Reason", i))
		}
	}
	if got, most := len(told.Events), (maxReasons+1)*eventBurst; got > most || len(r.rates.of) > maxReasons+1 {
		t.Errorf("%d Events of many reasons, want at most %d; %d reasons are remembered", got, most, len(r.rates.of))
	}
}
