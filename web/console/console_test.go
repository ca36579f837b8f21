package console

import (
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// The bytes of a text that would be markup, turn the line around, or move a terminal's cursor.
const hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egnp.exe\x1b[31m\u009b"

// stubAPI answers as the API does, and notes who asked for what.
type stubAPI struct {
	mu      sync.Mutex
	answers map[string]any // by method and path
	asked   []*http.Request
	tokens  map[string]string // token by user
}

// echoed is the answer to a review of so many references.
type echoed func(references int) any

// answered is the answer to a review, for each reference.
type answered func(reference string) m

// refused is an answer of the API that refuses.
type refused map[string]any

func (a *stubAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	a.mu.Unlock()
	status := func(code int, message string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","code":%d,"message":%q}`, code, message)
	}
	name := a.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		name = "cert"
	}
	if name == "" {
		status(http.StatusUnauthorized, "Unauthorized")
		return
	}
	if r.URL.Path == whoAmIPath {
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"name": name}})
		return
	}
	switch v := a.answers[r.Method+" "+r.URL.Path].(type) {
	case echoed:
		var asked review
		_ = json.NewDecoder(r.Body).Decode(&asked)
		_ = json.NewEncoder(w).Encode(v(len(asked.Spec.References)))
	case answered:
		var asked review
		_ = json.NewDecoder(r.Body).Decode(&asked)
		var all l
		for _, q := range asked.Spec.References {
			all = append(all, v(string(q.Reference)))
		}
		_ = json.NewEncoder(w).Encode(m{"status": m{"references": all}})
	case func(url.Values) any:
		_ = json.NewEncoder(w).Encode(v(r.URL.Query()))
	case warned:
		w.Header().Set("Warning", fmt.Sprintf("299 - %q", v.warning))
		_ = json.NewEncoder(w).Encode(v.answer)
	case nil:
		status(http.StatusNotFound, "not found")
	case int:
		status(v, "the answer is "+hostile)
	case refused:
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(v)
	default:
		_ = json.NewEncoder(w).Encode(v)
	}
}

// warned is an answer with a warning.
type warned struct {
	warning string
	answer  any
}

// browser is a console over a stub, and who looks at it.
type browser struct {
	t       *testing.T
	api     *stubAPI
	console *Console
	clock   *testclock.FakePassiveClock
	cookies jar
}

func newBrowser(t *testing.T, answers map[string]any) *browser {
	api := &stubAPI{answers: answers, tokens: map[string]string{"good": "ann", "other": "ben"}}
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	return &browser{t: t, api: api, clock: clock, console: New(api, Options{Clock: clock})}
}

// do makes a request over TLS, with the cookies that earlier answers set.
func (b *browser) do(method, path string, form url.Values, with ...func(*http.Request)) *httptest.ResponseRecorder {
	b.t.Helper()
	r := httptest.NewRequest(method, "https://console.example"+path, strings.NewReader(form.Encode()))
	r.TLS = &tls.ConnectionState{}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	for _, f := range with {
		f(r)
	}
	w := httptest.NewRecorder()
	b.console.ServeHTTP(w, r)
	b.cookies.take(w.Result().Cookies())
	return w
}

func (b *browser) signIn(token string) *httptest.ResponseRecorder {
	b.t.Helper()
	return b.do(http.MethodPost, Root+"sign-in", url.Values{"token": {token}, "next": {Root + "images?verdict=False"}})
}

func TestSignInAndOut(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: map[string]any{}})
	if w := b.do("GET", Root+"images?verdict=True", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != Root+"sign-in?next=%2Fconsole%2Fimages%3Fverdict%3DTrue" {
		t.Errorf("nobody: %d to %q", w.Code, w.Header().Get("Location"))
	}
	if w := b.signIn("bad"); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "does not accept this token") || len(b.cookies) != 0 {
		t.Errorf("a token that is not good: %d, cookies %v", w.Code, b.cookies)
	}
	if w := b.signIn("two words"); w.Code != http.StatusBadRequest {
		t.Errorf("what is not a token: %d", w.Code)
	}
	if w := b.signIn(strings.Repeat("x", maxForm+1)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a form of more than its bound: %d", w.Code)
	}
	w := b.signIn(" good\n")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != Root+"images?verdict=False" || len(b.cookies) != 1 {
		t.Fatalf("signing in: %d to %q, cookies %v", w.Code, w.Header().Get("Location"), b.cookies)
	}
	if c := b.cookies[0]; !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || strings.Contains(c.Value, "good") {
		t.Errorf("the cookie is %s", c)
	}
	if w := b.do("GET", Root+"images", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ann") {
		t.Errorf("signed in: %d", w.Code)
	}
	if last := b.api.asked[len(b.api.asked)-1]; last.Header.Get("Authorization") != "Bearer good" || last.Header.Get("Cookie") != "" || last.RemoteAddr == "" {
		t.Errorf("the API was asked with %v from %q", last.Header, last.RemoteAddr)
	}
	kept := *b.cookies[0]
	b.do("POST", Root+"sign-out", url.Values{})
	b.cookies = jar{&kept}
	if w := b.do("GET", Root+"images", nil); w.Code != http.StatusSeeOther {
		t.Errorf("the cookie is good after signing out: %d", w.Code)
	}
}

// Whoever revokes a token ends all its sessions, on every server and for good.
func TestRevokedTokenEndsSessions(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: map[string]any{}})
	b.console = New(b.api, Options{Clock: b.clock, Sessions: NewSessions([]byte("shared"), b.clock, nil)})
	replica := New(b.api, Options{Clock: b.clock, Sessions: NewSessions([]byte("shared"), b.clock, nil)})
	b.signIn("good")
	one := b.cookies
	b.cookies = nil
	b.signIn("good")
	two := b.cookies
	b.console = replica
	if w := b.do("GET", Root+"images", nil); w.Code != http.StatusOK {
		t.Errorf("a replica answers %d", w.Code)
	}
	delete(b.api.tokens, "good")
	for _, session := range []jar{one, two} {
		b.cookies = session
		w := b.do("GET", Root+"images", nil)
		if w.Code != http.StatusSeeOther || !strings.Contains(w.Header().Get("Location"), "why=ended") || len(b.cookies) != 0 {
			t.Errorf("a revoked token: %d to %q, cookies %v", w.Code, w.Header().Get("Location"), b.cookies)
		}
	}
	b.api.tokens["good"], b.cookies = "ann", one
	if w := b.do("GET", Root+"images", nil); w.Code != http.StatusSeeOther {
		t.Errorf("a session that has ended goes on: %d", w.Code)
	}
}

// The API hears for whom a request asks, so that pages show what that person may see.
func TestImpersonation(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: map[string]any{}})
	b.do("GET", Root+"images", nil, func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer good")
		r.Header.Set("Impersonate-User", "somebody")
		r.Header.Add("Impersonate-Group", "team")
	})
	for _, r := range b.api.asked {
		if r.Header.Get("Impersonate-User") != "somebody" || r.Header.Get("Impersonate-Group") != "team" {
			t.Errorf("%s was asked with %v", r.URL, r.Header)
		}
	}
	if len(b.api.asked) == 0 {
		t.Error("the API was not asked")
	}
}

// A request that brings a credential is answered with it, and never with that of a session.
func TestOwnCredentials(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: map[string]any{}})
	b.signIn("good")
	w := b.do("GET", Root+"images", nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer other") })
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ben") || strings.Contains(w.Body.String(), "Sign out") {
		t.Errorf("with a header: %d %s", w.Code, w.Body)
	}
	certified := func(r *http.Request) { r.TLS.PeerCertificates = []*x509.Certificate{{}} }
	if w := b.do("GET", Root+"images", nil, certified); !strings.Contains(w.Body.String(), "ann") {
		t.Errorf("a session gives way to a certificate: %s", w.Body)
	}
	b.cookies = nil
	if w := b.do("GET", Root+"images", nil, certified); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "cert") {
		t.Errorf("with a certificate: %d %s", w.Code, w.Body)
	}
}

func TestHeaders(t *testing.T) {
	b := newBrowser(t, nil)
	for _, path := range []string{Root, Root + "sign-in", Root + "none", newStatic().path("console.css")} {
		h := b.do("GET", path, nil).Header()
		if h.Get("Content-Security-Policy") != policy || h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, h)
		}
	}
	for _, path := range []string{"sign-in", "sign-out", "theme"} {
		w := b.do("POST", Root+path, url.Values{}, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
		if w.Code != http.StatusForbidden {
			t.Errorf("a form of another site is taken at %s: %d", path, w.Code)
		}
	}
	for next, want := range map[string]string{"//evil.example": Root, "https://evil.example/console/": Root, "/console/\\evil": Root, "/apis": Root, Root + "running": Root + "running"} {
		if got := within(next); got != want {
			t.Errorf("%q leads to %q", next, got)
		}
	}
}

// No page, however full, refers to another host or has scripts or styles of its own, and all that
// it loads is small.
func TestPagesLoadLittle(t *testing.T) {
	b := newBrowser(t, fullAnswers())
	b.signIn("good")
	compressed := func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") }
	assets := map[string]int{}
	for _, path := range []string{"sign-in", "", "images", "image?ref=" + digestA, "repositories", "repository?name=r.io/team/app", "compare?a=a&b=b", "running", "policies?try=r.io/a:1", "activity", "changes"} {
		w := b.do("GET", Root+path, nil, compressed)
		total := w.Body.Len()
		zip, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatalf("%q: %d, %v", path, w.Code, err)
		}
		body, err := io.ReadAll(zip)
		if err != nil || w.Code != http.StatusOK {
			t.Fatalf("%q: %d, %v", path, w.Code, err)
		}
		if other := regexp.MustCompile(`(?i)(https?:)?//[a-z]|<style|style=|<script>|\son[a-z]+=|javascript:`).FindAllString(string(body), -1); other != nil {
			t.Errorf("%q has %q", path, other)
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="(/console/static/[^"]+)"`).FindAllStringSubmatch(string(body), -1) {
			if assets[m[1]] == 0 {
				f := b.do("GET", m[1], nil, compressed)
				if f.Code != http.StatusOK || f.Header().Get("Content-Type") == "" || f.Header().Get("Content-Encoding") != "gzip" || !strings.Contains(f.Header().Get("Cache-Control"), "immutable") {
					t.Errorf("%s: %d %v", m[1], f.Code, f.Header())
				}
				assets[m[1]] = f.Body.Len()
			}
			total += assets[m[1]]
		}
		if total > 100_000 {
			t.Errorf("a first visit to %q takes %d bytes over the wire", path, total)
		}
		t.Logf("%-32q %6d bytes in all, the page alone %6d uncompressed", path, total, len(body))
	}
}

// What is refused is said with the role that allows it; nothing that the API says is markup.
func TestRefusedLists(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: http.StatusForbidden})
	b.signIn("good")
	body := b.do("GET", Root+"images", nil).Body.String()
	for _, want := range []string{"You may not list images", "tidewaiter:image-viewer", "&lt;script&gt;"} {
		if !strings.Contains(body, want) {
			t.Errorf("there is no %q in\n%s", want, body)
		}
	}
	wantNoMarkup(t, body)
	// What is refused may be of another resource than the list.
	b.api.answers["GET "+imagesPath] = refused{"message": "no", "details": map[string]string{"group": "tidewaiter.dev", "kind": "clusterpods"}}
	if body := b.do("GET", Root+"images?cluster=prod", nil).Body.String(); !strings.Contains(body, "<code>tidewaiter:cluster-viewer</code>") {
		t.Errorf("without the right to list pods there is\n%s", body)
	}
}

// wantNoMarkup fails if a hostile text came through.
func wantNoMarkup(t *testing.T, body string) {
	t.Helper()
	for _, never := range []string{"<script>alert", "<img", "\u202e", "\x1b", "\u009b", "'><"} {
		if strings.Contains(body, never) {
			t.Errorf("there is %q in\n%s", never, body)
		}
	}
}
