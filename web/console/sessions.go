package console

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/web/console/internal/sealed"
)

// Bounds of sessions.
const (
	idleTime    = 2 * time.Hour
	longestTime = 12 * time.Hour
	// renewAfter is how old the time of the last page in a cookie may be.
	renewAfter = 5 * time.Minute
	// maxEnded is how many sessions are remembered that ended early.
	maxEnded = 4096
	// maxPiece bounds the value of a cookie, in bytes: browsers take 4,096 with its name. maxPieces
	// is how many cookies a session with the longest token takes.
	maxPiece  = 3800
	maxPieces = 5
)

// cookieName is that of the first cookie; others have a number behind it. Browsers take one of such
// a name from this host alone, over TLS, for all paths (RFC 6265bis).
const cookieName = "__Host-tidewaiter-console"

// session is a person who has signed in with a token. The browser has it in its cookies, sealed.
type session struct {
	ID    string    `json:"id"`
	Token string    `json:"token"`
	User  text      `json:"user,omitempty"` // empty where the API does not tell
	Begun time.Time `json:"begun"`
	Used  time.Time `json:"used"`
}

// sessions seal and open sessions. A server remembers only those that people have ended on it.
type sessions struct {
	clock clock.PassiveClock
	box   *sealed.Box
	mu    sync.Mutex
	ended map[string]time.Time // by ID, until when the session would go on
}

// newSessions makes sessions that every server with the same secret knows.
func newSessions(secret []byte, c clock.PassiveClock) *sessions {
	return &sessions{clock: c, box: sealed.New(secret, "session"), ended: map[string]time.Time{}}
}

// begin makes a session and gives it to the browser.
func (s *sessions) begin(w http.ResponseWriter, user text, token string) error {
	now := s.clock.Now()
	return s.give(w, &session{ID: rand.Text(), Token: token, User: user, Begun: now, Used: now})
}

// renew has a session that is used go on.
func (s *sessions) renew(w http.ResponseWriter, one *session) error {
	if now := s.clock.Now(); now.Sub(one.Used) >= renewAfter {
		one.Used = now
		return s.give(w, one)
	}
	return nil
}

// give sets the cookies of a session.
func (s *sessions) give(w http.ResponseWriter, one *session) error {
	text, err := s.box.Seal(one)
	if err != nil {
		return err
	}
	for i := range maxPieces {
		piece := text[:min(len(text), maxPiece)]
		text = text[len(piece):]
		setPiece(w, i, piece)
	}
	return nil
}

// setPiece sets one of the cookies. One that is not needed is taken away, also if the request does
// not show it: the way back from a provider brings none.
func setPiece(w http.ResponseWriter, i int, value string) {
	cookie := &http.Cookie{Name: pieceName(i), Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// forget takes the session out of the browser.
func forget(w http.ResponseWriter) {
	for i := range maxPieces {
		setPiece(w, i, "")
	}
}

func pieceName(i int) string {
	if i == 0 {
		return cookieName
	}
	return fmt.Sprint(cookieName, "-", i)
}

// find returns the session of a request; nil if there is none.
func (s *sessions) find(r *http.Request) *session {
	var all strings.Builder
	for i := range maxPieces {
		piece, err := r.Cookie(pieceName(i))
		if err != nil {
			break
		}
		all.WriteString(piece.Value)
	}
	one, now := &session{}, s.clock.Now()
	if all.Len() == 0 || s.box.Open(all.String(), one) != nil || now.Sub(one.Used) >= idleTime || now.Sub(one.Begun) >= longestTime {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ended := s.ended[one.ID]; ended {
		return nil
	}
	return one
}

// end ends a session on this server before its time, also for anybody who has a copy of its
// cookies. If there are too many, it forgets the one that would end soonest.
func (s *sessions) end(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.ended, func(_ string, until time.Time) bool { return !now.Before(until) })
	if len(s.ended) >= maxEnded {
		soonest := ""
		for id, until := range s.ended {
			if soonest == "" || until.Before(s.ended[soonest]) {
				soonest = id
			}
		}
		delete(s.ended, soonest)
	}
	s.ended[one.ID] = one.Begun.Add(longestTime)
}
