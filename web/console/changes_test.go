package console

import (
	"compress/gzip"
	"crypto/tls"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// changedAnswers are the API's answers in which each kind of change is once within a day.
func changedAnswers() map[string]any {
	run := func(workload, from, until string, more ...any) m {
		status := m{"verdicts": more}
		if until != "" {
			status["until"] = until
		}
		return m{"metadata": m{"namespace": "shop"}, "spec": m{"cluster": "prod", "workload": "Deployment/" + workload, "container": "main", "image": "r.io/" + workload + ":v1", "digest": digestA, "from": from}, "status": status}
	}
	verdict := func(since, verified string) m { return m{"since": since, "verified": verified} }
	caused := func(since, verified string) m {
		return m{"since": since, "verified": verified, "cause": "the policy ours changed"}
	}
	const long, early, later, last = "2026-10-01T00:00:00Z", "2026-10-31T09:00:00Z", "2026-10-31T10:00:00Z", "2026-11-01T07:00:00Z"
	return map[string]any{
		"GET " + runsPath: func(q url.Values) any {
			switch selector := q.Get("fieldSelector"); {
			case selector == "verified=False,from=2026-10-31T08:00:00Z,until=2026-11-01T08:00:00Z" && q.Get("continue") == "":
				return m{"metadata": m{"continue": "more"}, "items": l{run("began", early, "", verdict(early, "False")), run("old", long, "", verdict(long, "False"))}}
			case q.Get("continue") == "more":
				return m{"items": l{run("mended", long, "", verdict(long, "False"), caused(later, "True")), run("broke", long, "", verdict(long, "True"), caused(last, "False"))}}
			case strings.HasPrefix(selector, "verified=Unsigned,"):
				return m{"items": l{run("ended", long, last, verdict(long, "Unsigned"))}}
			}
			return m{}
		},
		"GET " + summaryPath:         m{"overwritten": 1, "overwrittenTags": l{m{"reference": "r.io/moved:v1", "since": later, "message": "it led to a"}}},
		"GET " + clustersPath:        m{"items": l{m{"metadata": m{"name": ownCluster}}, m{"metadata": m{"name": "prod"}, "status": m{"conditions": l{m{"type": "Reachable", "status": "True", "lastTransitionTime": last}}}}}},
		"GET " + clusterPoliciesPath: m{"items": l{m{"metadata": m{"name": "team"}, "status": m{"conditions": l{m{"type": "Satisfiable", "status": "False", "message": "its key is weak", "lastTransitionTime": early}}}}}},
		"GET " + policiesPath:        m{},
		"GET " + spoolPath:           m{"jobs": l{m{"key": "r.io/failed:v1", "error": "denied", "enqueued": last}}},
	}
}

// What Attention gained and lost is shown with its time, the newest first, also as a feed.
func TestWhatChanged(t *testing.T) {
	answers := changedAnswers()
	b := newBrowser(t, answers)
	if w := b.do("GET", feedPath, nil); w.Code != http.StatusUnauthorized || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("a feed reader without a token gets %d %q", w.Code, w.Header().Get("WWW-Authenticate"))
	}
	token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer good") }
	w := b.do("GET", feedPath, nil, token)
	var got feed
	if err := xml.Unmarshal(w.Body.Bytes(), &got); err != nil || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/atom+xml") {
		t.Fatalf("the feed is %s, %v: %s", w.Header().Get("Content-Type"), err, w.Body)
	}
	var entries, ids []string
	for _, e := range got.Entries {
		entries, ids = append(entries, e.Title+" ("+e.Summary+")"), append(ids, e.ID)
	}
	want := []string{
		"New: Deployment/broke runs r.io/broke:v1 (prod / shop, main: Not verified (the policy ours changed))", "Over: Deployment/ended no longer runs r.io/ended:v1 (prod / shop, main: Unsigned)",
		"Over: The cluster prod can be reached ()", "New: The import of r.io/failed:v1 failed (denied)",
		"Over: Deployment/mended runs r.io/mended:v1 (prod / shop, main: Not verified before, now Verified (the policy ours changed))", "New: The tag r.io/moved:v1 moved and must not (it led to a)",
		"New: Deployment/began runs r.io/began:v1 (prod / shop, main: Not verified)", "New: The policy team does nothing (its key is weak)",
	}
	if !slices.Equal(entries, want) || got.Subtitle != "" || got.Updated.Format(time.RFC3339) != at {
		t.Errorf("the feed of %s has %q, want %q; %q is not known", got.Updated, entries, want, got.Subtitle)
	}
	if got.Entries[0].Link.Href != "/console/running?cluster=prod&namespace=shop&pod=broke" {
		t.Errorf("an entry leads to %s", got.Entries[0].Link.Href)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != len(want) {
		t.Error("two entries share an ID")
	}
	b.clock.SetTime(b.clock.Now().Add(time.Hour))
	var again feed
	if err := xml.Unmarshal(b.do("GET", feedPath, nil, token).Body.Bytes(), &again); err != nil || again.ID != got.ID || len(again.Entries) == 0 || !slices.Contains(ids, again.Entries[0].ID) {
		t.Errorf("a later feed has other IDs: %v", err)
	}

	b.signIn("good")
	body := b.do("GET", Root+"changes", nil).Body.String()
	for _, want := range []string{"Deployment/ended no longer runs r.io/ended:v1", `href="/console/changes?days=7"`, `<link rel="alternate" type="application/atom+xml"`, "tidewaiter ran --from 2026-10-31T09:00:00Z --verified False"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	if body := b.do("GET", Root+"changes?days=9999", nil).Body.String(); !strings.Contains(body, "in 7 days") {
		t.Errorf("of more days than are kept the page says\n%s", body)
	}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, `href="/console/changes"`) {
		t.Error("the first page does not lead there")
	}
}

// What is not known of that time is said, on the page and in the feed.
func TestWhatChangedIsUnknown(t *testing.T) {
	answers := changedAnswers()
	answers["GET "+runsPath] = warned{"the cluster prod could not be seen", m{}}
	answers["GET "+summaryPath], answers["GET "+spoolPath] = m{}, http.StatusForbidden
	b := newBrowser(t, answers)
	b.signIn("good")
	body, feed := b.do("GET", Root+"changes", nil).Body.String(), b.do("GET", feedPath, nil).Body.String()
	for _, want := range []string{"the cluster prod could not be seen", "The tags have not all been read yet", "You may not see which imports failed"} {
		if !strings.Contains(body, want) || !strings.Contains(feed, want) {
			t.Errorf("the page or the feed lacks %q:\n%s\n%s", want, body, feed)
		}
	}
	answers["GET "+clustersPath], answers["GET "+clusterPoliciesPath] = m{}, m{}
	if body := b.do("GET", Root+"changes", nil).Body.String(); !strings.Contains(body, "No change is known") {
		t.Errorf("without changes the page says\n%s", body)
	}
}

// The browser has the head of the page while the changes are read; what fails after that is the
// content, and a session whose token is refused meanwhile ends.
func TestWhatChangedBeginsAtOnce(t *testing.T) {
	answers := changedAnswers()
	b := newBrowser(t, answers)
	b.signIn("good")
	var had string
	w := httptest.NewRecorder()
	answers["GET "+summaryPath] = func(url.Values) any {
		had = w.Body.String()
		return m{}
	}
	r := httptest.NewRequest(http.MethodGet, "https://console.example"+Root+"changes", nil)
	r.TLS = &tls.ConnectionState{}
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	b.console.ServeHTTP(w, r)
	if !strings.Contains(had, "<nav") || strings.Contains(had, "<h1>") || !strings.Contains(w.Body.String(), "<h1>What changed</h1>") || strings.Count(w.Body.String(), "<!doctype") != 1 {
		t.Errorf("while the changes are read, the browser has\n%s\nand then\n%s", had, w.Body)
	}
	if whole := b.do("GET", Root+"changes", nil, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") }); whole.Header().Get("Content-Encoding") != "gzip" || !strings.Contains(unzipped(t, whole.Body), "<h1>What changed</h1>") {
		t.Errorf("compressed it is %v", whole.Header())
	}
	answers["GET "+runsPath] = http.StatusUnauthorized
	if w := b.do("GET", Root+"changes", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "You were signed out") || strings.Count(w.Body.String(), "<!doctype") != 1 {
		t.Errorf("with a token that is refused meanwhile: %d\n%s", w.Code, w.Body)
	}
	if w := b.do("GET", Root+"changes", nil); w.Code != http.StatusSeeOther {
		t.Errorf("the session goes on: %d", w.Code)
	}
}

func unzipped(t *testing.T, body io.Reader) string {
	t.Helper()
	zip, err := gzip.NewReader(body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
