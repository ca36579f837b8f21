package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// Console serves pages below [Root].
type Console struct {
	api        http.Handler
	clock      clock.PassiveClock
	sessions   *Sessions
	providers  *openid.Flow // nil for none
	at         Address
	pages      *pages
	files      http.Handler
	handler    http.Handler
	making     *room.Room // places for pages that are made
	heavy      *room.Room // places for heavy pages
	resting    *room.Room // one place for each person, taken by a heavy page and the rest after it
	open       *room.Room // live pages, of which a person has at most maxOpen
	turn       func(ctx context.Context, w http.ResponseWriter, user, remote string) Turn
	unread     unread
	liveEvents *liveEvents
}

// visit is a person's request for a page.
type visit struct {
	*Console
	w       http.ResponseWriter
	r       *http.Request
	call    *caller
	session *session // nil for a request that brings its own credential
	user    text
	head    *head // of the page; nil until the browser has it
}

func (v *visit) ctx() context.Context { return v.r.Context() }

// errNobody is the error of a request that has neither a session nor a credential.
var errNobody = errors.New("nobody has signed in")

// visitOf finds the person of a request, by its credential or session.
func (c *Console) visitOf(w http.ResponseWriter, r *http.Request) (*visit, error) {
	v := &visit{Console: c, w: w, r: r, call: &caller{api: c.api, from: r}}
	switch one := c.sessions.find(r); {
	case r.Header.Get("Authorization") == "" && one != nil:
		v.session, v.user, v.call.token = one, one.User, one.Token
		return v, nil
	case r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0):
		return v, errNobody
	}
	var err error
	v.user, err = v.call.whoAmI(r.Context())
	return v, err
}

// serve shows a page to people who may see it, and sends everybody else to sign in.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, handle func(*visit) error) {
	v, err := c.visitOf(w, r)
	if err == nil {
		err = v.inTurn(handle)
	}
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.Is(err, errNobody):
		c.askToSignIn(w, r, "")
	case isCode(err, http.StatusUnauthorized) && v.head == nil:
		if v.session != nil {
			_ = c.sessions.end(r.Context(), v.session) // nobody accepts its token
			forget(w)
		}
		c.askToSignIn(w, r, "ended")
	default:
		v.fail(err)
	}
}

// askToSignIn sends a browser to the sign-in page, which sends it back. What is no page
// is answered with 401 instead.
func (c *Console) askToSignIn(w http.ResponseWriter, r *http.Request, why string) {
	if r.URL.Path == feedPath || r.URL.Path == typedPath {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tidewaiter"`)
		http.Error(w, "send a token of the API: Authorization: Bearer TOKEN", http.StatusUnauthorized)
		return
	}
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

// fail shows an error in place of the page.
func (v *visit) fail(err error) {
	code, n := http.StatusInternalServerError, noticeOf("see this page", err)
	if isCode(err, http.StatusUnauthorized) { // and the browser has the head
		if v.session != nil {
			_ = v.sessions.end(v.ctx(), v.session)
		}
		n = &notice{Title: "You were signed out", Message: "The credential is no longer accepted. Load the page again to sign in."}
	}
	if e, ok := errors.AsType[*apiError](err); ok {
		if code = e.Code; code == http.StatusTooManyRequests {
			v.w.Header().Set("Retry-After", "1")
		}
	} else {
		slog.Error("A page of the console cannot be made", "page", v.r.URL.Path, "err", err)
	}
	v.showWith(code, &page{Name: "notice", Title: n.Title, Data: n})
}

// nothing answers for paths without a page.
func (v *visit) nothing() error {
	v.showWith(http.StatusNotFound, &page{Name: "notice", Title: "There is no such page", Data: &notice{Title: "There is no such page", Message: "There is nothing at this address. The search box finds tags, digests and repositories."}})
	return nil
}

// show shows a page.
func (v *visit) show(p *page) error {
	v.showWith(http.StatusOK, p)
	return nil
}

func (v *visit) showWith(code int, p *page) {
	v.prepare(p)
	if p.AsOf.IsZero() {
		p.AsOf = p.Now
	}
	defer v.call.turn.work()()
	v.pages.write(v.w, v.r, code, p, v.head)
}

// prepare fills in what the layout shows on every page.
func (v *visit) prepare(p *page) {
	if v.session != nil && v.head == nil {
		if err := v.sessions.renew(v.w, v.session); err != nil {
			slog.Error("A session of the console cannot be renewed", "err", err)
		}
	}
	p.User, p.HasSession, p.Address, p.Now = v.user, v.session != nil, v.r.URL.RequestURI(), v.clock.Now()
}

// begin sends the head of a page whose content takes long to read. What fails after that is shown
// as the content: the browser has the code 200.
func (v *visit) begin(p *page) error {
	m, ok := v.w.(*made)
	if !ok {
		return nil
	}
	v.prepare(p)
	var err error
	if v.head, err = v.pages.begin(answerOf{v}, v.r, p); err != nil {
		return err
	}
	return m.flush()
}

// answerOf is the answer to a visit, while the page is made in its turn and after that.
type answerOf struct{ v *visit }

// Header implements http.ResponseWriter.
func (a answerOf) Header() http.Header { return a.v.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (a answerOf) WriteHeader(code int) { a.v.w.WriteHeader(code) }

// Write implements http.ResponseWriter.
func (a answerOf) Write(p []byte) (int, error) { return a.v.w.Write(p) }

// notice says why something is not shown, and what to do.
type notice struct {
	Title, Message, Role string
}

// noticeOf explains an error. what is what the person wanted to do, as in "see this page".
func noticeOf(what string, err error) *notice {
	var e *apiError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return &notice{Title: "Not known", Message: err.Error()}
	case e.Code == http.StatusForbidden:
		return &notice{Title: "You may not " + what, Message: string(e.Message), Role: needs(e)}
	case e.Code == http.StatusNotFound:
		return &notice{Title: "Not found", Message: string(e.Message)}
	case e.Code == http.StatusTooManyRequests:
		return &notice{Title: "Too many requests at once", Message: fmt.Sprintf("%s Wait for a moment and load the page again.", e.Message)}
	}
	return &notice{Title: "The server could not answer", Message: cmp.Or(string(e.Message), http.StatusText(e.Code))}
}

// reviewPath is where the API reports whether a person may do something.
const reviewPath = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// may reports whether the person may use a path with a verb. If that is not known, it returns true,
// and the API decides later.
func (v *visit) may(verb, path string) bool {
	asked := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": map[string]any{"nonResourceAttributes": map[string]string{"path": path, "verb": verb}}}
	var got struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	return v.call.post(v.ctx(), reviewPath, nil, asked, &got) != nil || got.Status.Allowed
}

// goTo sends the browser to another page.
func (v *visit) goTo(page string) { http.Redirect(v.w, v.r, page, http.StatusSeeOther) }
