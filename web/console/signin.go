package console

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// maxToken bounds a token, in bytes.
const maxToken = 12 << 10

// signInForm has the data of the page to sign in.
type signInForm struct {
	Next  string
	Why   string
	Token bool // the browser may keep a cookie, as the connection is encrypted
	// Providers are those to sign in with.
	Providers []string
}

// signInPage asks for a token.
func (c *Console) signInPage(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Next: within(r.URL.Query().Get("next")), Token: r.TLS != nil}
	if r.URL.Query().Get("why") == "ended" {
		form.Why = "You were signed out: the server no longer accepts your credential, or it has ended."
	}
	c.showSignIn(w, r, http.StatusOK, form)
}

func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request, code int, form *signInForm) {
	if c.providers != nil && form.Token {
		form.Providers = c.providers.Names()
	}
	c.pages.write(w, r, code, &page{Name: "signin", Title: "Sign in", Data: form, Now: c.clock.Now(), Address: Root})
}

// signIn begins a session with a token that the API accepts.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.showSignIn(w, r, http.StatusRequestEntityTooLarge, &signInForm{Why: "That is too long for a token.", Token: r.TLS != nil})
		return
	}
	form := &signInForm{Next: within(r.PostForm.Get("next")), Token: r.TLS != nil}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		form.Why = "That is not a token: a token is one word."
		c.showSignIn(w, r, http.StatusBadRequest, form)
		return
	}
	if c.begin(w, r, token, form) {
		http.Redirect(w, r, form.Next, http.StatusSeeOther)
	}
}

// begin begins a session with a token; if the API does not accept it, it shows the form again.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, token string, form *signInForm) (ok bool) {
	call := &caller{api: c.api, from: r, token: token}
	name, err := call.whoAmI(r.Context())
	switch {
	case isCode(err, http.StatusUnauthorized):
		form.Why = "The server does not accept this token. It may have ended, or be for another server."
		c.showSignIn(w, r, http.StatusUnauthorized, form)
		return false
	case err != nil:
		form.Why = "The server could not check the token: " + err.Error()
		c.showSignIn(w, r, http.StatusServiceUnavailable, form)
		return false
	}
	if old := c.sessions.find(r); old != nil {
		c.sessions.end(old)
	}
	if err := c.sessions.begin(w, name, token); err != nil {
		form.Why = "The server could not keep the token: " + err.Error()
		c.showSignIn(w, r, http.StatusInternalServerError, form)
		return false
	}
	return true
}

// callbackPath is where a provider sends a browser back to.
const callbackPath = Root + "sign-in/callback"

// callback is the address of callbackPath, as the browser knows the server.
func callback(r *http.Request) string { return "https://" + r.Host + callbackPath }

// beginSignIn sends a browser to a provider.
func (c *Console) beginSignIn(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Next: within(r.URL.Query().Get("next")), Token: r.TLS != nil}
	place, err := strconv.Atoi(r.URL.Query().Get("provider"))
	if err != nil || r.TLS == nil {
		c.showSignIn(w, r, http.StatusBadRequest, form)
		return
	}
	to, cookie, err := c.providers.Begin(r.Context(), place, callback(r), form.Next)
	if err != nil {
		form.Why = err.Error()
		c.showSignIn(w, r, http.StatusServiceUnavailable, form)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// endSignIn begins the session of a browser that a provider sends back. The session's cookie is not
// sent with what another site leads to, so the browser goes on from a page of this one.
func (c *Console) endSignIn(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Token: r.TLS != nil}
	token, next, err := c.providers.End(r, callback(r))
	http.SetCookie(w, openid.Forget())
	form.Next = within(next)
	switch {
	case err != nil:
		form.Why = "You are not signed in: " + err.Error() + "."
		c.showSignIn(w, r, http.StatusUnauthorized, form)
	case len(token) > maxToken:
		form.Why = "The provider's token is too long."
		c.showSignIn(w, r, http.StatusUnauthorized, form)
	case c.begin(w, r, token, form):
		c.pages.write(w, r, http.StatusOK, &page{Name: "signedin", Title: "Signed in", Data: form.Next, Now: c.clock.Now(), Address: Root, GoOn: form.Next})
	}
}

// signOut ends the session.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if old := c.sessions.find(r); old != nil {
		c.sessions.end(old)
	}
	forget(w)
	http.Redirect(w, r, Root+"sign-in", http.StatusSeeOther)
}

// within returns a path of the console to go on with: that which was asked for, or the first page.
func within(next string) string {
	if strings.HasPrefix(next, Root) && !strings.ContainsAny(next, "\\\r\n") {
		return next
	}
	return Root
}

// setTheme keeps the choice of light or dark.
func (c *Console) setTheme(w http.ResponseWriter, r *http.Request) {
	theme := r.PostFormValue("theme")
	cookie := &http.Cookie{Name: themeCookie, Value: theme, Path: Root, MaxAge: 365 * 24 * 3600, Secure: r.TLS != nil, HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if theme != "light" && theme != "dark" {
		cookie.Value, cookie.MaxAge = "", -1
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, within(r.PostFormValue("next")), http.StatusSeeOther)
}
