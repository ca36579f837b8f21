package console

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// m and l are JSON objects and lists.
type (
	m = map[string]any
	l = []any
)

const (
	digestA = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	digestB = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	at      = "2026-11-01T07:00:00Z"
)

// hostileAnswers are answers in which every text that a stranger may choose is hostile.
func hostileAnswers() map[string]any {
	condition := l{m{"type": "Trusted", "status": "False", "reason": hostile, "message": hostile}, m{"type": hostile, "status": "True"}}
	verdict := m{"reference": hostile, "verified": "False", "policies": l{hostile}, "missing": l{hostile}, "spared": l{hostile}, "reason": hostile, "message": hostile, "signers": l{hostile}}
	answer := m{
		"question": m{"reference": hostile}, "state": "Found", "message": hostile,
		"meaning": m{
			"reference": hostile, "repository": hostile, "tag": hostile, "digest": digestA, "platform": hostile, "repositories": l{hostile}, "tags": l{hostile}, "assumed": l{hostile},
			"platforms": l{m{"platform": hostile, "digest": hostile}}, "indexes": l{hostile}, "formerTags": l{m{"reference": hostile, "since": at, "until": at, "now": hostile}}, "artifactType": hostile,
		},
		"checked": m{"registry": "Present", "by": hostile, "failing": hostile, "failingSince": at, "lastChecked": at, "overwritten": m{"message": hostile, "since": at}}, "verdict": verdict, "verdicts": l{verdict},
		"running":  m{"pods": 3, "outdated": 1, "names": l{hostile + "/" + hostile + "/" + hostile, hostile}, "clusters": l{m{"cluster": hostile, "namespace": hostile, "pods": 3}}, "outdatedImages": l{m{"digest": hostile, "pods": 1}}},
		"base":     m{"reference": hostile, "digest": hostile, "now": hostile, "outdated": "True", "message": hostile},
		"neededBy": l{hostile}, "previous": l{m{"digest": hostile, "since": at, "by": hostile}}, "unknowns": l{m{"part": hostile, "reason": hostile}},
	}
	metadata := m{"name": hostile, "namespace": hostile, "creationTimestamp": at, "annotations": m{"tidewaiter.dev/by": `["<script>alert(3)</script>"]`, "tidewaiter.dev/policy-file": hostile}}
	columns := l{}
	cells := l{}
	for _, name := range []string{"Name", "Repository", "Verdict", "Size", "Platform", "Signer", "Pods", "Outdated", "Created", "Tags"} {
		columns, cells = append(columns, m{"name": name}), append(cells, hostile)
	}
	return map[string]any{
		"GET " + imagesPath:   m{"columnDefinitions": columns, "rows": l{m{"cells": cells, "object": m{"metadata": metadata}}}, "items": l{m{"metadata": metadata}}},
		"POST " + reviewsPath: echoed(func(n int) any { return m{"status": m{"asOf": at, "references": slices.Repeat(l{answer}, n)}} }),
		"GET " + imagesPath + "/" + digestA: m{
			"metadata": metadata, "dockerImageManifestMediaType": hostile, "dockerImageConfig": `{"history":[{"created_by":"<script>alert(4)</script>"}]}`,
			"dockerImageMetadata": m{"Architecture": hostile, "Size": 7, "Config": m{"User": hostile, "Env": l{hostile}, "Cmd": l{hostile}, "Entrypoint": l{hostile}, "WorkingDir": hostile, "Labels": m{hostile: hostile}, "ExposedPorts": m{hostile: m{}}, "Volumes": m{hostile: m{}}}},
			"dockerImageLayers":   l{m{"name": hostile, "size": 5}},
			"signatures":          l{m{"type": hostile, "conditions": condition, "signedClaims": m{hostile: hostile}, "issuedTo": m{"commonName": hostile, "publicKeyID": hostile}}},
		},
		"GET " + packagesPath + "/" + digestA: m{"sources": l{m{"packages": l{m{"name": hostile, "version": hostile, "purl": hostile, "license": hostile}}}}},
		"POST " + impactPath: m{"status": m{"summary": m{"images": 1, "unlisted": 1}, "unknowns": l{m{"part": hostile, "reason": hostile}}, "rows": l{m{
			"reference": hostile, "namespace": hostile, "effect": hostile, "neededBy": l{hostile}, "packages": l{m{"name": hostile, "version": hostile, "vouched": hostile, "unknown": hostile}},
			"statements": l{m{"vulnerability": hostile, "status": hostile, "author": hostile}}, "advisories": l{m{"id": hostile, "fixed": hostile, "fixedBy": hostile, "package": m{"name": hostile, "vouched": "True", "vouchedBy": hostile}}}}}}},
		"GET " + packagesPath: m{"items": l{m{"sources": l{m{"count": 1, "type": hostile, "format": hostile, "index": hostile, "problem": hostile, "statements": l{m{"vulnerability": hostile, "status": hostile, "justification": hostile}}}}}}},
		"GET " + tagsPath: m{"items": l{m{"metadata": metadata, "spec": m{"name": hostile, "from": m{"kind": "DockerImage", "name": hostile}},
			"status": m{"items": l{m{"created": at, "image": hostile}, m{"created": at, "image": hostile}}, "conditions": l{m{"type": "ImportSuccess", "status": "False", "reason": hostile, "message": hostile}}}}}},
		"GET " + podsPath: m{"items": l{m{"metadata": metadata, "spec": m{"cluster": hostile, "namespace": hostile, "name": hostile, "since": at, "containers": l{m{
			"name": hostile, "image": hostile, "digest": hostile, "verified": hostile, "waiting": hostile, "notImported": hostile, "outdated": hostile}}}}}},
		"GET " + runsPath: m{"items": l{m{"metadata": metadata, "spec": m{"cluster": hostile, "workload": hostile, "container": hostile, "image": hostile, "digest": hostile, "from": at}, "status": m{"until": at, "mostPods": 2, "verdictsDropped": 1,
			"verdicts": l{m{"since": at, "verified": hostile, "reason": hostile}, m{"since": at, "verified": hostile, "signers": l{hostile}, "cause": hostile}}, "unseen": l{m{"from": at, "until": at}}}}}},
		"GET " + clustersPath:        m{"items": l{m{"metadata": metadata, "status": m{"conditions": l{m{"type": "Reachable", "status": "False", "message": hostile, "lastTransitionTime": at}}}}}},
		"GET " + clusterPoliciesPath: m{"items": l{m{"metadata": metadata, "spec": m{"scopes": l{hostile}, "policy": m{"rootOfTrust": m{"policyType": hostile}}}, "status": m{"conditions": l{m{"type": "Applied", "status": "False", "message": hostile}}}}}},
		"GET " + policiesPath:        m{},
		"GET " + summaryPath:         m{"imagesAsOf": at, "images": 3, "verified": m{hostile: 3}, "layerBytes": 100, "distinctLayerBytes": 60, "pushesAsOf": at, "pushes": l{m{"date": hostile, "tags": 3}}},
		"GET " + verificationPath:    m{"sweep": 4, "running": true, "total": 8, "examined": 2},
		"GET " + eventsPath:          m{"metadata": m{"resourceVersion": "7"}, "items": l{m{"metadata": metadata, "involvedObject": m{"kind": hostile, "name": hostile}, "reason": hostile, "message": hostile, "type": "Warning", "lastTimestamp": at}}},
		"GET " + receiversPath:       m{"receivers": l{m{"name": hostile, "type": hostile, "lastHeard": at, "lastRefused": at, "refused": hostile}}},
		"POST " + reviewPath:         m{"status": m{"allowed": true}},
		"GET " + spoolPath:           m{"jobs": l{m{"id": 3, "key": hostile, "receiver": hostile, "state": "dead", "error": hostile, "enqueued": at}}},
	}
}

// fullAnswers are those of a server with much to show: lists of the length that a page reads, with
// digests that differ.
func fullAnswers() map[string]any {
	digest := func(i int) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, i))) }
	many := func(n int, one func(i int) any) (all l) {
		for i := range n {
			all = append(all, one(i))
		}
		return all
	}
	columns := l{}
	for _, name := range []string{"Name", "Repository", "Verdict", "Size", "Platform", "Signer", "Pods", "Outdated", "Created", "Tags"} {
		columns = append(columns, m{"name": name})
	}
	names := many(20, func(i int) any { return fmt.Sprintf("prod/team-%d/app-%.8x", i, sha256.Sum256(fmt.Append(nil, i))) })
	meaning := m{"reference": "r.io/team/app:v1", "repository": "r.io/team/app", "tag": "v1", "digest": digestA, "repositories": l{"r.io/team/app"}, "tags": l{"r.io/team/app:v1"}}
	verdict := m{"reference": "r.io/team/app:v1", "verified": "True", "policies": l{"team"}, "signers": l{"release@example.com"}, "reason": "Verified"}
	answer := m{"state": "Found", "question": m{"reference": "r.io/team/app:v1"}, "meaning": meaning, "verdict": verdict, "running": m{"pods": 300, "names": names}}
	answers := map[string]any{
		"GET " + policiesPath: m{}, "GET " + verificationPath: m{"sweep": 4, "running": true, "total": 8, "examined": 2}, "POST " + reviewPath: m{"status": m{"allowed": true}},
		"GET " + clustersPath:  m{"items": many(20, func(i int) any { return m{"metadata": m{"name": fmt.Sprint("cluster-", i)}, "status": m{"pods": i}} })},
		"GET " + summaryPath:   m{"imagesAsOf": at, "layerBytes": 100, "distinctLayerBytes": 60, "pushesAsOf": at, "pushes": many(7, func(i int) any { return m{"date": "2026-11-01", "tags": i} })},
		"GET " + receiversPath: m{"receivers": many(20, func(i int) any { return m{"name": fmt.Sprint("receiver-", i), "type": "zot", "lastHeard": at} })},
	}
	answers["GET "+imagesPath] = m{"metadata": m{"continue": "more"}, "columnDefinitions": columns, "rows": many(pageRows, func(i int) any {
		return m{"cells": l{digest(i), fmt.Sprintf("registry-%d.example.com/team-%d/application-%d", i%3, i%17, i), "True (2 of 3)", "77.4MB", "linux/amd64,linux/arm64", "release@example.com", "3", "1", at, "v1,v2,latest"}, "object": m{"metadata": m{"creationTimestamp": at}}}
	}), "items": many(pageRows, func(int) any { return m{"metadata": m{"creationTimestamp": at}} })}
	answers["GET "+imagesPath+"/"+digestA] = m{
		"dockerImageLayers": many(127, func(i int) any { return m{"name": digest(i), "size": 1 << 20 * i} }), "dockerImageConfig": `{"history":[]}`,
		"dockerImageMetadata": m{"Size": 7, "Config": m{"Env": many(50, func(i int) any { return fmt.Sprint("VARIABLE_", i, "=", digest(i)) }), "Labels": m{"a": digest(1), "b": digest(2)}}},
		"signatures": many(8, func(i int) any {
			return m{"type": "CosignSignature", "conditions": l{m{"type": "Trusted", "status": "True", "reason": "Verified", "message": digest(i)}}}
		}),
	}
	answers["POST "+reviewsPath] = echoed(func(n int) any {
		return m{"status": m{"asOf": at, "references": slices.Repeat(l{answer}, n)}}
	})
	answers["GET "+tagsPath] = m{"metadata": m{"continue": "more"}, "items": many(repositoryTags, func(i int) any {
		return m{"metadata": m{"name": fmt.Sprint(i)}, "spec": m{"name": fmt.Sprint("v", i), "from": m{"kind": "DockerImage", "name": fmt.Sprintf("r.io/team-%d/app:v%d", i%100, i)}},
			"status": m{"items": l{m{"created": at, "image": digest(i)}, m{"created": at, "image": digest(i + 1)}}}}
	})}
	answers["GET "+podsPath] = m{"metadata": m{"continue": "more"}, "items": many(pageRows, func(i int) any {
		return m{"spec": m{"cluster": "prod", "namespace": fmt.Sprint("team-", i), "name": fmt.Sprintf("app-%.8x-%.5x", sha256.Sum256(fmt.Append(nil, i)), i), "since": at, "containers": l{m{"name": "main", "image": fmt.Sprintf("r.io/team-%d/app:v1", i), "digest": digest(i), "verified": "True", "outdated": digest(i + 1)}}}}
	})}
	answers["GET "+eventsPath] = m{"metadata": m{"resourceVersion": "7"}, "items": many(pageRows, func(i int) any {
		return m{"involvedObject": m{"kind": "Image", "name": digest(i)}, "reason": "Imported", "message": fmt.Sprintf("r.io/team/app:v%d leads to %s", i, digest(i)), "lastTimestamp": at}
	})}
	answers["GET "+spoolPath] = m{"jobs": many(pageRows, func(i int) any {
		return m{"id": i, "key": fmt.Sprintf("r.io/team-%d/app:v1", i), "state": "dead", "error": "the registry answers 503: " + digest(i), "enqueued": at}
	})}
	answers["GET "+clusterPoliciesPath] = m{"items": many(100, func(i int) any {
		return m{"metadata": m{"name": fmt.Sprint("policy-", i)}, "spec": m{"scopes": l{fmt.Sprintf("r.io/team-%d", i)}}, "status": m{"conditions": l{m{"type": "Applied", "status": "True"}, m{"type": "CoversImages", "status": "True", "message": "7 images"}}}}
	})}
	return answers
}

// Whatever strangers wrote is text on every page.
func TestHostileTextIsText(t *testing.T) {
	b := newBrowser(t, hostileAnswers())
	b.signIn("good")
	q := url.QueryEscape(hostile)
	for _, path := range []string{"", "images", "image?ref=" + q, "repositories", "repository?name=" + q, "running", "running?at=" + at, "policies?try=" + q, "activity", "changes", "changes.atom", "images?verdict=" + q, "impact?package=" + q} {
		w := b.do("GET", Root+path, nil)
		if w.Code != http.StatusOK {
			t.Errorf("%q: %d %s", path, w.Code, w.Body)
			continue
		}
		body := w.Body.String()
		if path != "" && !strings.Contains(body, "&lt;script&gt;alert(1)") || strings.HasPrefix(path, "image?") && !strings.Contains(body, "Working folder</dt><dd><code>&lt;script") {
			t.Errorf("%q does not show the text:\n%s", path, body)
		}
		wantNoMarkup(t, body)
	}
	raw := b.do("GET", Root+"raw?digest="+digestA, nil)
	if raw.Code != http.StatusOK || raw.Header().Get("Content-Type") != "text/plain; charset=utf-8" || strings.ContainsAny(raw.Body.String(), "\u202e\x1b\u009b") {
		t.Errorf("raw: %d %v %q", raw.Code, raw.Header(), raw.Body)
	}
}

// No list that is refused looks empty, and the rest of its page is there.
func TestWhatIsRefusedIsSaid(t *testing.T) {
	answers := hostileAnswers()
	for path := range answers {
		if strings.HasPrefix(path, "GET ") {
			answers[path] = http.StatusForbidden
		}
	}
	b := newBrowser(t, answers)
	b.signIn("good")
	for path, want := range map[string][]string{
		"": {"Imports that failed, notifications that failed, registries that are away: unknown", "Unknown, for the same reason", "tidewaiter:cluster-viewer", "You may not list images"}, "images": {"You may not list images", "tidewaiter:image-viewer"}, "repositories": {"You may not list tags"},
		"running": {"You may not list clusters", "You may not list the pods", "tidewaiter:cluster-viewer"}, "running?at=" + at: {"You may not list what ran"}, "policies": {"You may not list policies", "tidewaiter:verifier"},
		"activity": {"You may not list events", "You may not see the queue", "tidewaiter:queue-viewer"},
	} {
		body := b.do("GET", Root+path, nil).Body.String()
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("%q does not say %q", path, text)
			}
		}
		for _, empty := range []string{"There are no images yet", "Nothing needs you", "There is no policy", "No tag is known", "No cluster"} {
			if strings.Contains(body, empty) {
				t.Errorf("%q says %q of what it may not see", path, empty)
			}
		}
	}
}

// What ran at a time is shown with its ends, gaps and verdicts, and the image's page says when it
// ran.
func TestWhatRan(t *testing.T) {
	answers := hostileAnswers()
	run := func(workload, until string, unseen ...any) m {
		status := m{"mostPods": 2, "verdicts": l{m{"since": at, "verified": "Unsigned", "reason": "NoSignature"}, m{"since": at, "verified": "True", "signers": l{"key a"}, "cause": "the policy ours changed"}}, "unseen": unseen}
		if until != "" {
			status["until"] = until
		}
		return m{"metadata": m{"namespace": "team"}, "spec": m{"cluster": "prod", "workload": workload, "container": "main", "image": "r.io/team/app:v1", "digest": digestA, "from": at}, "status": status}
	}
	answers["GET "+runsPath] = m{"metadata": m{"continue": "next"}, "items": l{run("Deployment/goes", ""), run("Deployment/over", "2026-11-01T09:00:00Z", m{"from": "2026-11-01T08:00:00Z", "until": "2026-11-01T09:00:00Z"})}}
	b := newBrowser(t, answers)
	b.signIn("good")
	for path, want := range map[string][]string{
		"running?at=2026-11-01T08:30&cluster=prod&pod=app&namespace=team": {"Deployment/goes", "and it runs", "until some time before", "not seen:", "at most 2 pods at once", "(the policy ours changed), signed by key a", "NoSignature", `value="2026-11-01T08:30"`, "continue=next", "tidewaiter ran --at 2026-11-01T08:30:00Z"},
		"running?at=tuesday":                           {"tuesday is not a time"},
		"image?ref=" + digestA:                         {"When it ran", "Deployment/over", "until some time before", "It ran at other times, too", "tidewaiter ran " + digestA, "Verified from 1 November 2026, 07:00:00 UTC until now", "Not seen from 1 November 2026, 08:00:00 UTC until", `fill="url(#p-unseen)"`, "Striped: the cluster could not be seen"},
		"running?cluster=prod&namespace=team&pod=over": {"What it ran over time", "Verified from 1 November 2026, 07:00:00 UTC until now", `>` + short(digestA) + `</a> <span class="by">main</span>`},
	} {
		body := b.do("GET", Root+path, nil).Body.String()
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("%q does not say %q:\n%s", path, text, body)
			}
		}
		wantNoMarkup(t, body)
	}
	if w := b.do("GET", Root+"running?at=2026-11-01T08:30&cluster=prod&pod=app&namespace=team", nil); w.Code != http.StatusOK {
		t.Errorf("%d", w.Code)
	}
	if last := b.api.asked[len(b.api.asked)-1]; last.URL.Query().Get("fieldSelector") != "at=2026-11-01T08:30:00Z,cluster=prod,namespace=team,workload=app" {
		t.Errorf("asked for %s", last.URL)
	}
}

func TestEmptyPagesSayWhatToDo(t *testing.T) {
	answers := map[string]any{"GET " + verificationPath: m{}}
	for path := range hostileAnswers() {
		if path != "GET "+imagesPath+"/"+digestA {
			answers[path] = m{"metadata": m{"resourceVersion": "1"}}
		}
	}
	answers["GET "+summaryPath] = m{"usedAsOf": at, "gone": 0, "outdated": 0, "overwritten": 0}
	b := newBrowser(t, answers)
	b.signIn("good")
	for path, want := range map[string]string{
		"": "tidewaiter import", "images": "tidewaiter import", "images?verdict=True": "No image matches", "repositories": "tidewaiter import", "running": "tidewaiter serve --config", "running?at=" + at: "Nothing is known to have run then", "policies": "There is no policy", "activity": "Nothing waits", "compare": "Name two images",
	} {
		if w := b.do("GET", Root+path, nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q: %d, without %q", path, w.Code, want)
		}
	}
}

// A retry is made with the rights of whoever asks for it.
func TestQueue(t *testing.T) {
	answers := map[string]any{"POST " + spoolPath: m{"changed": 1}}
	b := newBrowser(t, answers)
	b.signIn("good")
	w := b.do("POST", Root+"queue", url.Values{"do": {"retry"}, "id": {"3"}})
	last := b.api.asked[len(b.api.asked)-1]
	if w.Code != http.StatusSeeOther || last.URL.RawQuery != "do=retry&id=3" || last.Header.Get("Authorization") != "Bearer good" {
		t.Errorf("retry: %d, asked %s", w.Code, last.URL)
	}
	answers["POST "+spoolPath] = http.StatusForbidden
	if w := b.do("POST", Root+"queue", url.Values{"do": {"drop"}, "id": {"3"}}); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "tidewaiter:queue-operator") {
		t.Errorf("without the right: %d %s", w.Code, w.Body)
	}
	if w := b.do("POST", Root+"queue", url.Values{"do": {"eat"}, "id": {"3"}}); w.Code != http.StatusBadRequest {
		t.Errorf("another verb: %d", w.Code)
	}
	if w := b.do("GET", Root+"queue?do=drop&id=3", nil); w.Code == http.StatusSeeOther && w.Header().Get("Location") != Root+"sign-in" {
		t.Errorf("a link drops a push: %d", w.Code)
	}
}

// An export has no cell that a spreadsheet takes for a formula.
func TestExport(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + podsPath: m{"items": l{m{"spec": m{"cluster": "prod", "name": "=HYPERLINK(1)", "since": at, "containers": l{m{"name": "a,b", "image": "-x"}}}}}}})
	b.signIn("good")
	w := b.do("GET", Root+"running.csv", nil)
	rows, err := csv.NewReader(w.Body).ReadAll()
	if err != nil || len(rows) != 2 || rows[1][2] != "'=HYPERLINK(1)" || rows[1][3] != "a,b" || rows[1][4] != "'-x" {
		t.Errorf("%v %q", err, rows)
	}
}

// An export says what is not known of all pods, in rows that have nothing else.
func TestExportSaysWhatIsNotKnown(t *testing.T) {
	const away = "=cluster edge is away"
	b := newBrowser(t, map[string]any{"GET " + podsPath: warned{away, m{"items": l{m{"spec": m{"cluster": "prod", "name": "web", "since": at, "containers": l{m{"name": "a"}}}}}}}})
	b.signIn("good")
	rows, err := csv.NewReader(b.do("GET", Root+"running.csv", nil).Body).ReadAll()
	if err != nil || len(rows) != 3 || strings.Join(rows[1], "") != "'"+away || rows[1][slices.Index(rows[0], "unknown")] != "'"+away || rows[2][2] != "web" {
		t.Errorf("%v %q", err, rows)
	}
}

// An export of several pages has all of them, and a turn for each; one that fails is not whole.
func TestExportOfPages(t *testing.T) {
	pod := l{m{"spec": m{"name": "a", "containers": l{m{"name": "b"}}}}}
	var last any = m{"items": pod}
	b := newBrowser(t, map[string]any{"GET " + podsPath: func(q url.Values) any {
		if q.Get("continue") == "2" {
			return last
		}
		return m{"items": pod, "metadata": m{"continue": "2"}}
	}})
	b.signIn("good")
	w := b.do("GET", Root+"running.csv", nil)
	if rows, err := csv.NewReader(w.Body).ReadAll(); err != nil || len(rows) != 3 {
		t.Errorf("%v %q", err, rows)
	}
	last = http.StatusForbidden
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("an export that fails ends with %v", p)
		}
	}()
	b.do("GET", Root+"running.csv", nil)
}

// A page of an export that has too much text, or too long an answer, is read in parts.
func TestExportOfLargePods(t *testing.T) {
	for name, size := range map[string]int{"text": 300, "answer": 700} {
		t.Run(name, func(t *testing.T) {
			image := strings.Repeat("a", size)
			var containers l
			for range 100 {
				containers = append(containers, m{"name": "c", "image": image})
			}
			const pods = 400
			b := newBrowser(t, map[string]any{"GET " + podsPath: func(q url.Values) any {
				after, _ := strconv.Atoi(q.Get("continue"))
				limit, _ := strconv.Atoi(q.Get("limit"))
				var items l
				for range min(limit, pods-after) {
					items = append(items, m{"spec": m{"name": "p", "containers": containers}})
				}
				page := m{"items": items}
				if after += len(items); after < pods {
					page["metadata"] = m{"continue": strconv.Itoa(after)}
				}
				return page
			}})
			b.signIn("good")
			w := b.do("GET", Root+"running.csv", nil)
			if rows, err := csv.NewReader(w.Body).ReadAll(); err != nil || len(rows) != 1+100*pods {
				t.Errorf("%v, %d rows", err, len(rows))
			}
		})
	}
}

// What happens is told to a page that is open, from where the page began, and ends with the
// browser.
func TestLive(t *testing.T) {
	more := make(chan string)
	ended := make(chan struct{})
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == whoAmIPath {
			fmt.Fprint(w, `{"metadata":{"name":"ann"}}`)
			return
		}
		if q := r.URL.Query(); q.Get("watch") != "true" || q.Get("resourceVersion") != "7" {
			t.Errorf("the API was asked for %s", r.URL)
		}
		if !strings.Contains(string(debug.Stack()), "(*visit).live(") {
			t.Error("the watch has a goroutine besides the page's")
		}
		defer close(ended)
		for {
			select {
			case line := <-more:
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	server := httptest.NewServer(New(api, Options{}))
	defer server.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+Root+"activity/live?after=7", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	go func() {
		more <- `{"type":"ADDED","object":{"metadata":{"resourceVersion":"8"},"reason":"PushReceived","message":"<script>x</script>"}}`
	}()
	lines := bufio.NewScanner(response.Body)
	seen := ""
	for lines.Scan() && !strings.Contains(seen, "</tr>") {
		seen += lines.Text() + "\n"
	}
	if !strings.Contains(seen, "id: 8\nevent: row\ndata: <tr>") || !strings.Contains(seen, "&lt;script&gt;x") {
		t.Errorf("the page was told\n%s", seen)
	}
	stop()
	<-ended
}

// A person has at most maxOpen live pages. One more gets 429 until one of them is closed; other
// people have their own.
func TestLivePagesOfOnePerson(t *testing.T) {
	watched := make(chan struct{})
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == whoAmIPath {
			fmt.Fprintf(w, `{"metadata":{"name":%q}}`, r.Header.Get("Authorization"))
			return
		}
		watched <- struct{}{}
		<-r.Context().Done()
	})
	c := New(api, Options{})
	ask := func(ctx context.Context, person string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequestWithContext(ctx, http.MethodGet, Root+livePath+"?after=7", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", person)
		c.ServeHTTP(w, r)
		return w
	}
	var pages sync.WaitGroup
	open := func(person string) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		pages.Go(func() {
			defer close(ended)
			ask(ctx, person)
		})
		<-watched
		return func() {
			cancel()
			<-ended
		}
	}
	var all []func()
	for range maxOpen {
		all = append(all, open("ann"))
	}
	if w := ask(t.Context(), "ann"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "close one of them") {
		t.Errorf("a page too many: %d %v %s", w.Code, w.Header(), w.Body)
	}
	all = append(all, open("bob"))
	all[0]()
	all = append(all[1:], open("ann"))
	for _, leave := range all {
		leave()
	}
	pages.Wait()
}

// Signing out ends the live pages of that session, also one that somebody has opened with a copy of
// its cookies, and of no other session.
func TestSigningOutEndsLivePages(t *testing.T) {
	watched := make(chan struct{})
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == whoAmIPath {
			fmt.Fprint(w, `{"metadata":{"name":"ann"}}`)
			return
		}
		watched <- struct{}{}
		<-r.Context().Done()
	})
	c := New(api, Options{})
	left, other := jar{}.signIn(t, c.sessions, "good"), jar{}.signIn(t, c.sessions, "good")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	open := func(j jar) chan struct{} {
		r := j.request().WithContext(ctx)
		r.URL.Path, r.URL.RawQuery = Root+livePath, "after=7"
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-watched
		return ended
	}
	first, copied, others := open(left), open(left), open(other)
	r := left.request()
	r.Method, r.URL.Path = http.MethodPost, Root+"sign-out"
	c.ServeHTTP(httptest.NewRecorder(), r)
	<-first
	<-copied
	if ctx.Err() != nil {
		t.Fatal("the pages went on after their session had ended")
	}
	select {
	case <-others:
		t.Error("the live page of another session has ended, too")
	default:
	}
	late, done := c.sessions.follow(ctx, c.sessions.find(other.request()))
	done()
	if late.Err() == nil {
		t.Error("a page that was served goes on")
	}
	gone := &session{}
	for id := range c.sessions.ended {
		gone.ID = id
	}
	if late, done := c.sessions.follow(ctx, gone); late.Err() == nil {
		t.Error("a page begins whose session has just ended")
	} else {
		done()
	}
	stop()
	<-others
	if len(c.sessions.live) != 0 {
		t.Errorf("%d sessions are remembered without a page", len(c.sessions.live))
	}
}

func TestWatchThatIsRefused(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + eventsPath: http.StatusForbidden})
	b.signIn("good")
	c := &caller{api: b.api, from: httptest.NewRequest("GET", Root, nil), token: "good"}
	err := c.watch(t.Context(), eventsPath, url.Values{}, asJSON, noTurn{}, func([]byte) error { return nil })
	if !isCode(err, http.StatusForbidden) {
		t.Errorf("%v", err)
	}
}

// BenchmarkPages is the server's time to a whole page with a full list, without that of the API.
func BenchmarkPages(b *testing.B) {
	rows := l{}
	for i := range pageRows {
		rows = append(rows, m{"cells": l{fmt.Sprintf("sha256:%064d", i), "registry.example.com/team/app", "True", "7.74kB", "linux/amd64", "release@example.com", "3", "0", at, "v1"}})
	}
	columns := l{}
	for _, name := range []string{"Name", "Repository", "Verdict", "Size", "Platform", "Signer", "Pods", "Outdated", "Created", "Tags"} {
		columns = append(columns, m{"name": name})
	}
	api := &stubAPI{answers: map[string]any{"GET " + imagesPath: m{"columnDefinitions": columns, "rows": rows}}, tokens: map[string]string{"good": "ann"}}
	c := New(api, Options{})
	for b.Loop() {
		r := httptest.NewRequest("GET", Root+"images", nil)
		r.Header.Set("Authorization", "Bearer good")
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, r); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
		api.asked = nil
	}
}

// A browser that comes back too late goes on from now, and is told that it may have missed
// something.
func TestLiveAfterTooLong(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var from []string
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case r.URL.Path == whoAmIPath:
			fmt.Fprint(w, `{"metadata":{"name":"ann"}}`)
		case q.Get("watch") == "":
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"90"}}`)
		case len(from) == 0:
			from = append(from, q.Get("resourceVersion"))
			fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}`)
		default:
			from = append(from, q.Get("resourceVersion"))
			fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"91"}}}`)
		}
	})
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, Root+"activity/live?after=1", nil)
	r.Header.Set("Authorization", "Bearer good")
	r.Header.Set("Last-Event-Id", "7")
	w := httptest.NewRecorder()
	New(api, Options{}).ServeHTTP(w, r)
	if got := w.Body.String(); strings.Join(from, " ") != "7 90" || !strings.Contains(got, "id: 90\nevent: row\ndata: <tr>") || !strings.Contains(got, "may have been missed") || !strings.HasSuffix(got, "id: 91\nevent: bookmark\ndata: \n\n") {
		t.Errorf("it was watched from %q, and told\n%s", from, got)
	}
}
