package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// of is a request with a cookie.
func requestWith(cookie *http.Cookie) *http.Request {
	r := httptest.NewRequest(http.MethodGet, Root, nil)
	r.AddCookie(cookie)
	return r
}

func TestSessionsEnd(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	s := newSessions(clock)
	begun := clock.Now()
	idle, busy := requestWith(s.begin("ann", "a")), requestWith(s.begin("ann", "b"))
	for at := begun; at.Before(begun.Add(longestTime)); at = at.Add(idleTime - time.Minute) {
		clock.SetTime(at)
		if s.of(busy) == nil {
			t.Fatalf("a session that is used has ended after %s", at.Sub(begun))
		}
	}
	if s.of(idle) != nil {
		t.Error("a session goes on that nobody used")
	}
	clock.SetTime(begun.Add(longestTime))
	if s.of(busy) != nil {
		t.Errorf("a session is longer than %s", longestTime)
	}
	if n := len(s.byKey); n != 0 {
		t.Errorf("%d sessions that have ended are kept", n)
	}
}

// One person's sessions take no place from another's.
func TestSessionsAreBounded(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	s := newSessions(clock)
	ann := requestWith(s.begin("ann", "a"))
	for range 3 * perUser {
		clock.SetTime(clock.Now().Add(time.Second))
		s.begin("ben", "b")
	}
	if s.of(ann) == nil || len(s.byKey) != perUser+1 {
		t.Errorf("%d sessions, ann's among them: %t", len(s.byKey), s.of(ann) != nil)
	}
	for i := range maxSessions {
		clock.SetTime(clock.Now().Add(time.Millisecond))
		s.begin(text(fmt.Sprint("user ", i)), "c")
	}
	if s.of(ann) == nil || len(s.byKey) != maxSessions {
		t.Errorf("%d sessions of at most %d, ann's among them: %t", len(s.byKey), maxSessions, s.of(ann) != nil)
	}
}
