package notify

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/notification"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var now = time.Date(2026, 5, 28, 10, 0, 0, 0, time.UTC)

// file writes a file that only its user can read.
func file(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// secretFile writes a file with secrets of these bytes.
func secretFile(t testing.TB, secrets ...string) string {
	t.Helper()
	text := ""
	for _, s := range secrets {
		text += secretPrefix + base64.StdEncoding.EncodeToString([]byte(s)) + "\n"
	}
	return file(t, text)
}

const one, two = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"

func newNotifier(t *testing.T, receivers ...Receiver) *Notifier {
	t.Helper()
	n, err := New(Options{Source: "https://tidewaiter.example.com", UserAgent: "tidewaiter/test", Clock: clocktesting.NewFakePassiveClock(now)}, receivers)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func repository(t *testing.T, text string) []reference.Reference {
	t.Helper()
	ref, err := reference.ParseRepository(text)
	if err != nil {
		t.Fatal(err)
	}
	return []reference.Reference{ref}
}

// stored returns jobs as the queue gives them back.
func stored(t *testing.T, jobs []Notification) (all []Notification) {
	t.Helper()
	for _, j := range jobs {
		back, err := notification.Decode(j.Encode())
		if err != nil {
			t.Fatal(err)
		}
		back.To = j.To
		all = append(all, back)
	}
	return all
}

func newJob(to To, payload string) *Job {
	return &Job{Source: to, Events: []Notification{{To: to, Payload: payload}}}
}

// The event that docs/reference/notifications.md shows is what the server sends, and the page names
// each field of an event's data.
func TestDocumentedEvent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(text), "```json\n")
	shown, _, _ = strings.Cut(shown, "```")
	var c cloudEvent
	d := json.NewDecoder(strings.NewReader(shown))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		t.Fatalf("%v in\n%s", err, shown)
	}
	sequence, err := strconv.ParseInt(c.Sequence, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	kind := Kind(strings.TrimPrefix(c.Type, typePrefix))
	if !slices.Contains(Kinds, kind) {
		t.Errorf("there are no events of the type %s", c.Type)
	}
	n := &Notifier{Options: Options{Source: c.Source}}
	sent := n.encode(Event{Kind: kind, ID: c.ID, Time: c.Time, Sequence: sequence, Subject: c.Subject, Data: c.Data}, maxText)
	var got, want any
	if err := errors.Join(json.Unmarshal([]byte(sent), &got), json.Unmarshal([]byte(shown), &want)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the server sends %s, %v, and the page shows\n%s", sent, err, shown)
	}
	for field := range reflect.TypeFor[Data]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !regexp.MustCompile("`(data\\.)?" + name + "`").Match(text) {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// An event arrives as CloudEvents and Standard Webhooks have it, with a signature by each secret,
// through the form in which the queue keeps it, over TLS by an authority of its own.
func TestDelivery(t *testing.T) {
	var got *http.Request
	var body []byte
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	authority := file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	n := newNotifier(t, Receiver{Name: "ci", URL: server.URL + "/hook", SecretFile: secretFile(t, one, two), TokenFile: file(t, "a-token\n"), CAFile: authority})
	pods := 0
	jobs := stored(t, n.Jobs(Event{Kind: Verdict, ID: "4711", Time: now, Sequence: 12, Subject: "r.example.com/a@sha256:00", Data: Data{Image: "sha256:00", VerifiedBefore: "True", Verified: "False", Pods: &pods, Message: "two\nlines"}}))
	if len(jobs) != 1 || jobs[0].To != "ci" || jobs[0].Key() != "ci/verdict.turned/r.example.com/a@sha256:00#4711" {
		t.Fatalf("queued are %+v", jobs)
	}
	if err := n.Do(t.Context(), newJob("ci", jobs[0].Payload)); err != nil {
		t.Fatal(err)
	}
	var event map[string]any
	if err := json.Unmarshal(body, &event); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"specversion": "1.0", "id": "4711", "type": "dev.tidewaiter.verdict.turned", "source": "https://tidewaiter.example.com", "subject": "r.example.com/a@sha256:00", "time": "2026-05-28T10:00:00Z", "sequence": "00000000000000000012", "datacontenttype": "application/json"} {
		if event[key] != want {
			t.Errorf("%s is %v, want %v", key, event[key], want)
		}
	}
	data, _ := event["data"].(map[string]any)
	if data["verifiedBefore"] != "True" || data["verified"] != "False" || data["pods"] != 0.0 || data["message"] != "two lines" || data["signers"] != nil {
		t.Errorf("the data are %v", data)
	}
	for key, want := range map[string]string{"Content-Type": "application/cloudevents+json; charset=UTF-8", "Authorization": "Bearer a-token", "User-Agent": "tidewaiter/test", "webhook-id": "4711", "webhook-timestamp": "1779962400"} {
		if got.Header.Get(key) != want {
			t.Errorf("%s is %q", key, got.Header.Get(key))
		}
	}
	var want []string
	for _, secret := range []string{one, two} {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte("4711.1779962400." + string(body)))
		want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if signatures := strings.Fields(got.Header.Get("webhook-signature")); !slices.Equal(signatures, want) {
		t.Errorf("the signatures are %q, want %q", signatures, want)
	}
}

// Slack gets a text without markup, at a URL that is a secret.
func TestSlack(t *testing.T) {
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/services/hidden" || r.Header.Get("webhook-signature") != "" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	n := newNotifier(t, Receiver{Name: "chat", Format: Slack, URLFile: file(t, server.URL+"/services/hidden\n"), Insecure: true})
	jobs := n.Jobs(Event{Kind: Moved, ID: "1", Data: Data{Message: "moved by <!channel> & co"}})
	if err := n.Do(t.Context(), newJob("chat", jobs[0].Payload)); err != nil {
		t.Fatal(err)
	}
	var message map[string]string
	if err := json.Unmarshal(body, &message); err != nil || len(message) != 1 || message["text"] != "moved by &lt;!channel&gt; &amp; co" {
		t.Errorf("%s, %v", body, err)
	}
	server.Close()
	if err := n.Do(t.Context(), newJob("chat", jobs[0].Payload)); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("a receiver that is away: %v", err)
	}
}

// What a receiver answers decides whether it is tried again. Redirects are not followed, and of an
// endless answer little is read.
func TestAttackAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer elsewhere.Close()
	code := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		code := code
		w.Header().Set("Location", elsewhere.URL)
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(code)
		for chunk := strings.Repeat("x", 1<<16); code != http.StatusNoContent; {
			if _, err := io.WriteString(w, chunk); err != nil {
				return // the other side has had enough
			}
		}
	}))
	defer server.Close()
	n := newNotifier(t, Receiver{Name: "ci", URL: server.URL + "/?token=hidden", SecretFile: secretFile(t, one), Insecure: true})
	for _, tt := range []struct {
		code   int
		reason pull.Reason
	}{{200, ""}, {202, ""}, {204, ""}, {302, pull.Unavailable}, {400, pull.Denied}, {401, pull.Unavailable}, {404, pull.Unavailable}, {410, pull.InvalidImage}, {413, pull.Denied}, {429, pull.RateLimited}, {500, pull.Unavailable}, {503, pull.RateLimited}} {
		code = tt.code
		err := n.Do(t.Context(), newJob("ci", `{"id":"a"}`))
		if pull.ReasonOf(err) != tt.reason || (err == nil) != (tt.reason == "") {
			t.Errorf("%d is %v", tt.code, err)
		}
		if wrapped, ok := err.(*undelivered); ok && tt.reason == pull.RateLimited && wrapped.cause.(*pull.Error).RetryAfter != time.Hour {
			t.Errorf("%d: %v", tt.code, wrapped.cause)
		}
	}
	for name, payload := range map[string]string{"gone": `{"id":"a"}`, "ci": "{"} {
		if err := n.Do(t.Context(), newJob(To(name), payload)); pull.ReasonOf(err) != pull.InvalidImage {
			t.Errorf("%s, %s: %v", name, payload, err)
		}
	}
	// A metadata service is nobody's receiver.
	n = newNotifier(t, Receiver{Name: "ci", URL: "http://169.254.169.254/", SecretFile: secretFile(t, one), Insecure: true})
	if err := n.Do(t.Context(), newJob("ci", `{"id":"a"}`)); err == nil || !strings.Contains(err.Error(), "169.254.169.254") {
		t.Errorf("a metadata service: %v", err)
	}
}

// Files that are read again while they are half written, empty, gone or another's change nothing:
// half a URL is another receiver. Once they are whole they count.
func TestHalfWrittenFilesOfReceivers(t *testing.T) {
	var path, token string
	var signatures []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path, token, signatures = r.URL.Path, r.Header.Get("Authorization"), strings.Fields(r.Header.Get("webhook-signature"))
	}))
	defer server.Close()
	r := Receiver{Name: "ci", URLFile: file(t, server.URL+"/hooks/images\n"), SecretFile: secretFile(t, one, two), TokenFile: file(t, "token-of-ours\n"), Insecure: true}
	clock := clocktesting.NewFakePassiveClock(now)
	n, err := New(Options{Source: "https://tidewaiter.example.com", Clock: clock}, []Receiver{r})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what, wantPath, wantToken string, wantSignatures int) {
		t.Helper()
		for range 2 { // it sees the change, and finds it settled
			clock.SetTime(clock.Now().Add(time.Minute))
			if err := n.Do(t.Context(), newJob("ci", `{"id":"a"}`)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if path != wantPath || token != "Bearer "+wantToken || len(signatures) != wantSignatures {
			t.Errorf("%s: sent to %s with %q and %d signatures", what, path, token, len(signatures))
		}
	}
	asBefore := func(what string) { t.Helper(); expect(what, "/hooks/images", "token-of-ours", 2) }
	asBefore("at first")
	for _, name := range []string{r.URLFile, r.SecretFile, r.TokenFile} {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write := func(content []byte, mode os.FileMode) {
			t.Helper()
			if err := errors.Join(os.WriteFile(name, content, mode), os.Chmod(name, mode)); err != nil {
				t.Fatal(err)
			}
		}
		for n := range len(whole) - 1 {
			if n > 0 && (whole[n-1] == '\n' || whole[n] == '\n') {
				continue // a secret less
			}
			write(whole[:n], 0o600)
			asBefore(fmt.Sprintf("with %d bytes of %s", n, whole))
		}
		write(bytes.Replace(whole, []byte("o"), []byte("0"), 1), 0o644)
		asBefore("while others can read it")
		if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
			t.Fatal(err)
		}
		asBefore("as a folder")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		asBefore("while it is gone")
		if err := n.Replace([]Receiver{r}, nil); err != nil {
			t.Errorf("an unchanged receiver is read anew: %v", err)
		}
		write(whole, 0o600)
		asBefore("whole again")
	}
	for name, content := range map[string]string{r.URLFile: server.URL + "/hooks\n", r.SecretFile: secretPrefix + base64.StdEncoding.EncodeToString([]byte(one)), r.TokenFile: "token\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect("with others", "/hooks", "token", 1)
}

// A receiver that says nothing is given up, and what it costs is bounded by time.
func TestAttackSlowReceiver(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	n := newNotifier(t, Receiver{Name: "ci", URL: server.URL, SecretFile: secretFile(t, one), Insecure: true})
	if n.targets()["ci"].client.Timeout != timeout {
		t.Error("a delivery has no bound in time")
	}
	n.targets()["ci"].client.Timeout = time.Millisecond
	if err := n.Do(t.Context(), newJob("ci", `{"id":"a"}`)); pull.ReasonOf(err) != pull.Unreachable {
		t.Errorf("%v", err)
	}
}

// Each receiver is told of what it wants to know.
func TestWhoIsTold(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	const at = "https://a.example.com"
	n := newNotifier(t,
		Receiver{Name: "all", URL: at, SecretFile: secretFile(t, one)},
		Receiver{Name: "gone", URL: at, SecretFile: secretFile(t, one), Events: []string{"reference.gone"}},
		Receiver{Name: "team", URL: at, SecretFile: secretFile(t, one), Repositories: []string{"r.example.com/team", "hub.example.com"}})
	var got []string
	for _, e := range []Event{
		{Kind: Gone, Subject: "a", In: repository(t, "r.example.com/team/app")},
		{Kind: Moved, Subject: "b", In: repository(t, "r.example.com/teams/app")},
		{Kind: Moved, Subject: "c", In: repository(t, "hub.example.com/x")},
		{Kind: Missed, Subject: "d"},
		{Kind: Drift, Subject: "e"},
	} {
		for _, j := range n.Jobs(e) {
			got = append(got, string(j.To)+" "+string(j.Kind)+"/"+j.Subject)
		}
	}
	slices.Sort(got)
	want := []string{"all changes.missed/d", "all pods.drifted/e", "all reference.gone/a", "all tag.moved/b", "all tag.moved/c", "gone changes.missed/d", "gone reference.gone/a", "team changes.missed/d", "team reference.gone/a", "team tag.moved/c"}
	if !slices.Equal(got, want) {
		t.Errorf("told are %q, want %q", got, want)
	}
	// Whatever somebody has written, an event fits into the queue.
	for _, text := range []string{"\u00e9\"", "<", "\\", "\u202e", "\xff"} {
		long := strings.Repeat(text, 100_000)
		jobs := n.Jobs(Event{Kind: Verdict, ID: "1", Subject: long, In: repository(t, "r.example.com/team"), Data: Data{Message: long, By: long, Reason: long, Policy: long, Reference: long, Namespace: long, Signers: slices.Repeat([]string{long}, 100), References: slices.Repeat([]string{long}, 100)}})
		for _, j := range stored(t, jobs) {
			if len(j.Encode()) > 8192 || len(j.Key()) > 1024 {
				t.Errorf("an event has %d bytes, its key %d", len(j.Encode()), len(j.Key()))
			}
		}
	}
}

func TestReceiversAreChecked(t *testing.T) {
	good := Receiver{Name: "ci", URL: "https://a.example.com/x", SecretFile: secretFile(t, one)}
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for want, change := range map[string]func(*Receiver){
		"not a DNS label":        func(r *Receiver) { r.Name = "a/b" },
		"url: http shows":        func(r *Receiver) { r.URL = "http://a.example.com" },
		"without a user name":    func(r *Receiver) { r.URL = "https://u:secret@a.example.com" },
		"it is not a URL":        func(r *Receiver) { r.URL = "a.example.com" },
		"one of url and urlFile": func(r *Receiver) { r.URLFile = r.SecretFile },
		"/file: it is not a URL": func(r *Receiver) { r.URL, r.URLFile = "", r.SecretFile },
		"events[0]":              func(r *Receiver) { r.Events = []string{"pull"} },
		"repositories[1]":        func(r *Receiver) { r.Repositories = []string{"a.example.com", "r.example.com/team:v1"} },
		"secretFile: it is":      func(r *Receiver) { r.SecretFile = "" },
		"no such file":           func(r *Receiver) { r.SecretFile = "/nonexistent/secret" },
		"24 to 64 bytes":         func(r *Receiver) { r.SecretFile = secretFile(t, "short") },
		"has 0 secrets":          func(r *Receiver) { r.SecretFile = file(t, "\n") },
		"has 5 secrets":          func(r *Receiver) { r.SecretFile = secretFile(t, one, one, one, one, one) },
		"one line with a token":  func(r *Receiver) { r.TokenFile = file(t, "two lines\nsecret") },
		"has no certificate":     func(r *Receiver) { r.CAFile = r.SecretFile },
		"without its end":        func(r *Receiver) { r.CAFile = file(t, certificate+certificate[:len(certificate)/2]) },
		`format: "xml" is not`:   func(r *Receiver) { r.Format = "xml" },
		"at most 32 are allowed": nil,
		"two with the name ci":   nil,
	} {
		all := []Receiver{good}
		switch {
		case change != nil:
			change(&all[0])
		case strings.HasPrefix(want, "two"):
			all = append(all, good)
		default:
			all = slices.Repeat(all, MaxReceivers+1)
		}
		n := newNotifier(t, good)
		err := n.Replace(all, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for _, secret := range []string{one, base64.StdEncoding.EncodeToString([]byte("short")), "u:secret", "two lines"} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", want, err)
			}
		}
		if got := n.Receivers(); !slices.Equal(got, []To{"ci"}) { // the previous ones
			t.Errorf("%s: %q", want, got)
		}
	}
}

// FuzzRetryAfter says that a receiver's wish for a pause is bounded, whatever it writes.
func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{"", "120", "-1", "99999999999999999999", "Thu, 28 May 2026 10:00:30 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "9223372036854775807"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {text}}}
		var cause *pull.Error
		if err := answered(answer, now); !errors.As(err, &cause) || cause.RetryAfter < 0 || cause.RetryAfter > maxPause {
			t.Errorf("%q is %v", text, err)
		}
	})
}

// A notification comes back from its stored form, and from that of earlier releases; what neither
// has written is an error.
func TestStoredNotifications(t *testing.T) {
	want := Notification{ID: "1f", Kind: Moved, Subject: "r.example.com/team/app:1.0", Payload: `{"id":"1f"}`}
	if got, err := notification.Decode(want.Encode()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	former := `{"action":"tell","host":"notify:ci","repository":"tag.moved/r.example.com/team/app:1.0","digest":"1f","payload":"{\"id\":\"1f\"}"}`
	if got, err := notification.DecodeFormer([]byte(former)); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{`x`, `{}`, `{"id":"1f","payload":"{"}`, `{"payload":"{}"}`} {
		if got, err := notification.Decode([]byte(bad)); err == nil {
			t.Errorf("%s is %+v", bad, got)
		}
		if got, err := notification.DecodeFormer([]byte(bad)); err == nil {
			t.Errorf("formerly %s is %+v", bad, got)
		}
	}
}

// The text of a receiver is that receiver again.
func TestTextOfAReceiver(t *testing.T) {
	var to To
	if err := to.UnmarshalText([]byte("notify/ci")); err != nil || to != "ci" || to.String() != "notify/ci" {
		t.Errorf("%q, %v", to, err)
	}
	if err := to.UnmarshalText([]byte("hub")); err == nil {
		t.Error("a receiver of webhooks is one of notifications")
	}
}
