package console

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

// jar is what a browser has of a console's cookies.
type jar []*http.Cookie

// take takes the cookies of an answer, as a browser does.
func (j *jar) take(set []*http.Cookie) {
	for _, c := range set {
		*j = slices.DeleteFunc(slices.Clone(*j), func(old *http.Cookie) bool { return old.Name == c.Name })
		if c.MaxAge >= 0 {
			*j = append(*j, c)
		}
	}
}

// request is one with the cookies.
func (j jar) request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, Root, nil)
	for _, c := range j {
		r.AddCookie(c)
	}
	return r
}

// signIn begins a session, and returns the cookies.
func (j jar) signIn(t *testing.T, s *Sessions, token string) jar {
	t.Helper()
	w := httptest.NewRecorder()
	if err := s.begin(w, "ann", token); err != nil {
		t.Fatal(err)
	}
	j.take(w.Result().Cookies())
	return j
}

func TestSessionsEnd(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	s := NewSessions([]byte("secret"), clock, nil)
	begun := clock.Now()
	idle, busy := jar{}.signIn(t, s, "a"), jar{}.signIn(t, s, "b")
	for at := begun; at.Before(begun.Add(longestTime)); at = at.Add(idleTime - time.Minute) {
		clock.SetTime(at)
		one := s.find(busy.request())
		if one == nil {
			t.Fatalf("a session that is used has ended after %s", at.Sub(begun))
		}
		w := httptest.NewRecorder()
		if err := s.renew(w, one); err != nil {
			t.Fatal(err)
		}
		if renewed := len(w.Result().Cookies()) > 0; renewed != at.After(begun) {
			t.Errorf("after %s the cookie was given again: %t", at.Sub(begun), renewed)
		}
		busy.take(w.Result().Cookies())
	}
	if s.find(idle.request()) != nil {
		t.Error("a session goes on that nobody used")
	}
	clock.SetTime(begun.Add(longestTime))
	if s.find(busy.request()) != nil {
		t.Errorf("a session is longer than %s", longestTime)
	}
}

// A live page ends with its session, also if nobody ends that.
func TestLivePageOfExpiredSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSessions([]byte("secret"), clock.RealClock{}, nil)
		idle := s.find(jar{}.signIn(t, s, "a").request())
		long := *idle
		long.ID, long.Begun = "long", idle.Begun.Add(idleTime/2-longestTime)
		for _, of := range []*session{&long, idle} {
			page, done := s.follow(t.Context(), of)
			<-page.Done()
			if at := time.Now(); !at.Equal(of.expires()) {
				t.Errorf("a live page of a session that expires at %s ended at %s", of.expires(), at)
			}
			done()
		}
		if lasted := time.Since(idle.Begun); lasted != idleTime {
			t.Errorf("an idle session has lasted %s", lasted)
		}
	})
}

// Servers with one secret know each other's sessions; others do not.
func TestSessionsOfReplicas(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	one, two, stranger := NewSessions([]byte("secret"), clock, nil), NewSessions([]byte("secret"), clock, nil), NewSessions([]byte("other"), clock, nil)
	for _, token := range []string{"short", strings.Repeat("x", maxToken)} {
		j := jar{}.signIn(t, one, token)
		for _, c := range j {
			if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || len(c.Name+c.Value) > 4096 || strings.Contains(c.Value, token) {
				t.Errorf("the cookie is %s", c)
			}
		}
		if got := two.find(j.request()); got == nil || got.Token != token || got.User != "ann" {
			t.Errorf("a replica sees %+v in %d cookies", got, len(j))
		}
		if stranger.find(j.request()) != nil {
			t.Error("a server with another secret takes the session")
		}
		for i := range j {
			changed := slices.Clone(j)
			changed[i] = &http.Cookie{Name: j[i].Name, Value: swapped(j[i].Value)}
			if one.find(changed.request()) != nil || len(j) > 1 && one.find(slices.Delete(slices.Clone(j), i, i+1).request()) != nil {
				t.Errorf("cookie %d of %d may be changed or missing", i, len(j))
			}
		}
		// A shorter session leaves nothing of a longer one, also if its request shows none of the
		// cookies.
		if j = j.signIn(t, one, "next"); two.find(j.request()) == nil || len(j) != 1 {
			t.Errorf("after signing in again there are %d cookies", len(j))
		}
	}
	if one.find(jar{}.request()) != nil {
		t.Error("who has no cookie is signed in")
	}
}

// swapped is a text with another first letter.
func swapped(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}

// What is remembered of sessions that were ended is bounded, and one that is remembered stays
// ended.
func TestEndedSessionsAreBounded(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	s := NewSessions([]byte("secret"), clock, nil)
	var last jar
	for range maxEnded + 3 {
		clock.SetTime(clock.Now().Add(time.Second))
		last = jar{}.signIn(t, s, "a")
		_ = s.end(t.Context(), s.find(last.request()))
	}
	if s.find(last.request()) != nil || len(s.ended) != maxEnded {
		t.Errorf("%d are remembered", len(s.ended))
	}
	// Who ends many makes the server forget none of another person.
	_ = s.end(t.Context(), &session{ID: "another's", User: "bob", Begun: clock.Now().Add(-longestTime / 2)})
	for range maxEnded {
		_ = s.end(t.Context(), &session{ID: rand.Text(), User: "ann", Begun: clock.Now()})
	}
	if _, remembered := s.ended["another's"]; !remembered || len(s.ended) != maxEnded {
		t.Errorf("%d are remembered, and another person's: %v", len(s.ended), remembered)
	}
	clock.SetTime(clock.Now().Add(longestTime))
	_ = s.end(t.Context(), &session{ID: "x", Begun: clock.Now()})
	if len(s.ended) != 1 {
		t.Errorf("%d are remembered that have ended by themselves", len(s.ended))
	}
}

// endedMemory is an EndedStore in memory, of servers that learn at once.
type endedMemory struct {
	all     map[string]Ended
	servers []*Sessions
	err     error
}

func (m *endedMemory) Add(_ context.Context, one Ended) error {
	if m.err != nil {
		return m.err
	}
	m.all[one.ID] = one
	for _, s := range m.servers {
		s.Learn(one)
	}
	return nil
}

func (m *endedMemory) Remove(_ context.Context, id string) error {
	delete(m.all, id)
	return nil
}

// Who signs out at one server is signed out at all of them, with the live pages there and with
// copies of the cookies, and stays so after a restart. What is kept is as bounded as what is
// remembered. A page says if it cannot be kept.
func TestSigningOutAtEachServer(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	kept := &endedMemory{all: map[string]Ended{}}
	start := func() *Sessions {
		s := NewSessions([]byte("secret"), clock, kept)
		for _, one := range kept.all {
			s.Learn(one)
		}
		kept.servers = append(kept.servers, s)
		return s
	}
	asked, other := start(), start()
	mine, others := jar{}.signIn(t, asked, "a"), jar{}.signIn(t, asked, "b")
	page, done := other.follow(t.Context(), other.find(mine.request()))
	defer done()
	othersPage, othersDone := other.follow(t.Context(), other.find(others.request()))
	defer othersDone()
	c := New(http.NotFoundHandler(), Options{Clock: clock, Sessions: asked})
	signOut := func(j jar) string {
		r, w := j.request(), httptest.NewRecorder()
		r.Method, r.URL.Path = http.MethodPost, Root+"sign-out"
		c.ServeHTTP(w, r)
		return w.Header().Get("Location")
	}
	if to := signOut(mine); to != Root+"sign-in" {
		t.Errorf("signing out leads to %s", to)
	}
	if page.Err() == nil || other.find(mine.request()) != nil || start().find(mine.request()) != nil {
		t.Error("a session that was ended goes on at another server, or after a restart")
	}
	if othersPage.Err() != nil || other.find(others.request()) == nil {
		t.Error("another session has ended, too")
	}
	kept.err = errors.New("the disk is full")
	to := signOut(others)
	if asked.find(others.request()) != nil || !strings.HasSuffix(to, "why=here") {
		t.Errorf("a session whose end cannot be kept goes on, or it is not said: %s", to)
	}
	w := httptest.NewRecorder()
	if c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, to, nil)); !strings.Contains(w.Body.String(), "Other servers could not be told") {
		t.Error("the page does not say that others were not told")
	}
	kept.err = nil
	for range maxEnded + 3 {
		if err := asked.end(t.Context(), &session{ID: rand.Text(), User: "ann", Begun: clock.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if len(kept.all) > maxEnded || len(other.ended) > maxEnded {
		t.Errorf("%d are kept, %d remembered by another server", len(kept.all), len(other.ended))
	}
	for _, one := range []Ended{{Until: clock.Now().Add(time.Hour)}, {ID: "expired", Until: clock.Now()}, {ID: "for ever", Until: clock.Now().Add(48 * time.Hour)}, {ID: strings.Repeat("x", 65), Until: clock.Now().Add(time.Hour)}} {
		if other.Learn(one); other.ended[one.ID] != (Ended{}) {
			t.Errorf("it learns of %+v", one)
		}
	}
}
