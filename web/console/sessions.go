package console

import (
	"cmp"
	"context"
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
	// renewAfter is how old the time of the last page in a cookie may be before the cookie is renewed.
	renewAfter = 5 * time.Minute
	// maxEnded is how many sessions that were ended early are remembered.
	maxEnded = 4096
	// maxPiece bounds the value of a cookie, in bytes: browsers accept 4,096 with its name. maxPieces
	// is how many cookies a session with the longest token needs.
	maxPiece  = 3800
	maxPieces = 5
)

// cookieName is the name of the first cookie; others have a number after it. With the prefix
// __Host-, browsers accept the cookie only from this host, over TLS and for all paths (RFC
// 6265bis).
const cookieName = "__Host-tidewaiter-console"

// session is a person who has signed in with a token. The browser has it in its cookies, sealed.
type session struct {
	ID    string    `json:"id"`
	Token string    `json:"token"`
	User  text      `json:"user,omitempty"` // empty if the API does not return it
	Begun time.Time `json:"begun"`
	Used  time.Time `json:"used"`
}

// expires returns when the session ends unless a page renews it.
func (s *session) expires() time.Time {
	idle, longest := s.Used.Add(idleTime), s.Begun.Add(longestTime)
	if idle.Before(longest) {
		return idle
	}
	return longest
}

// sessions reads and writes the sessions in cookies. A server remembers only sessions that people
// have ended on it, and sessions whose live pages it serves.
type sessions struct {
	clock clock.PassiveClock
	box   *sealed.Box
	mu    sync.Mutex
	ended map[string]ended // by ID
	// live has, by session ID, a function that ends each live page that is being served.
	live map[string]map[*context.CancelFunc]struct{}
}

// ended is a session that its person has ended, and when it would have expired.
type ended struct {
	user  text
	until time.Time
}

// newSessions returns sessions that all servers with the same secret accept.
func newSessions(secret []byte, c clock.PassiveClock) *sessions {
	return &sessions{clock: c, box: sealed.New(secret, "session"), ended: map[string]ended{}, live: map[string]map[*context.CancelFunc]struct{}{}}
}

// begin creates a session and sets its cookies.
func (s *sessions) begin(w http.ResponseWriter, user text, token string) error {
	now := s.clock.Now()
	return s.give(w, &session{ID: rand.Text(), Token: token, User: user, Begun: now, Used: now})
}

// renew extends a session that is in use.
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

// setPiece sets one of the cookies. It deletes a cookie that is not needed, even if the request
// does not show it: the request that comes back from a provider brings none.
func setPiece(w http.ResponseWriter, i int, value string) {
	cookie := &http.Cookie{Name: pieceName(i), Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// forget deletes the session's cookies.
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
	if all.Len() == 0 || s.box.Open(all.String(), one) != nil || !now.Before(one.expires()) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ended := s.ended[one.ID]; ended {
		return nil
	}
	return one
}

// follow returns a context for a live page. It ends when the session ends or expires. The browser
// then connects again, which succeeds if other pages have renewed the session. The caller must call
// stop after serving the page.
func (s *sessions) follow(ctx context.Context, one *session) (_ context.Context, stop func()) {
	ctx, cancel := context.WithTimeout(ctx, one.expires().Sub(s.clock.Now()))
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ended := s.ended[one.ID]; ended { // it was ended after find
		cancel()
		return ctx, cancel
	}
	if s.live[one.ID] == nil {
		s.live[one.ID] = map[*context.CancelFunc]struct{}{}
	}
	s.live[one.ID][&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.live[one.ID], &cancel); len(s.live[one.ID]) == 0 {
			delete(s.live, one.ID)
		}
	}
}

// end ends a session and its live pages on this server, also for copies of its cookies. If too many
// ended sessions are remembered, it forgets one of the person with most, which expires soonest.
func (s *sessions) end(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.ended, func(_ string, of ended) bool { return !now.Before(of.until) })
	if len(s.ended) >= maxEnded {
		have, first := map[text]int{}, ""
		for _, of := range s.ended {
			have[of.user]++
		}
		for id, of := range s.ended {
			if least := s.ended[first]; first == "" || cmp.Or(cmp.Compare(have[least.user], have[of.user]), of.until.Compare(least.until)) < 0 {
				first = id
			}
		}
		delete(s.ended, first)
	}
	s.ended[one.ID] = ended{one.User, one.Begun.Add(longestTime)}
	for cancel := range s.live[one.ID] {
		(*cancel)()
	}
}
