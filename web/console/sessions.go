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

	"github.com/tidewaiter/tidewaiter/internal/warn"
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
	// keepTime bounds the time in which an ended session is stored.
	keepTime = 5 * time.Second
	// maxPiece bounds the value of a cookie, in bytes: browsers accept 4,096 with its name. maxPieces
	// is how many cookies a session with the longest token needs.
	maxPiece  = 3800
	maxPieces = 5
	// maxSessionID bounds the ID of a session, in bytes: rand.Text has 26.
	maxSessionID = 64
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

// Sessions reads and writes the sessions in cookies. It remembers sessions that people have ended,
// and those whose live pages this server serves.
type Sessions struct {
	clock clock.PassiveClock
	box   *sealed.Box
	kept  EndedStore // nil to remember in memory alone
	mu    sync.Mutex
	ended map[string]Ended // by ID
	// live has, by session ID, a function that ends each live page that is being served.
	live map[string]map[*context.CancelFunc]struct{}

	unkept warn.Trouble
}

// Ended is a session that was ended early.
type Ended struct {
	// ID is the session's.
	ID string `json:"id"`
	// User is the person's name; empty if the API does not return it.
	User string `json:"user,omitempty"`
	// Until is when the session would have expired. After that it can be forgotten.
	Until time.Time `json:"until"`
}

// EndedStore keeps sessions that were ended, for all servers that accept each other's, also while
// they restart.
type EndedStore interface {
	// Add keeps a session until its Until. Who has it then calls [Sessions.Learn].
	Add(ctx context.Context, one Ended) error
	// Remove forgets the session with an ID.
	Remove(ctx context.Context, id string) error
}

// NewSessions returns sessions that all servers with the same secret accept. Sessions that are
// ended are remembered in kept, too; nil for this server's memory alone.
func NewSessions(secret []byte, c clock.PassiveClock, kept EndedStore) *Sessions {
	return &Sessions{clock: c, box: sealed.New(secret, "session"), kept: kept, ended: map[string]Ended{}, live: map[string]map[*context.CancelFunc]struct{}{}}
}

// begin creates a session and sets its cookies.
func (s *Sessions) begin(w http.ResponseWriter, user text, token string) error {
	now := s.clock.Now()
	return s.give(w, &session{ID: rand.Text(), Token: token, User: user, Begun: now, Used: now})
}

// renew extends a session that is in use.
func (s *Sessions) renew(w http.ResponseWriter, one *session) error {
	if now := s.clock.Now(); now.Sub(one.Used) >= renewAfter {
		one.Used = now
		return s.give(w, one)
	}
	return nil
}

// give sets the cookies of a session.
func (s *Sessions) give(w http.ResponseWriter, one *session) error {
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
func (s *Sessions) find(r *http.Request) *session {
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
func (s *Sessions) follow(ctx context.Context, one *session) (_ context.Context, stop func()) {
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

// end ends a session and its live pages, also for copies of its cookies. It fails if only this
// server knows, and only until it stops.
func (s *Sessions) end(ctx context.Context, one *session) error {
	of := Ended{ID: one.ID, User: string(one.User), Until: one.Begun.Add(longestTime)}
	forgotten := s.remember(of)
	if s.kept == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	if forgotten != "" {
		_ = s.kept.Remove(ctx, forgotten) // else it expires
	}
	if err := s.kept.Add(ctx, of); err != nil {
		s.unkept.Begin("", "A session of the console was ended here, and that cannot be stored: copies of its cookies go on at other servers, and after a restart", "err", err)
		return err
	}
	s.unkept.End("", "The end of the console's sessions is stored again")
	return nil
}

// Learn ends a session that was ended at another server, or before this one has started.
func (s *Sessions) Learn(one Ended) {
	if now := s.clock.Now(); one.ID != "" && len(one.ID) <= maxSessionID && now.Before(one.Until) && !one.Until.After(now.Add(2*longestTime)) {
		s.remember(one)
	}
}

// remember remembers an ended session, and ends its live pages at this server. If there are too
// many, it forgets one of the person with most, which expires soonest, and returns its ID.
func (s *Sessions) remember(one Ended) (forgotten string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.ended, func(_ string, of Ended) bool { return !now.Before(of.Until) })
	if _, known := s.ended[one.ID]; !known && len(s.ended) >= maxEnded {
		have := map[string]int{}
		for _, of := range s.ended {
			have[of.User]++
		}
		for id, of := range s.ended {
			if least := s.ended[forgotten]; forgotten == "" || cmp.Or(cmp.Compare(have[least.User], have[of.User]), of.Until.Compare(least.Until)) < 0 {
				forgotten = id
			}
		}
		delete(s.ended, forgotten)
	}
	s.ended[one.ID] = one
	for cancel := range s.live[one.ID] {
		(*cancel)()
	}
	return forgotten
}
