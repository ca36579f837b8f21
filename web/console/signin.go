package console

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// maxToken bounds a token, in bytes.
const maxToken = 12 << 10

// signInForm has the data of the sign-in page.
type signInForm struct {
	Next  string
	Why   string
	Token bool // the page asks for a token: the connection is encrypted, so a cookie is safe
	// Providers are the names of the providers. Signing in with one begins at the URL At, because the
	// provider sends the browser back there and the cookie must belong to that host. An empty At is
	// the host of the page.
	Providers []string
	At        string
}

// signInPage shows the sign-in page.
func (c *Console) signInPage(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Next: within(r.URL.Query().Get("next")), Token: r.TLS != nil}
	switch r.URL.Query().Get("why") {
	case "ended":
		form.Why = "You were signed out: the server no longer accepts your credential, or it has ended."
	case "here":
		form.Why = "You are signed out at this server. Other servers could not be told: if somebody may have a copy of your cookies, revoke the token."
	}
	c.showSignIn(w, r, http.StatusOK, form)
}

func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request, code int, form *signInForm) {
	if c.providers != nil && form.Token {
		form.Providers, form.At = c.providers.Names(), c.at.URL
	}
	c.pages.write(w, r, code, &page{Name: "signin", Title: "Sign in", Data: form, Now: c.clock.Now(), Address: Root}, nil)
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

// begin begins a session with a token. If the API does not accept the token, it shows the form
// again.
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
		_ = c.sessions.end(r.Context(), old) // which the log says
	}
	if err := c.sessions.begin(w, name, token); err != nil {
		form.Why = "The server could not keep the token: " + err.Error()
		c.showSignIn(w, r, http.StatusInternalServerError, form)
		return false
	}
	return true
}

// callbackPath is the path to which a provider sends a browser back.
const callbackPath = Root + "sign-in/callback"

// Address is where browsers reach a console. It is configured, because the Host header of a request
// cannot be trusted.
type Address struct {
	// URL is https://HOST[:PORT]; empty if it is not configured.
	URL string
	// Hosts and Port are the server's names, IP addresses and port. They are used if URL is empty.
	Hosts []string
	Port  int
}

// callback returns the URL of callbackPath.
func (a *Address) callback(r *http.Request) (string, error) {
	if a.URL != "" {
		return a.URL + callbackPath, nil
	}
	at, err := url.Parse("https://" + r.Host)
	if err != nil || at.Host != r.Host || !slices.ContainsFunc(a.Hosts, func(host string) bool { return strings.EqualFold(host, at.Hostname()) }) || cmp.Or(at.Port(), "443") != strconv.Itoa(a.Port) {
		return "", errors.New("this page's address is not one of the server's: its operator must set --advertise-url to the address that browsers use")
	}
	return "https://" + at.Host + callbackPath, nil
}

// beginSignIn redirects a browser to a provider.
func (c *Console) beginSignIn(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Next: within(r.URL.Query().Get("next")), Token: r.TLS != nil}
	place, err := strconv.Atoi(r.URL.Query().Get("provider"))
	if err != nil || r.TLS == nil {
		c.showSignIn(w, r, http.StatusBadRequest, form)
		return
	}
	back, err := c.at.callback(r)
	if err != nil {
		form.Why = "You cannot sign in with a provider here: " + err.Error() + "."
		c.showSignIn(w, r, http.StatusMisdirectedRequest, form)
		return
	}
	to, cookie, err := c.providers.Begin(r.Context(), place, back, form.Next)
	if err != nil {
		form.Why = err.Error()
		c.showSignIn(w, r, http.StatusServiceUnavailable, form)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// endSignIn begins the session of a browser that a provider sends back. Browsers do not send the
// session's cookie with a request that comes from another site, so endSignIn shows a page that
// leads to the next one.
func (c *Console) endSignIn(w http.ResponseWriter, r *http.Request) {
	form := &signInForm{Token: r.TLS != nil}
	var token, next string
	back, err := c.at.callback(r)
	if err == nil {
		token, next, err = c.providers.End(r, back)
	}
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
		c.pages.write(w, r, http.StatusOK, &page{Name: "signedin", Title: "Signed in", Data: form.Next, Now: c.clock.Now(), Address: Root, GoOn: form.Next}, nil)
	}
}

// signOut ends the session.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	to := Root + "sign-in"
	if old := c.sessions.find(r); old != nil && c.sessions.end(r.Context(), old) != nil {
		to += "?why=here"
	}
	forget(w)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// within returns next if it is a path of the console, otherwise the path of the first page.
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
