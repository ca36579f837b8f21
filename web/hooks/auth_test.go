package hooks_test

import (
	"crypto/rand"
	"crypto/rsa"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// TestAuthentication sends each type's payload with the secret wrong in every way.
func TestAuthentication(t *testing.T) {
	all := fixtures(t)
	for _, typ := range hooks.Types() {
		t.Run(typ, func(t *testing.T) {
			var f fixture
			for _, f = range all[typ] {
				if len(f.Jobs) > 0 {
					break
				}
			}
			dir, spool := t.TempDir(), &memorySpool{}
			h := newHandler(t, dir, spool, newReceiver(t, dir, typ, f.Hosts...))
			request := func(secret string) *http.Request {
				r := newRequest(t, typ, secret, f.Body)
				for k, v := range f.Header {
					r.Header.Set(k, v)
				}
				return r
			}
			if status, _ := serve(t, h, request(testSecret)); status != 202 {
				t.Errorf("right secret: status %d, want 202", status)
			}
			spool.take()

			wrong := map[string]*http.Request{
				"no secret": httptest.NewRequest(http.MethodPost, "/hooks/"+typ, strings.NewReader(string(f.Body))),
			}
			if typ != "gar" {
				wrong["another secret"] = request("another-secret-of-this-test")
				wrong["prefix of the secret"] = request(testSecret[:len(testSecret)-1])
				wrong["more than the secret"] = request(testSecret + "x")
			}
			if typ == "github" || typ == "gitea" || typ == "jfrog" {
				r := request(testSecret)
				maps.Copy(r.Header, newRequest(t, typ, testSecret, []byte(`{}`)).Header)
				wrong["signature of another body"] = r
			}
			if typ == "github" || typ == "gitea" {
				r := newRequest(t, typ, testSecret, f.Body)
				r.Header = http.Header{"Authorization": {"Bearer " + testSecret}}
				wrong["the secret itself in place of a signature"] = r
				r = newRequest(t, typ, testSecret, f.Body)
				r.Header = http.Header{"X-Hub-Signature": {"sha1=" + sign(testSecret, f.Body)[:40]}}
				wrong["a SHA-1 signature"] = r
			}
			for name, r := range wrong {
				if status, a := serve(t, h, r); status != 401 {
					t.Errorf("%s: status %d (%+v), want 401", name, status, a)
				}
			}
			if jobs := spool.take(); len(jobs) > 0 {
				t.Errorf("unauthenticated jobs reached the spool: %v", jobs)
			}
		})
	}
}

// TestHeader: a configured header replaces Authorization, and has the secret without a scheme.
func TestHeader(t *testing.T) {
	dir := t.TempDir()
	r := newReceiver(t, dir, "ecr", "r.example.com")
	r.Header = "X-Api-Key"
	h := newHandler(t, dir, &memorySpool{}, r)
	for _, test := range []struct {
		header, value string
		want          int
	}{
		{"X-Api-Key", testSecret, 200},
		{"X-Api-Key", "Bearer " + testSecret, 401},
		{"Authorization", testSecret, 401},
		{"Authorization", "Bearer " + testSecret, 401},
	} {
		req := httptest.NewRequest(http.MethodPost, "/hooks/ecr", strings.NewReader(`{}`))
		req.Header.Set(test.header, test.value)
		if status, _ := serve(t, h, req); status != test.want {
			t.Errorf("%s: %s: status %d, want %d", test.header, test.value, status, test.want)
		}
	}
}

// TestToken checks which claims and signatures of a token are accepted.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	h := newHandler(t, dir, &memorySpool{}, newReceiver(t, dir, "gar", "gcr.io"))
	claims := func(changes map[string]any) map[string]any {
		c := goodClaims()
		maps.Copy(c, changes)
		maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
		return c
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	stranger := signer{key, testSigner().id}
	unknown := signer{key, "key-2"}
	signed := func(alg jose.SignatureAlgorithm, key any) string {
		sig, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", testSigner().id))
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(sig).Claims(goodClaims()).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := testSigner().token(t, goodClaims())
	parts := strings.Split(good, ".")
	tests := map[string]struct {
		token string
		want  int
	}{
		"good":                 {good, 200},
		"minute of clock":      {testSigner().token(t, claims(map[string]any{"exp": testTime.Add(-30 * time.Second).Unix()})), 200},
		"expired":              {testSigner().token(t, claims(map[string]any{"exp": testTime.Add(-2 * time.Minute).Unix()})), 401},
		"no expiry":            {testSigner().token(t, claims(map[string]any{"exp": nil})), 401},
		"from the future":      {testSigner().token(t, claims(map[string]any{"nbf": testTime.Add(time.Hour).Unix()})), 401},
		"another audience":     {testSigner().token(t, claims(map[string]any{"aud": "https://example.com"})), 401},
		"no audience":          {testSigner().token(t, claims(map[string]any{"aud": nil})), 401},
		"another issuer":       {testSigner().token(t, claims(map[string]any{"iss": "https://example.com"})), 401},
		"another account":      {testSigner().token(t, claims(map[string]any{"email": "x@example.com"})), 401},
		"unverified account":   {testSigner().token(t, claims(map[string]any{"email_verified": false})), 401},
		"stranger's key":       {stranger.token(t, goodClaims()), 401},
		"unknown key":          {unknown.token(t, goodClaims()), 401},
		"RS512":                {signed(jose.RS512, testSigner().key), 401},
		"HMAC of a public key": {signed(jose.HS256, testSigner().key.N.Bytes()), 401},
		"no signature":         {parts[0] + "." + parts[1] + ".", 401},
		"alg none":             {"eyJhbGciOiJub25lIn0." + parts[1] + ".", 401},
		"not a token":          {"x", 401},
		"empty":                {"", 401},
		"too long":             {good + strings.Repeat("A", 9000), 401},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/hooks/gar", strings.NewReader(`{"message":{"data":"e30="}}`))
			r.Header.Set("Authorization", "Bearer "+test.token)
			if status, a := serve(t, h, r); status != test.want {
				t.Errorf("status %d (%+v), want %d", status, a, test.want)
			}
		})
	}
}
