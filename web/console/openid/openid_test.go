package openid

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

const callback = "https://console.example/console/sign-in/callback"

// issuer is a provider that lets everybody in.
type issuer struct {
	*httptest.Server
	asked             url.Values // the last request for a token
	challenge, nonce  string     // of the flow that goes on
	describe          func(map[string]any)
	discoveries       int
	redirect, refuses bool
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.discoveries++
		d := map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/auth", "token_endpoint": i.URL + "/token", "scopes_supported": []string{"openid", "email", "phone"}}
		if i.describe != nil {
			i.describe(d)
		}
		_ = json.NewEncoder(w).Encode(d)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		i.asked = r.PostForm
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		switch {
		case i.redirect:
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
		case i.refuses || base64.RawURLEncoding.EncodeToString(sum[:]) != i.challenge:
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		default:
			claims, _ := json.Marshal(map[string]string{"nonce": i.nonce})
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]string{"access_token": "a", "token_type": "Bearer", "id_token": "h." + base64.RawURLEncoding.EncodeToString(claims) + ".s"})
		}
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

func flowOf(t *testing.T, i *issuer, secret byte, clock *testclock.FakePassiveClock) *Flow {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	f, err := New([]Provider{{Issuer: i.URL, ClientID: "console", CA: string(ca)}}, []byte{secret}, clock)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// begin begins a flow, and returns what the browser then has: the cookie, and the state to come
// back with.
func begin(t *testing.T, i *issuer, f *Flow, next string) (*http.Cookie, string) {
	t.Helper()
	to, cookie, err := f.Begin(t.Context(), 0, callback, next)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if !strings.HasPrefix(to, i.URL+"/auth?") || q.Get("client_id") != "console" || q.Get("redirect_uri") != callback || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("scope") != "openid email" {
		t.Errorf("the browser is sent to %s", to)
	}
	i.challenge, i.nonce = q.Get("code_challenge"), q.Get("nonce")
	return cookie, q.Get("state")
}

func back(cookie *http.Cookie, query url.Values) *http.Request {
	r := httptest.NewRequest(http.MethodGet, callback+"?"+query.Encode(), nil)
	if cookie != nil {
		r.AddCookie(cookie)
	}
	return r
}

// One server begins, another one with the same secret ends.
func TestCodeFlow(t *testing.T) {
	i, clock := newIssuer(t), testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	f := flowOf(t, i, 1, clock)
	cookie, state := begin(t, i, f, "/console/images")
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" || strings.Contains(cookie.Value, state) {
		t.Errorf("the cookie is %s", cookie)
	}
	replica := flowOf(t, i, 1, clock)
	token, next, err := replica.End(back(cookie, url.Values{"code": {"c"}, "state": {state}, "iss": {i.URL}}), callback)
	if err != nil || !strings.HasPrefix(token, "h.") || next != "/console/images" {
		t.Errorf("%q, %q, %v", token, next, err)
	}
	if i.asked.Get("code") != "c" || i.asked.Get("redirect_uri") != callback || i.asked.Get("client_id") != "console" || i.asked.Get("client_secret") != "" {
		t.Errorf("the token was asked for with %v", i.asked)
	}
	begin(t, i, f, "")
	if i.discoveries != 2 {
		t.Errorf("two servers asked %d times what the provider is", i.discoveries)
	}
	clock.SetTime(clock.Now().Add(keeping))
	begin(t, i, f, "")
	if i.discoveries != 3 {
		t.Error("what the provider said of itself is kept for ever")
	}
	if cookie, _ := begin(t, i, f, "/console/images?q="+strings.Repeat("x", 4096)); len(cookie.String()) > 4096 {
		t.Errorf("the cookie has %d bytes", len(cookie.String()))
	}
}

// Nobody signs somebody else in, and what a provider says is not believed blindly.
func TestAttackCodeFlow(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	for name, tt := range map[string]struct {
		change func(*testing.T, *issuer, *http.Cookie, url.Values)
		want   string
	}{
		"no cookie":              {func(_ *testing.T, _ *issuer, c *http.Cookie, _ url.Values) { c.Name = "other" }, "has not begun"},
		"a cookie that was made": {func(_ *testing.T, _ *issuer, c *http.Cookie, _ url.Values) { c.Value = "AAAA" }, "not made by this server"},
		"a cookie of other keys": {func(t *testing.T, i *issuer, c *http.Cookie, _ url.Values) { c.Value = strangers(t, i, clock) }, "not made by this server"},
		"a cookie that is huge": {func(_ *testing.T, _ *issuer, c *http.Cookie, _ url.Values) {
			c.Value = strings.Repeat("A", 1<<16)
		}, "not made by this server"},
		"a changed cookie": {func(_ *testing.T, _ *issuer, c *http.Cookie, _ url.Values) {
			c.Value = c.Value[:len(c.Value)-4] + "AAAA"
		}, "not made by this server"},
		"another state":           {func(_ *testing.T, _ *issuer, _ *http.Cookie, q url.Values) { q.Set("state", "other") }, "for another sign-in"},
		"no state":                {func(_ *testing.T, _ *issuer, _ *http.Cookie, q url.Values) { q.Del("state") }, "for another sign-in"},
		"another provider":        {func(_ *testing.T, _ *issuer, _ *http.Cookie, q url.Values) { q.Set("iss", "https://evil.example") }, "from another provider"},
		"somebody else's token":   {func(_ *testing.T, i *issuer, _ *http.Cookie, _ url.Values) { i.nonce = "other" }, "no ID token for this sign-in"},
		"a token without a nonce": {func(_ *testing.T, i *issuer, _ *http.Cookie, _ url.Values) { i.nonce = "" }, "no ID token for this sign-in"},
		"a code of another flow":  {func(_ *testing.T, i *issuer, _ *http.Cookie, _ url.Values) { i.challenge = "other" }, "gives no token for the code"},
		"a provider that refuses": {func(_ *testing.T, _ *issuer, _ *http.Cookie, q url.Values) {
			q.Set("error", "access_denied")
			q.Set("error_description", "<script>\u202e")
		}, "refuses: access_denied <script>"},
		"a code that is sent elsewhere": {func(_ *testing.T, i *issuer, _ *http.Cookie, _ url.Values) { i.redirect = true }, "gives no token for the code"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t)
			f := flowOf(t, i, 1, clock)
			cookie, state := begin(t, i, f, "")
			query := url.Values{"code": {"c"}, "state": {state}}
			tt.change(t, i, cookie, query)
			token, _, err := f.End(back(cookie, query), callback)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\u202e") {
				t.Errorf("%q, %v, want %q", token, err, tt.want)
			}
		})
	}
	i := newIssuer(t)
	f := flowOf(t, i, 1, clock)
	cookie, state := begin(t, i, f, "")
	clock.SetTime(clock.Now().Add(patience + time.Second))
	if _, _, err := f.End(back(cookie, url.Values{"code": {"c"}, "state": {state}}), callback); err == nil || !strings.Contains(err.Error(), "ten minutes") {
		t.Errorf("after a long time: %v", err)
	}
	for name, describe := range map[string]func(map[string]any){
		"another issuer":   func(d map[string]any) { d["issuer"] = "https://evil.example" },
		"a plain address":  func(d map[string]any) { d["token_endpoint"] = "http://evil.example/token" },
		"an odd address":   func(d map[string]any) { d["authorization_endpoint"] = "javascript:alert(1)" },
		"something else":   func(d map[string]any) { d["issuer"] = 7 },
		"a large document": func(d map[string]any) { d["more"] = strings.Repeat("x", maxAnswer) },
	} {
		i := newIssuer(t)
		i.describe = describe
		if to, _, err := flowOf(t, i, 1, clock).Begin(t.Context(), 0, callback, ""); err == nil {
			t.Errorf("%s: the browser is sent to %s", name, to)
		}
	}
	if _, _, err := f.Begin(t.Context(), 1, callback, ""); err == nil {
		t.Error("a provider that is not there is asked")
	}
}

// strangers is a cookie of a server with another secret.
func strangers(t *testing.T, i *issuer, clock *testclock.FakePassiveClock) string {
	cookie, _ := begin(t, i, flowOf(t, i, 2, clock), "")
	return cookie.Value
}

// A provider that hangs is asked once for all who wait, goes on being asked when the first of them
// has gone, and is left alone for a moment after it has failed.
func TestProviderThatHangs(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	asked, answer := make(chan struct{}, 8), make(chan bool)
	i := newIssuer(t)
	i.describe = func(d map[string]any) {
		asked <- struct{}{}
		if !<-answer {
			d["issuer"] = "another"
		}
	}
	f := flowOf(t, i, 1, clock)
	first, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	begin := func(ctx context.Context) {
		_, _, err := f.Begin(ctx, 0, callback, "")
		ended <- err
	}
	go begin(first)
	<-asked
	leave()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("who has gone is told %v", err)
	}
	for range 3 {
		go begin(t.Context())
	}
	answer <- false // of the only read
	for range 3 {
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "is of the issuer") {
			t.Errorf("who waits is told %v", err)
		}
	}
	clock.SetTime(clock.Now().Add(resting - time.Second))
	go begin(t.Context())
	if err := <-ended; err == nil {
		t.Error("a failure is not remembered")
	}
	clock.SetTime(clock.Now().Add(time.Second))
	go begin(t.Context())
	<-asked
	answer <- true
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if i.discoveries != 2 {
		t.Errorf("the provider was asked %d times", i.discoveries)
	}
}

// Whatever a provider describes, only its own issuer and https addresses are taken from it.
func FuzzDiscovery(f *testing.F) {
	for _, seed := range []string{
		`{"issuer":"https://i","authorization_endpoint":"https://i/a","token_endpoint":"https://i/t","scopes_supported":["openid"]}`,
		`{"issuer":"https://i","authorization_endpoint":"javascript:x","token_endpoint":"https://u:p@i/t"}`, `{}`, `[]`, ``, `{"issuer":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := parseDiscovery(body, "https://i")
		if err != nil {
			return
		}
		for _, at := range []string{d.Authorization, d.Token} {
			if u, err := url.Parse(at); err != nil || u.Scheme != "https" || u.Host == "" {
				t.Errorf("%q is taken from %q", at, body)
			}
		}
		if d.Issuer != "https://i" {
			t.Errorf("the issuer is %q", d.Issuer)
		}
	})
}

// The nonce is what every parser takes for it.
func TestNonceIsReadInOneWay(t *testing.T) {
	for claims, want := range map[string]string{
		`{"nonce":"a","sub":"ann"}`:     "a",
		`{"nonce":"a","Nonce":"b"}`:     "a",
		`{"NONCE":"b"}`:                 "",
		`{"nonce":"a","nonce":"b"}`:     "",
		`{"nonce":"a"} {"nonce":"b"}`:   "",
		`{"nonce":["a"]}`:               "",
		`{"nonce":"a","x":{"nonce":1}}`: "a",
	} {
		if got := nonceOf("h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s"); got != want {
			t.Errorf("%s has the nonce %q, want %q", claims, got, want)
		}
	}
}

// Whatever a token is, reading its nonce does not fail.
func FuzzNonce(f *testing.F) {
	for _, seed := range []string{"", "a.b.c", "a.eyJub25jZSI6IngifQ.c", "a.e30.c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if nonceOf(token) != "" && strings.Count(token, ".") != 2 {
			t.Errorf("%q has a nonce", token)
		}
	})
}

func TestNames(t *testing.T) {
	f, err := New([]Provider{{Issuer: "https://a.example/realm"}, {Issuer: "https://b.example"}}, nil, testclock.NewFakePassiveClock(time.Time{}))
	if err != nil || !slices.Equal(f.Names(), []string{"a.example", "b.example"}) {
		t.Errorf("%v, %v", f.Names(), err)
	}
	if _, err := New([]Provider{{Issuer: "https://a.example", CA: "x"}}, nil, nil); err == nil {
		t.Error("what is not a certificate is taken for one")
	}
}
