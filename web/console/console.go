package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// maxForm bounds a form, in bytes. A token is the longest thing in one.
const maxForm = 16 << 10

// policy is the Content-Security-Policy: a browser loads only files of this server, runs no inline
// script, and shows no page in a frame.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Options configure a Console.
type Options struct {
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
	// Providers signs people in with OpenID Connect providers; nil for none.
	Providers *openid.Flow
	// At is the address at which browsers reach the console, and to which providers send them back.
	At Address
	// Sessions are of the people who sign in; nil for sessions of this server alone.
	Sessions *Sessions
	// Turn returns a task of a user at a remote address, who writes to w, among those that share the
	// processors which the API's lists may take; nil takes no turns.
	Turn func(ctx context.Context, w http.ResponseWriter, user, remote string) Turn
}

// Turn is a task that takes turns. Its writes give the turn up while they wait for the reader.
type Turn interface {
	http.ResponseWriter
	// Begin waits for the turn; end gives it back.
	Begin() (end func())
}

// noTurn takes no turns.
type noTurn struct{ http.ResponseWriter }

func (noTurn) Begin() (end func()) { return func() {} }

// Unwrap is for http.ResponseController.
func (t noTurn) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// New returns a Console that makes its pages from answers of api, the handler chain of the API
// server.
func New(api http.Handler, o Options) *Console {
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	if o.Turn == nil {
		o.Turn = func(_ context.Context, w http.ResponseWriter, _, _ string) Turn { return noTurn{w} }
	}
	if o.Sessions == nil {
		o.Sessions = NewSessions([]byte(rand.Text()+rand.Text()), o.Clock, nil)
	}
	files := newStatic()
	c := &Console{api: api, clock: o.Clock, sessions: o.Sessions, providers: o.Providers, at: o.At, files: files, pages: newPages(files.path), making: room.New(maxPages, maxOfOne), heavy: room.New(maxHeavy, 1), resting: room.New(math.MaxInt64, 1), open: room.New(math.MaxInt64, maxOpen), unread: unread{max: maxUnread}, turn: o.Turn}
	c.liveEvents = &liveEvents{pages: c.pages, clock: o.Clock, byLine: map[string]*liveEvent{}}
	mux := http.NewServeMux()
	mux.Handle("GET "+Root+"static/", c.files)
	mux.HandleFunc("GET "+Root+"sign-in", c.signInPage)
	mux.HandleFunc("POST "+Root+"sign-in", c.signIn)
	if c.providers != nil {
		mux.HandleFunc("GET "+Root+"sign-in/with", c.beginSignIn)
		mux.HandleFunc("GET "+callbackPath, c.endSignIn)
	}
	mux.HandleFunc("POST "+Root+"sign-out", c.signOut)
	mux.HandleFunc("POST "+Root+"theme", c.setTheme)
	for path, handle := range map[string]func(*visit) error{
		"GET " + Root + "{$}":          (*visit).attention,
		"GET " + Root + "changes":      (*visit).changes,
		"GET " + feedPath:              (*visit).changesFeed,
		"GET " + Root + "images":       (*visit).images,
		"GET " + typedPath:             (*visit).asTyped,
		"GET " + Root + "image":        (*visit).image,
		"GET " + Root + "raw":          (*visit).raw,
		"POST " + Root + "import":      (*visit).importReference,
		"GET " + Root + "repositories": (*visit).repositories,
		"GET " + Root + "repository":   (*visit).repository,
		"GET " + Root + "compare":      (*visit).compare,
		"GET " + Root + "impact":       (*visit).impact,
		"POST " + Root + "impact":      (*visit).askImpact,
		"GET " + Root + "running":      (*visit).running,
		"GET " + Root + "running.csv":  (*visit).runningCSV,
		"GET " + Root + "policies":     (*visit).policies,
		"POST " + Root + "verify":      (*visit).verify,
		"GET " + Root + "activity":     (*visit).activity,
		"GET " + Root + livePath:       (*visit).live,
		"POST " + Root + "queue":       (*visit).queue,
		"GET " + Root:                  (*visit).nothing,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, handle) })
	}
	mux.HandleFunc("GET "+strings.TrimSuffix(Root, "/"), func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, Root, http.StatusMovedPermanently)
	})
	c.handler = http.NewCrossOriginProtection().Handler(mux)
	return c
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			slog.Error("A page of the console panicked", "page", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			http.Error(w, "internal error; the server's log says why", http.StatusInternalServerError)
		}
	}()
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	// A slow client may take a minute for a page. A deadline stays with a kept-alive connection, so
	// each request sets its own.
	control, patience := http.NewResponseController(w), time.Now().Add(time.Minute)
	_ = control.SetWriteDeadline(patience) // only a writer that is no connection returns an error
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	if r.Method == http.MethodPost {
		_ = control.SetReadDeadline(patience)
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	c.handler.ServeHTTP(w, r)
}
