package console

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Bounds of sessions.
const (
	idleTime    = 2 * time.Hour
	longestTime = 12 * time.Hour
	maxSessions = 4096
	perUser     = 16
)

// cookieName is the cookie's. Browsers take one of such a name from this host alone, over TLS, for all paths (RFC 6265bis).
const cookieName = "__Host-tidewaiter-console"

// session is a person who has signed in with a token.
type session struct {
	token       string
	user        text // empty where the API does not tell
	begun, used time.Time
}

// sessions are the people who have signed in. The cookie is a random text, of which only a hash is kept.
type sessions struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	byKey map[[sha256.Size]byte]*session
}

func newSessions(c clock.PassiveClock) *sessions {
	return &sessions{clock: c, byKey: map[[sha256.Size]byte]*session{}}
}

// begin makes a session and returns its cookie. Where the person or all have too many, the one that has been idle for longest
// ends: the person's, or that of whoever has most.
func (s *sessions) begin(user text, token string) *http.Cookie {
	id, now := rand.Text()+rand.Text(), s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[text]int{}
	for key, one := range s.byKey {
		if one.isOver(now) {
			delete(s.byKey, key)
			continue
		}
		counts[one.owner()]++
	}
	if owner := (&session{user: user, token: token}).owner(); counts[owner] >= perUser {
		s.endIdlest(owner)
	} else if len(s.byKey) >= maxSessions {
		s.endIdlest(slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b text) int { return counts[a] - counts[b] }))
	}
	s.byKey[sha256.Sum256([]byte(id))] = &session{token: token, user: user, begun: now, used: now}
	return &http.Cookie{Name: cookieName, Value: id, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

// endIdlest ends the session of an owner that has been idle for longest. The caller holds mu.
func (s *sessions) endIdlest(owner text) {
	var idlest [sha256.Size]byte
	var found *session
	for key, one := range s.byKey {
		if one.owner() == owner && (found == nil || one.used.Before(found.used)) {
			idlest, found = key, one
		}
	}
	delete(s.byKey, idlest)
}

// owner is whose sessions are counted together: the person's, or those of the token if the person has no name.
func (s *session) owner() text {
	if s.user == "" {
		return text(s.token)
	}
	return s.user
}

// isOver reports whether the session has ended by itself.
func (s *session) isOver(now time.Time) bool {
	return now.Sub(s.used) >= idleTime || now.Sub(s.begun) >= longestTime
}

// of returns the session of a request; nil if there is none.
func (s *sessions) of(r *http.Request) *session {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return nil
	}
	key, now := sha256.Sum256([]byte(cookie.Value)), s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byKey[key]
	if one == nil {
		return nil
	}
	if one.isOver(now) {
		delete(s.byKey, key)
		return nil
	}
	one.used = now
	return one
}

// end ends the sessions that over chooses.
func (s *sessions) end(over func(*session) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byKey, func(_ [sha256.Size]byte, one *session) bool { return over(one) })
}

// forget is the cookie that takes a session's out of the browser.
func forget() *http.Cookie {
	return &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}
