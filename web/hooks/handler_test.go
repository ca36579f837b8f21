package hooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

func pushOf(ref string) []byte { return fmt.Appendf(nil, `{"references":[%q]}`, ref) }

func TestStatus(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	h := newHandler(t, dir, spool, newReceiver(t, dir, "generic", "r.example.com"), newReceiver(t, dir, "quay", "quay.io"))
	good := pushOf("r.example.com/app:1")
	many := []byte(`{"references":[` + strings.Repeat(`"r.example.com/app:1",`, 1000) + `"r.example.com/app:1"]}`)
	tests := map[string]struct {
		method, path string
		header       string
		body         []byte
		spoolErr     error
		want         int
	}{
		"accepted":               {path: "/hooks/generic", header: "Bearer " + testSecret, body: good, want: 202},
		"bare secret":            {path: "/hooks/generic", header: testSecret, body: good, want: 202},
		"scheme in capitals":     {path: "/hooks/generic", header: "BEARER " + testSecret, body: good, want: 202},
		"nothing of interest":    {path: "/hooks/generic", header: testSecret, body: []byte(`{}`), want: 200},
		"another shape":          {path: "/hooks/generic", header: testSecret, body: []byte(`{"references":7}`), want: 200},
		"a JSON string":          {path: "/hooks/generic", header: testSecret, body: []byte(`"push"`), want: 200},
		"null":                   {path: "/hooks/generic", header: testSecret, body: []byte(`null`), want: 200},
		"not JSON":               {path: "/hooks/generic", header: testSecret, body: []byte(`payload=%7B%7D`), want: 400},
		"two documents":          {path: "/hooks/generic", header: testSecret, body: []byte(`{}{}`), want: 400},
		"empty body":             {path: "/hooks/generic", header: testSecret, want: 400},
		"no secret":              {path: "/hooks/generic", body: good, want: 401},
		"wrong secret":           {path: "/hooks/generic", header: "Bearer " + testSecret[1:], body: good, want: 401},
		"empty secret":           {path: "/hooks/generic", header: "Bearer ", body: good, want: 401},
		"wrong secret, not JSON": {path: "/hooks/generic", body: []byte("x"), want: 401},
		"unknown name":           {path: "/hooks/other", header: testSecret, body: good, want: 401},
		"token where none is":    {path: "/hooks/generic/" + testSecret, body: good, want: 401},
		"path token":             {path: "/hooks/quay/" + testSecret, body: []byte(`{"docker_url":"quay.io/a/b","updated_tags":["1"]}`), want: 202},
		"path token missing":     {path: "/hooks/quay", header: testSecret, body: good, want: 401},
		"path token wrong":       {path: "/hooks/quay/x" + testSecret, body: good, want: 401},
		"largest body":           {path: "/hooks/generic", header: testSecret, body: pad(good, 1<<20), want: 202},
		"body too large":         {path: "/hooks/generic", header: testSecret, body: pad(good, 1<<20+1), want: 413},
		"too many events":        {path: "/hooks/generic", header: testSecret, body: many, want: 413},
		"spool full":             {path: "/hooks/generic", header: testSecret, body: good, spoolErr: errors.New("full"), want: 503},
		"spool full, no news":    {path: "/hooks/generic", header: testSecret, body: []byte(`{}`), spoolErr: errors.New("full"), want: 200},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			spool.err = test.spoolErr
			defer spool.take()
			r := httptest.NewRequest(http.MethodPost, test.path, bytes.NewReader(test.body))
			if test.header != "" {
				r.Header.Set("Authorization", test.header)
			}
			status, a := serve(t, h, r)
			if status != test.want {
				t.Errorf("status %d (%+v), want %d", status, a, test.want)
			}
			if got := len(spool.take()); (got == 1) != (status == http.StatusAccepted) {
				t.Errorf("status %d with %d jobs", status, got)
			}
		})
	}
}

// An event of zot contains the pushed manifest, of any allowed size and with any escaping in JSON.
// No other type accepts bodies as large.
func TestEventsWithWholeManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]int{strings.Repeat("<", manifest.MaxManifestSize): 202, strings.Repeat("<", manifest.MaxManifestSize+(1<<18)): 413} {
		body, err := json.Marshal(map[string]any{"name": "golang", "reference": "1.20", "digest": digest, "manifest": text})
		if err != nil {
			t.Fatal(err)
		}
		for typ, want := range map[string]int{"zot": want, "generic": 413} {
			dir, spool := t.TempDir(), &memorySpool{}
			h := newHandler(t, dir, spool, newReceiver(t, dir, typ, "r.example.com"))
			r := newRequest(t, typ, testSecret, body)
			r.Header.Set("Ce-Type", "zotregistry.image.updated")
			status, _ := serve(t, h, r)
			if got := len(spool.take()); status != want || (got == 1) != (want == 202) {
				t.Errorf("%s: %d bytes are answered %d with %d jobs, want %d", typ, len(body), status, got, want)
			}
		}
	}
}

func pad(body []byte, size int) []byte {
	return append(bytes.Repeat([]byte(" "), size-len(body)), body...)
}

func TestOnlyPost(t *testing.T) {
	dir := t.TempDir()
	h := newHandler(t, dir, &memorySpool{}, newReceiver(t, dir, "generic", "r.example.com"))
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/hooks/generic", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d, want 405", method, w.Code)
		}
	}
}

// TestWholeServer uses a socket, so that the server enforces the body's deadline and limit.
func TestWholeServer(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	s := httptest.NewServer(newHandler(t, dir, spool, newReceiver(t, dir, "generic", "r.example.com")))
	defer s.Close()
	for _, test := range []struct {
		size, want int
	}{{100, 202}, {2 << 20, 413}} {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/hooks/generic", bytes.NewReader(pad(pushOf("r.example.com/app:1"), test.size)))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("anybody", testSecret)
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.want {
			t.Errorf("%d bytes: status %d, want %d", test.size, resp.StatusCode, test.want)
		}
	}
	if got := len(spool.take()); got != 1 {
		t.Errorf("%d jobs, want 1", got)
	}
}

// TestUnreadWithoutSecret: a caller without the secret cannot make the server read a body, unless
// the proof is a signature of the body.
func TestUnreadWithoutSecret(t *testing.T) {
	dir := t.TempDir()
	h := newHandler(t, dir, &memorySpool{}, newReceiver(t, dir, "generic", "r.example.com"))
	body := &countingReader{}
	if status, _ := serve(t, h, httptest.NewRequest(http.MethodPost, "/hooks/generic", body)); status != 401 {
		t.Errorf("status %d, want 401", status)
	}
	if body.n != 0 {
		t.Errorf("%d bytes of the body were read", body.n)
	}
}

type countingReader struct{ n int }

func (c *countingReader) Read(p []byte) (int, error) { c.n += len(p); return len(p), nil }

func TestAllOrNothing(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	calls := 0
	counting := spoolFunc(func(jobs []push.Event) error { calls++; return spool.Enqueue(context.Background(), jobs) })
	h := newHandler(t, dir, counting, newReceiver(t, dir, "generic", "r.example.com"))
	body := []byte(`{"references":["r.example.com/a:1","elsewhere.example.com/b:1","r.example.com/c:1"]}`)
	if status, _ := serve(t, h, newRequest(t, "generic", testSecret, body)); status != 202 {
		t.Fatalf("status %d", status)
	}
	if jobs := spool.take(); calls != 1 || len(jobs) != 2 {
		t.Errorf("%d calls with %d jobs, want one with two", calls, len(jobs))
	}
}

type spoolFunc func([]push.Event) error

func (f spoolFunc) Enqueue(_ context.Context, jobs []push.Event) error { return f(jobs) }

// TestNoSecretAnywhere makes every kind of request, and searches answers, log and metrics for
// secrets.
func TestNoSecretAnywhere(t *testing.T) {
	var log strings.Builder
	registry := metrics.NewKubeRegistry()
	dir := t.TempDir()
	receivers := oneOfEach(t, dir)
	h, err := hooks.New(hooks.Options{
		Receivers: receivers, Dir: dir, Spool: &memorySpool{err: errors.New("disk full")},
		Registerer: registry, Clock: testclock.NewFakePassiveClock(testTime),
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	answers, tokens := "", []string{testSecret}
	for typ, byName := range fixtures(t) {
		for _, f := range byName {
			for _, secret := range []string{testSecret, "almost-" + testSecret} {
				r := newRequest(t, typ, secret, f.Body)
				if a := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); a != "" && typ == "gar" {
					tokens = append(tokens, a)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				answers += w.Body.String()
			}
		}
	}
	text := ""
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		text += f.String()
	}
	if !strings.Contains(log.String(), `receiver=quay`) || !strings.Contains(text, "tidewaiter_webhook_requests_total") {
		t.Fatalf("the log or the metrics are not what they should be:\n%s\n%s", log.String(), text)
	}
	for where, s := range map[string]string{"log": log.String(), "metrics": text, "answers": answers} {
		for _, secret := range tokens {
			if strings.Contains(s, secret) {
				t.Errorf("a secret is in the %s", where)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	registry := metrics.NewKubeRegistry()
	h, err := hooks.New(hooks.Options{
		Receivers: []hooks.Receiver{newReceiver(t, dir, "generic", "r.example.com")}, Dir: dir, Spool: spool,
		Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, h, newRequest(t, "generic", testSecret, []byte(`{"references":["r.example.com/a:1","r.example.com/b:1","x.example.com/a:1"]}`)))
	serve(t, h, newRequest(t, "generic", "wrong", pushOf("r.example.com/a:1")))
	serve(t, h, newRequest(t, "nobody", testSecret, pushOf("r.example.com/a:1")))
	want := `
# HELP tidewaiter_webhook_events_total [ALPHA] Webhook events written to the queue by receiver and action.
# TYPE tidewaiter_webhook_events_total counter
tidewaiter_webhook_events_total{action="push",receiver="generic"} 2
# HELP tidewaiter_webhook_received_total [ALPHA] Authenticated webhook deliveries by receiver.
# TYPE tidewaiter_webhook_received_total counter
tidewaiter_webhook_received_total{receiver="generic"} 1
# HELP tidewaiter_webhook_refused_total [ALPHA] Webhook events answered with success and not queued, by receiver and reason.
# TYPE tidewaiter_webhook_refused_total counter
tidewaiter_webhook_refused_total{reason="host",receiver="generic"} 1
# HELP tidewaiter_webhook_requests_total [ALPHA] Webhook requests by receiver and HTTP status; the receiver is empty for unknown names.
# TYPE tidewaiter_webhook_requests_total counter
tidewaiter_webhook_requests_total{code="202",receiver="generic"} 1
tidewaiter_webhook_requests_total{code="401",receiver="generic"} 1
tidewaiter_webhook_requests_total{code="401",receiver=""} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_webhook_events_total", "tidewaiter_webhook_received_total",
		"tidewaiter_webhook_refused_total", "tidewaiter_webhook_requests_total"); err != nil {
		t.Error(err)
	}
}

func TestSecretFileReload(t *testing.T) {
	dir := t.TempDir()
	clock := testclock.NewFakePassiveClock(testTime)
	h, err := hooks.New(hooks.Options{Receivers: []hooks.Receiver{newReceiver(t, dir, "generic", "r.example.com")}, Dir: dir, Spool: &memorySpool{}, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "secret")
	write := func(content string) {
		writeFile(t, file, []byte(content))
		// A file system's clock may be too coarse for a test.
		if err := os.Chtimes(file, clock.Now(), clock.Now()); err != nil {
			t.Fatal(err)
		}
		clock.SetTime(clock.Now().Add(time.Second)) // the file has settled
	}
	expect := func(when, secret string, want int) {
		t.Helper()
		if status, _ := serve(t, h, newRequest(t, "generic", secret, pushOf("r.example.com/a:1"))); status != want {
			t.Errorf("%s: status %d, want %d", when, status, want)
		}
	}
	expect("at first", testSecret, 202)
	write(testSecret + "\n\n  another-secret-of-this-test  \n")
	expect("with two, the old", testSecret, 202)
	expect("with two, the new", "another-secret-of-this-test", 202)
	write("another-secret-of-this-test")
	expect("with the new, the old", testSecret, 401)
	write("\n")
	expect("emptied by mistake, the last good", "another-secret-of-this-test", 202)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(time.Minute))
	expect("gone, the last good", "another-secret-of-this-test", 202)
	write("a-third-secret-of-this-test")
	expect("back", "a-third-secret-of-this-test", 202)
	expect("back, the old", "another-secret-of-this-test", 401)
}

// Heard has, for each receiver, the time of the last delivery, and the time and reason of the last
// refusal. It contains no secret.
func TestHeard(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(testSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	clock := testclock.NewFakePassiveClock(testTime)
	h, err := hooks.New(hooks.Options{
		Receivers: []hooks.Receiver{{Name: "used", Type: "distribution", Hosts: []string{"r.example.com"}, SecretFile: "secret"}, {Name: "idle", Type: "distribution", Hosts: []string{"r.example.com"}, SecretFile: "secret"}},
		Dir:       dir, Spool: &memorySpool{}, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	send := func(secret, host string) {
		t.Helper()
		clock.SetTime(clock.Now().Add(time.Minute))
		r := httptest.NewRequest(http.MethodPost, "/hooks/used", strings.NewReader(`{"events":[{"id":"`+host+`","action":"push","target":{"digest":"sha256:`+strings.Repeat("0", 64)+`","repository":"team/app","tag":"v1"},"request":{"host":"`+host+`"}}]}`))
		r.Header.Set("Authorization", "Bearer "+secret)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	send(testSecret, "r.example.com")
	send(testSecret, "other.example.com")
	got := h.Heard()
	if len(got) != 2 || got[0].Name != "idle" || got[0].LastHeard != nil || got[0].LastRefused != nil || got[0].Type != "distribution" {
		t.Fatalf("they heard %+v", got)
	}
	used := got[1]
	if !used.LastQueued.Equal(testTime.Add(time.Minute)) || !used.LastHeard.Equal(testTime.Add(2*time.Minute)) || !used.LastRefused.Equal(testTime.Add(2*time.Minute)) || !strings.Contains(used.Refused, "other.example.com") {
		t.Errorf("it heard %+v", used)
	}
	send("almost-"+testSecret, "r.example.com")
	if used := h.Heard()[1]; !used.LastHeard.Equal(testTime.Add(2*time.Minute)) || !used.LastRefused.Equal(testTime.Add(3*time.Minute)) || used.Refused == "" || strings.Contains(used.Refused, testSecret) {
		t.Errorf("after a wrong secret it heard %+v", used)
	}
}

// Replaced receivers are served at once: a removed one is refused, an unchanged one keeps its
// Heard, and a changed one follows its new configuration. If one is invalid, the previous ones
// stay.
func TestReplace(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	receiver := func(name string, hosts ...string) hooks.Receiver {
		r := newReceiver(t, dir, hooks.Generic, hosts...)
		r.Name = name
		return r
	}
	h := newHandler(t, dir, spool, receiver("same", "r.example.com"), receiver("changed", "r.example.com"), receiver("gone", "r.example.com"))
	send := func(name, host string) int {
		r := httptest.NewRequest(http.MethodPost, "/hooks/"+name, bytes.NewReader(pushOf(host+"/app:1")))
		r.Header.Set("Authorization", "Bearer "+testSecret)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	check := func(when string, want map[string]int) {
		t.Helper()
		for name, code := range want {
			if got := send(name, "r.example.com"); got != code {
				t.Errorf("%s: %s is answered %d, want %d", when, name, got, code)
			}
		}
	}
	before := map[string]int{"same": 202, "changed": 202, "gone": 202, "new": 401}
	check("at first", before)
	for _, wrong := range [][]hooks.Receiver{
		{receiver("new", "r.example.com"), {Name: "wrong", Type: "docker"}},
		{receiver("new", "r.example.com"), receiver("new", "other.example.com")},
	} {
		if err := h.Replace(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
	check("after mistakes", before)
	if err := h.Replace([]hooks.Receiver{receiver("same", "r.example.com"), receiver("changed", "other.example.com"), receiver("new", "r.example.com")}); err != nil {
		t.Fatal(err)
	}
	heard := h.Heard()
	if len(heard) != 3 || heard[0].Name != "changed" || heard[0].LastHeard != nil || heard[1].LastHeard != nil || heard[2].Name != "same" || heard[2].LastQueued == nil {
		t.Errorf("%+v", heard)
	}
	check("afterwards", map[string]int{"same": 202, "changed": 200, "gone": 401, "new": 202})
}
