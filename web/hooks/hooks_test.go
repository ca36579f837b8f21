package hooks_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

const testSecret = "c7a1e9d4b2f80635a9c1-test-secret"

var testTime = time.Date(2026, 5, 28, 20, 26, 41, 0, time.UTC)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the access log of every test
	os.Exit(m.Run())
}

// memorySpool records enqueued events. If err is set, every call returns it.
type memorySpool struct {
	mu     sync.Mutex
	events []push.Event
	err    error
}

func (s *memorySpool) Enqueue(_ context.Context, events []push.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.events = append(s.events, events...)
	return nil
}

func (s *memorySpool) take() []push.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// signer issues tokens as Google does.
type signer struct {
	key *rsa.PrivateKey
	id  string
}

var testSigner = sync.OnceValue(func() signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return signer{key, "key-1"}
})

func (s signer) keySet(t testing.TB) []byte {
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key.Public(), KeyID: s.id, Algorithm: "RS256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s signer) privateKeySet() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key, KeyID: s.id}}})
}

func (s signer) token(t testing.TB, claims map[string]any) string {
	raw, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return s.sign(t, raw)
}

// sign makes a token of claims in JSON.
func (s signer) sign(t testing.TB, claims []byte) string {
	sig, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := sig.Sign(claims)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func goodClaims() map[string]any {
	return map[string]any{
		"iss": "https://accounts.google.com", "aud": "https://tidewaiter.example.com/hooks/gar",
		"email": "pusher@my-project.iam.gserviceaccount.com", "email_verified": true,
		"iat": testTime.Add(-time.Minute).Unix(), "exp": testTime.Add(time.Hour).Unix(),
	}
}

// newReceiver makes a receiver of a type, and writes its files to dir.
func newReceiver(t testing.TB, dir, typ string, hosts ...string) hooks.Receiver {
	r := hooks.Receiver{Name: typ, Type: typ, Hosts: hosts}
	if typ == "gar" {
		r.OIDC = &hooks.OIDC{
			KeysFile: "keys.json", Audience: "https://tidewaiter.example.com/hooks/gar",
			Email: "pusher@my-project.iam.gserviceaccount.com",
		}
		writeFile(t, filepath.Join(dir, "keys.json"), testSigner().keySet(t))
		return r
	}
	r.SecretFile = "secret"
	writeFile(t, filepath.Join(dir, "secret"), []byte(testSecret+"\n"))
	return r
}

// oneOfEach are receivers of all types, named after them.
func oneOfEach(t testing.TB, dir string) (receivers []hooks.Receiver) {
	for _, typ := range hooks.Types() {
		receivers = append(receivers, newReceiver(t, dir, typ, "r.example.com"))
	}
	return receivers
}

func writeFile(t testing.TB, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newHandler(t testing.TB, dir string, spool hooks.Spool, receivers ...hooks.Receiver) *hooks.Handler {
	t.Helper()
	h, err := hooks.New(hooks.Options{Receivers: receivers, Dir: dir, Spool: spool, Clock: testclock.NewFakePassiveClock(testTime)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newRequest returns a request in the vendor's form, authenticated with the secret.
func newRequest(t testing.TB, typ, secret string, body []byte) *http.Request {
	path := "/hooks/" + typ
	if typ == "quay" || typ == "dockerhub" {
		path += "/" + secret
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	switch typ {
	case "github":
		r.Header.Set("X-Hub-Signature-256", "sha256="+sign(secret, body))
	case "gitea":
		r.Header.Set("X-Hub-Signature-256", "sha256="+sign(secret, body))
		r.Header.Set("X-Gitea-Signature", sign(secret, body))
	case "jfrog":
		r.Header.Set("X-JFrog-Event-Auth", sign(secret, body))
	case "harbor":
		r.Header.Set("Authorization", secret)
	case "zot":
		r.SetBasicAuth("tidewaiter", secret)
	case "gar":
		r.Header.Set("Authorization", "Bearer "+testSigner().token(t, goodClaims()))
	case "quay", "dockerhub":
	default:
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	return r
}

func sign(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// answer is a response's body.
type answer struct {
	Message string
	Queued  int
	Refused map[string]int
	Why     string
}

func serve(t testing.TB, h http.Handler, r *http.Request) (int, answer) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var a answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("status %d with a body that is not JSON: %q", w.Code, w.Body)
	}
	return w.Code, a
}

// fixture is a vendor's documented payload, and the expected events.
type fixture struct {
	About        string
	Hosts        []string
	Repositories []string
	Header       map[string]string
	Jobs         []fixtureEvent
	Refused      map[string]int
	Why          string // a part of the reason
	Body         json.RawMessage
}

// fixtureEvent is an event with the fields that its stored form leaves out.
type fixtureEvent struct {
	push.Event
	ID, MediaType string
}

// fixtures returns every payload under testdata by type and name.
func fixtures(t testing.TB) map[string]map[string]fixture {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]fixture{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f fixture
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		typ, name := filepath.Base(filepath.Dir(file)), strings.TrimSuffix(filepath.Base(file), ".json")
		if all[typ] == nil {
			all[typ] = map[string]fixture{}
		}
		all[typ][name] = f
	}
	for _, typ := range hooks.Types() {
		if len(all[typ]) == 0 {
			t.Fatalf("type %s has no payload under testdata", typ)
		}
	}
	return all
}
