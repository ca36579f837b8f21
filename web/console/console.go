package console

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// maxForm bounds a form, in bytes. A token is the longest thing in one.
const maxForm = 16 << 10

// policy lets a browser load what this server has and nothing else, run no script that is written
// into a page, and show no page within another.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Options say what a console is made from.
type Options struct {
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
	// Providers signs people in with providers of OpenID Connect; nil for none.
	Providers *openid.Flow
	// Secret is what servers share whose sessions are the same; empty for one of this server's own.
	Secret []byte
}

// New makes a console whose pages are made of answers of api, the handler chain of the API server.
func New(api http.Handler, o Options) *Console {
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	if len(o.Secret) == 0 {
		o.Secret = []byte(rand.Text() + rand.Text())
	}
	files := newStatic()
	c := &Console{api: api, clock: o.Clock, sessions: newSessions(o.Secret, o.Clock), providers: o.Providers, files: files, pages: newPages(files.path)}
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
		"GET " + Root + "{$}":           (*visit).attention,
		"GET " + Root + "images":        (*visit).images,
		"GET " + Root + "image":         (*visit).image,
		"GET " + Root + "raw":           (*visit).raw,
		"POST " + Root + "import":       (*visit).importReference,
		"GET " + Root + "repositories":  (*visit).repositories,
		"GET " + Root + "repository":    (*visit).repository,
		"GET " + Root + "compare":       (*visit).compare,
		"GET " + Root + "running":       (*visit).running,
		"GET " + Root + "running.csv":   (*visit).runningCSV,
		"GET " + Root + "policies":      (*visit).policies,
		"POST " + Root + "verify":       (*visit).verify,
		"GET " + Root + "activity":      (*visit).activity,
		"GET " + Root + "activity/live": (*visit).live,
		"POST " + Root + "queue":        (*visit).queue,
		"GET " + Root:                   (*visit).nothing,
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
	// A slow client holds a page for this long. A kept connection outlives the deadlines of its
	// requests.
	control, patience := http.NewResponseController(w), time.Now().Add(time.Minute)
	_ = control.SetWriteDeadline(patience) // a writer that cannot be bound is not a connection
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	if r.Method == http.MethodPost {
		_ = control.SetReadDeadline(patience)
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	c.handler.ServeHTTP(w, r)
}
