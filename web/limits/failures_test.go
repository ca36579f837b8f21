package limits

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestAttackFailedLoginsOfOneAddress: a caller that repeatedly fails authentication gets 429 with a
// time to wait. Others get the same answers as before, and so does the address after that time.
func TestAttackFailedLoginsOfOneAddress(t *testing.T) {
	t.Parallel()
	f := NewFailures(NewRefused(nil))
	clock := clocktesting.NewFakePassiveClock(time.Now())
	f.now = clock.Now
	h := WithFailureLimit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }), f)
	fail := func(remote string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		h.ServeHTTP(w, r)
		return w
	}
	flood := func(n int) (failed int) {
		for i := range n {
			w := fail(fmt.Sprintf("[2001:db8::%x]:1234", i)) // of one host
			switch {
			case w.Code == http.StatusUnauthorized:
				failed++
			case w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1":
				t.Fatalf("%d %v", w.Code, w.Header())
			}
		}
		return failed
	}
	if n := flood(10 * failureBurst); n != failureBurst {
		t.Errorf("%d failures are answered at once, want %d", n, failureBurst)
	}
	if w := fail("192.0.2.1:1234"); w.Code != http.StatusUnauthorized {
		t.Errorf("another address: %d", w.Code)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if n := flood(10 * failureBurst); n != failuresPerSecond {
		t.Errorf("%d failures are answered a second later, want %d", n, failuresPerSecond)
	}
	// Any number of addresses takes bounded memory.
	for i := range 2 * failingAddresses {
		fail(fmt.Sprintf("10.0.%d.%d:1234", i>>8, i&255))
	}
	if n := f.addresses.Len(); n > failingAddresses {
		t.Errorf("%d addresses are known", n)
	}
}

// TestAttackChecksOfWrongCredentialsTakeTurns: credentials from an address with too many failures
// are checked one at a time, also valid ones. Credentials from other addresses do not wait.
func TestAttackChecksOfWrongCredentialsTakeTurns(t *testing.T) {
	t.Parallel()
	f := NewFailures(NewRefused(nil))
	clock := clocktesting.NewFakePassiveClock(time.Now())
	f.now = clock.Now
	const flooded, quiet = "192.0.2.1:1234", "192.0.2.2:1234"
	check := func(ctx context.Context, remote string) func() {
		t.Helper()
		done, err := f.Check(ctx, remote)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for range failureBurst {
		defer check(t.Context(), flooded)() // all at once
	}
	for range failureBurst {
		f.fail(Address(flooded))
	}
	done := check(t.Context(), flooded)
	defer check(t.Context(), quiet)()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := f.Check(ctx, flooded); err == nil {
		t.Error("two credentials are checked at once")
	}
	next := make(chan struct{})
	go func() {
		defer close(next)
		check(t.Context(), flooded)()
	}()
	done()
	<-next
}
