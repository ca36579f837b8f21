package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// Root is the path of the console.
const Root = "/console/"

// maxForm bounds a form, in bytes. A token is the longest thing in one.
const maxForm = 16 << 10

// policy lets a browser load what this server has and nothing else, run no script that is written into a page, and show no
// page within another.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Options say what a console is made from.
type Options struct {
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
}

// Console serves pages below [Root].
type Console struct {
	api      http.Handler
	clock    clock.PassiveClock
	sessions *sessions
	pages    *pages
	files    http.Handler
	handler  http.Handler
}

// New makes a console whose pages are made of answers of api, the handler chain of the API server.
func New(api http.Handler, o Options) *Console {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	files := newStatic()
	c := &Console{api: api, clock: o.Clock, sessions: newSessions(o.Clock), files: files, pages: newPages(files.path)}
	mux := http.NewServeMux()
	mux.Handle("GET "+Root+"static/", c.files)
	mux.HandleFunc("GET "+Root+"sign-in", c.signInPage)
	mux.HandleFunc("POST "+Root+"sign-in", c.signIn)
	mux.HandleFunc("POST "+Root+"sign-out", c.signOut)
	mux.HandleFunc("POST "+Root+"theme", c.setTheme)
	for path, handle := range map[string]func(*visit) error{
		"GET " + Root + "{$}":           (*visit).attention,
		"GET " + Root + "images":        (*visit).images,
		"GET " + Root + "image":         (*visit).image,
		"GET " + Root + "raw":           (*visit).raw,
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
	// Whoever reads or writes slowly holds a page for this long. A kept connection outlives the deadlines of its requests.
	control, patience := http.NewResponseController(w), time.Now().Add(time.Minute)
	_ = control.SetWriteDeadline(patience) // a writer that cannot be bound is not a connection
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	if r.Method == http.MethodPost {
		_ = control.SetReadDeadline(patience)
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	c.handler.ServeHTTP(w, r)
}

// visit is a person's request for a page.
type visit struct {
	*Console
	w       http.ResponseWriter
	r       *http.Request
	call    *caller
	session *session // nil for a request that brings its own credential
	user    text
}

// ctx is the request's.
func (v *visit) ctx() context.Context { return v.r.Context() }

// errNobody is that a request has neither a session nor a credential.
var errNobody = errors.New("nobody has signed in")

// visitOf finds out whose a request is.
func (c *Console) visitOf(w http.ResponseWriter, r *http.Request) (*visit, error) {
	v := &visit{Console: c, w: w, r: r, call: &caller{api: c.api, from: r}}
	switch one := c.sessions.of(r); {
	case r.Header.Get("Authorization") == "" && one != nil:
		v.session, v.user, v.call.token = one, one.user, one.token
		return v, nil
	case r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0):
		return v, errNobody
	}
	var err error
	v.user, err = v.call.whoAmI(r.Context())
	return v, err
}

// serve shows a page to whoever may see it, and has everybody else sign in.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, handle func(*visit) error) {
	v, err := c.visitOf(w, r)
	if err == nil {
		err = handle(v)
	}
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.Is(err, errNobody):
		c.askToSignIn(w, r, "")
	case isCode(err, http.StatusUnauthorized):
		if v.session != nil {
			c.sessions.end(func(one *session) bool { return one.token == v.session.token })
			http.SetCookie(w, forget())
		}
		c.askToSignIn(w, r, "ended")
	default:
		v.fail(err)
	}
}

// askToSignIn sends a browser to the page for that, from where it comes back.
func (c *Console) askToSignIn(w http.ResponseWriter, r *http.Request, why string) {
	query := url.Values{}
	if next := r.URL.RequestURI(); r.Method == http.MethodGet && next != Root {
		query.Set("next", next)
	}
	if why != "" {
		query.Set("why", why)
	}
	target := Root + "sign-in"
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	http.Redirect(w, r, target, http.StatusSeeOther)
}

// fail shows why there is no page.
func (v *visit) fail(err error) {
	code, n := http.StatusInternalServerError, noticeOf("see this page", err)
	var e *apiError
	if errors.As(err, &e) {
		code = e.Code
	} else {
		slog.Error("A page of the console cannot be made", "page", v.r.URL.Path, "err", err)
	}
	v.showWith(code, &page{Name: "notice", Title: n.Title, Data: n})
}

// nothing answers for pages that are not there.
func (v *visit) nothing() error {
	v.showWith(http.StatusNotFound, &page{Name: "notice", Title: "There is no such page", Data: &notice{Title: "There is no such page", Message: "The address leads nowhere. The search box finds tags, digests and repositories."}})
	return nil
}

// show shows a page.
func (v *visit) show(p *page) error {
	v.showWith(http.StatusOK, p)
	return nil
}

func (v *visit) showWith(code int, p *page) {
	p.User, p.HasSession, p.Address, p.Now = v.user, v.session != nil, v.r.URL.RequestURI(), v.clock.Now()
	if p.AsOf.IsZero() {
		p.AsOf = p.Now
	}
	v.pages.write(v.w, v.r, code, p)
}

// notice says why something is not shown, and what to do.
type notice struct {
	Title, Message, Role string
}

// noticeOf explains an error of something that a person wanted to do.
func noticeOf(what string, err error) *notice {
	var e *apiError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return &notice{Title: "It is not known", Message: err.Error()}
	case e.Code == http.StatusForbidden:
		return &notice{Title: "You may not " + what, Message: string(e.Message), Role: needs(e.Path)}
	case e.Code == http.StatusNotFound:
		return &notice{Title: "There is nothing here", Message: string(e.Message)}
	case e.Code == http.StatusTooManyRequests:
		return &notice{Title: "You ask for much at once", Message: fmt.Sprintf("%s Wait for a moment and load the page again.", e.Message)}
	}
	return &notice{Title: "The server could not answer", Message: cmp.Or(string(e.Message), http.StatusText(e.Code))}
}
