package console

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// The images by verdict are told as the server counted them last, and the rest of what the
// server knows is on the first page.
func TestAttention(t *testing.T) {
	metadata := m{"creationTimestamp": at}
	b := newBrowser(t, map[string]any{
		"GET " + imagesPath: m{"metadata": m{"continue": "more", "remainingItemCount": 4899}, "items": l{m{"metadata": metadata}, m{"metadata": metadata}}},
		"GET " + summaryPath: m{
			"imagesAsOf": "2026-11-01T07:30:00Z", "images": 4901, "verified": m{"False": 1234, "True": 3667}, "layerBytes": 4000000, "distinctLayerBytes": 1000000, "estimated": true,
			"usedAsOf": "2026-11-01T07:55:00Z", "used": m{"False": 3, "True": 4000}, "outdated": 5, "overwritten": 1, "overwrittenTags": l{m{"reference": "r.io/a:v1", "since": "2026-10-29T08:00:00Z", "message": "r.io/a:v1 must not move"}}, "gone": 2, "goneSince": "2026-10-30T08:00:00Z",
			"lostRegistries": l{m{"registry": "lost.io", "repositories": 720, "of": 720, "since": "2026-10-28T08:00:00Z", "message": "lost.io has nothing in 720 of 720 repositories"}},
			"pushesAsOf":     "2026-11-01T07:59:00Z", "pushes": l{m{"date": "2026-10-31", "tags": 4}, m{"date": "2026-11-01", "tags": 0}},
			"certificates": l{m{"name": "--tls-cert-file", "subject": "CN=registry", "ends": "2026-11-13T08:00:00Z"}, m{"name": "pki/ca.crt", "ends": "2036-01-01T00:00:00Z"}, m{"name": "--client-ca-file", "unknown": "no such file"}},
		},
		"GET " + spoolPath: m{"jobs": l{m{"key": "r.io/a:1", "error": "timeout", "enqueued": at}, m{"key": "r.io/b:1", "error": "timeout", "enqueued": at}, m{"key": "s.io/b:1", "enqueued": at}}},
		"GET " + clusterPoliciesPath: m{"items": l{m{"metadata": m{"name": "soon"}, "status": m{"conditions": l{m{"type": "Satisfiable", "status": "True", "reason": "EndsSoon"}}}},
			m{"metadata": m{"name": "fine"}, "status": m{"conditions": l{m{"type": "Satisfiable", "status": "True", "reason": "Usable"}}}}}},
		"GET " + policiesPath: m{}, "GET " + podsPath: m{"metadata": m{"continue": "more"}, "items": l{m{"metadata": metadata}}},
		"GET " + clustersPath: m{"items": l{m{"status": m{"conditions": l{m{"type": "Reachable", "status": "True"}, m{"type": "Credential", "status": "True", "reason": "EndsSoon", "lastTransitionTime": at}}}}}},
	})
	b.signIn("good")
	body := b.do("GET", Root, nil).Body.String()
	for _, want := range []string{
		"4\u202f901 images known", `<span class="many">1` + "\u202f" + `234</span>`, "counted <time datetime=\"2026-11-01T07:30:00Z\"", `<span class="number">3` + "\u202f" + `667</span>`,
		"about 1 MB", "4 MB if each image had its own: 75&nbsp;% is shared", `<span title="2026-10-31">Sat</span><strong>4</strong>`, `height="72" rx="2"`,
		"Registries that are away", "Certificates and keys that end soon", "kubectl get --raw /tidewaiter/summary", "none, counted <time",
		`<code>r.io/a:v1</code></a> <span class="warn"><time datetime="2026-10-29T08:00:00Z"`, "r.io/a:v1 must not move", "tidewaiter accept r.io/a:v1",
		`<code>lost.io</code> <span class="warn"><time datetime="2026-10-28T08:00:00Z"`, "lost.io has nothing in 720 of 720 repositories",
		`<code>--tls-cert-file</code> <span class="warn">ends <time datetime="2026-11-13T08:00:00Z"`, "CN=registry",
		"counted <time datetime=\"2026-11-01T07:55:00Z\"", "the oldest <time datetime=\"2026-10-30T08:00:00Z\"",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the first page lacks %q", want)
		}
	}
	for title, many := range map[string]string{
		"Registries that are away": "1", "Certificates and keys that end soon": "1", "Runs and is not verified": "3", "Runs and is gone from its registry": "2",
		"Runs something else than its tag leads to": "5", "Access to clusters that ends soon": "1", "Certificates of this server that end soon": "1+", "Tags that moved and must not": "1", "Registries that may have lost their storage": "1",
	} {
		_, rest, _ := strings.Cut(body, "<strong>"+title+"<")
		if _, count, _ := strings.Cut(rest, `<span class="many">`); !strings.HasPrefix(count, many+"<") {
			t.Errorf("%s: %.3s, want %s", title, count, many)
		}
	}
}

// The images by verdict are from one count, with one date, and sum up to the headline, whatever
// changes while the page is made.
func TestAttentionSumsUp(t *testing.T) {
	seed := mathrand.Uint64()
	r := mathrand.New(mathrand.NewPCG(seed, 0))
	answers := map[string]any{
		"GET " + spoolPath: m{}, "GET " + clusterPoliciesPath: m{}, "GET " + policiesPath: m{}, "GET " + clustersPath: m{}, "GET " + podsPath: m{},
	}
	b := newBrowser(t, answers)
	b.signIn("good")
	number := func(text string) (n int) {
		text, _, _ = strings.Cut(text, "<")
		n, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSuffix(text, " images known"), "\u202f", ""))
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		return n
	}
	for range 30 {
		verified, all := m{}, 0
		for _, one := range looks {
			word := one.Value
			if r.IntN(3) > 0 {
				n := r.IntN(1 + []int{2, 200, 100_000}[r.IntN(3)])
				verified[word], all = n, all+n
			}
		}
		all += 2 // "1 image" is written otherwise
		verified["True"] = cmp.Or(verified["True"], any(0)).(int) + 2
		answers["GET "+summaryPath] = m{"imagesAsOf": at, "images": all, "verified": verified, "usedAsOf": at}
		answers["GET "+imagesPath] = m{"metadata": m{"remainingItemCount": r.IntN(5000)}, "items": l{m{"metadata": m{"creationTimestamp": at}}}}
		_, body, _ := strings.Cut(b.do("GET", Root, nil).Body.String(), `<p class="count">`)
		sum := 0
		for i, row := range strings.Split(body, `<span class="number">`) {
			if i == 0 {
				continue
			}
			sum += number(row)
		}
		if headline := number(body); headline != all || sum != all {
			t.Fatalf("seed %d: of %v the headline is %d, and the rows sum up to %d", seed, verified, headline, sum)
		}
		if _, panel, _ := strings.Cut(body, `id="h-shares"`); strings.Count(panel[:strings.Index(panel, "</section>")], "<time ") != 1 {
			t.Fatalf("seed %d: the panel does not have one date", seed)
		}
	}
}

// What is not known is not shown as none: what registries still have, or a list whose beginning has
// none of what is looked for.
func TestAttentionSaysWhatIsUnknown(t *testing.T) {
	answers := map[string]any{
		"GET " + imagesPath: m{}, "GET " + spoolPath: m{}, "GET " + clusterPoliciesPath: m{}, "GET " + policiesPath: m{}, "GET " + clustersPath: m{},
		"GET " + podsPath: m{"metadata": m{"continue": "more"}}, "GET " + summaryPath: m{},
	}
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root, nil).Body.String()
	for _, want := range []string{"Runs and is not verified, runs and is unsigned, runs and cannot be judged, runs and is gone from its registry, runs something else than its tag leads to: unknown", "being counted for the first time"} {
		if !strings.Contains(body, want) {
			t.Errorf("the first page lacks %q", want)
		}
	}
	if strings.Contains(body, "Nothing needs you") {
		t.Error("nothing needs somebody, although something is unknown")
	}
	if !slices.ContainsFunc(b.api.asked, func(r *http.Request) bool {
		return r.URL.RawQuery == "fieldSelector=signatures.verified%3DTrue&limit=10"
	}) {
		t.Error("before the first sweep has ended the page reads many images")
	}
	answers["GET "+summaryPath] = m{"usedAsOf": at, "used": m{"False": 3, "True": 4000}, "outdated": 0, "gone": 0, "goneUnknown": l{"r.io is away"}}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "r.io is away") {
		t.Errorf("with a registry that is away the first page is\n%s", body)
	} else if !strings.Contains(body, "Runs and is unsigned, runs and cannot be judged, runs and is gone from its registry, runs something else than its tag leads to: unknown") || !strings.Contains(body, `<span class="many">3+</span>`) {
		t.Errorf("while more may run the first page is\n%s", body)
	}
	answers["GET "+clustersPath] = m{"items": l{m{"metadata": m{"name": "prod"}, "status": m{"conditions": l{m{"type": "Reachable", "status": "True"}}}}}}
	answers["GET "+summaryPath], answers["GET "+imagesPath] = m{"usedAsOf": at, "outdated": 0, "overwritten": 0, "gone": 0}, m{"metadata": m{"remainingItemCount": 7}}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "Nothing needs you") {
		t.Errorf("with nothing wrong the first page is\n%s", body)
	}
	answers["GET "+summaryPath] = m{"usedAsOf": at, "used": m{"Unknown": 2, "True": 4000}, "outdated": 0, "overwritten": 0, "gone": 0}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "2 pods run images that cannot be judged.") || strings.Contains(body, "is in order") {
		t.Errorf("while something cannot be judged the first page is\n%s", body)
	}
	// A pod that names two images may be under both verdicts.
	answers["GET "+summaryPath] = m{"usedAsOf": at, "used": m{"False": 3, "Unsigned": 2, "True": 4000}, "outdated": 0, "overwritten": 0, "gone": 0}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "At least 3 pods run images that fail their policy.") {
		t.Errorf("with pods under two verdicts the first page is\n%s", body)
	}
	// Who may not read the summary sees what runs while that is little enough to be read for the
	// page.
	answers["GET "+summaryPath] = http.StatusForbidden
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "tidewaiter:summary-viewer") {
		t.Errorf("without the summary the first page is\n%s", body)
	}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "<h2>Runs and is not verified, runs and is unsigned, runs and cannot be judged, runs and is gone from its registry, runs something else than its tag leads to, tags that moved and must not, registries that may have lost their storage, certificates of this server that end soon: unknown") {
		t.Errorf("without the summary, where much runs, the first page is\n%s", body)
	}
	answers["GET "+podsPath] = m{}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "<h2>Runs and is gone from its registry, tags that moved and must not, registries that may have lost their storage, certificates of this server that end soon: unknown") || !strings.Contains(body, "<li>Runs and is not verified: ") {
		t.Errorf("without the summary, where little runs, the first page is\n%s", body)
	}
	if !slices.ContainsFunc(b.api.asked, func(r *http.Request) bool {
		return r.URL.Path == podsPath && r.URL.RawQuery == "fieldSelector=verified%3DFalse&limit=50"
	}) {
		t.Error("what runs is not asked for by what pods name")
	}
}

// A search finds more than references: tags, repositories, workloads, signers, packages and layers,
// and shows them first. It goes to the only one that has the text, and guesses no registry.
func TestSearch(t *testing.T) {
	answers := map[string]any{
		"POST " + reviewsPath: m{"status": m{"references": l{m{"state": "Absent", "question": m{"reference": "ann"}}}}},
		"GET " + imagesPath:   m{}, "GET " + podsPath: m{}, "GET " + tagsPath: m{}, "POST " + reviewPath: m{"status": m{}},
	}
	b := newBrowser(t, answers)
	b.signIn("good")
	search := func(text string) (to, page string) {
		t.Helper()
		w := b.do("GET", Root+"images?q="+url.QueryEscape(text), nil)
		return w.Header().Get("Location"), w.Body.String()
	}
	asked := func(path, selector string) {
		t.Helper()
		for _, r := range b.api.asked {
			if r.URL.Path == path && r.URL.Query().Get("fieldSelector") == selector {
				return
			}
		}
		t.Errorf("nobody asked for %s at %s", selector, path)
	}
	if to, page := search("ann"); to != "" || !strings.Contains(page, "is not a tag, digest, workload, signer or package that is known, nor a repository of a known tag") || strings.Contains(page, "Import ") {
		t.Errorf("what is nowhere leads to %q and %s", to, page)
	}
	asked(podsPath, "pod=ann")
	one := m{"items": l{m{"metadata": m{"creationTimestamp": at}}}}
	answers["GET "+imagesPath] = func(q url.Values) any {
		if strings.HasPrefix(q.Get("fieldSelector"), "package=ann") {
			return m{}
		}
		return one
	}
	if to, _ := search("ann@example.com"); to != Root+"images?signer=ann%40example.com" {
		t.Errorf("a signer leads to %q", to)
	}
	asked(imagesPath, "signatures.signer=ann@example.com")
	if to, _ := search(digestA[len("sha256:"):]); to != Root+"images?layer="+url.QueryEscape(digestA) {
		t.Errorf("a layer leads to %q", to)
	}
	asked(imagesPath, "layer="+digestA)
	asked(imagesPath, "package=ann@example.com")
	pod := m{"items": l{m{"spec": m{"cluster": "prod", "namespace": "shop", "name": "web-0", "workload": "StatefulSet/web"}}}}
	answers["GET "+imagesPath], answers["GET "+podsPath] = m{}, pod
	if to, _ := search("web-0"); to != Root+"running?cluster=prod&namespace=shop&pod=web" {
		t.Errorf("a pod leads to %q", to)
	}
	tag := m{"spec": m{"name": "1", "from": m{"kind": "DockerImage", "name": "r.io/team/web-0:1"}}}
	answers["GET "+tagsPath] = m{"items": l{tag}}
	if to, page := search("web-0"); to != "" || !strings.Contains(page, ">Workloads</a> <span class=\"count\">1<") || !strings.Contains(page, ">Repositories</a> <span class=\"count\">1<") || strings.Index(page, ">Workloads<") > strings.Index(page, "No image is named") {
		t.Errorf("a pod and a repository lead to %q and\n%s", to, page)
	}
	// A word may mean an image by its repository's last name. Whoever types it may mean a workload.
	absent := answers["POST "+reviewsPath]
	answers["POST "+reviewsPath] = m{"status": m{"references": l{m{"state": "Found", "question": m{"reference": "web-0"}, "meaning": m{"reference": "r.io/team/web-0:latest", "digest": digestA}}}}}
	if to, page := search("web-0"); to != "" || !strings.Contains(page, `“web-0” is also a name of <a href="/console/image?ref=web-0">r.io/team/web-0:latest</a>`) || !strings.Contains(page, ">Workloads</a>") {
		t.Errorf("a word that means an image leads to %q and\n%s", to, page)
	}
	for _, whole := range []string{"team/web-0", "web-0:1", digestA[len("sha256:"):][:12]} {
		if to, _ := search(whole); to != link("image", "ref", whole) {
			t.Errorf("%s leads to %q", whole, to)
		}
	}
	answers["POST "+reviewsPath] = absent
	// The beginning of a pod's name is found, too, and a tag wherever it is in the list of tags.
	answers["GET "+podsPath] = func(q url.Values) any {
		if q.Get("fieldSelector") != "named=we" {
			return m{}
		}
		return pod
	}
	answers["GET "+tagsPath] = func(q url.Values) any {
		if named := q.Get("fieldSelector"); !strings.HasPrefix(named, "named=") {
			t.Errorf("tags are asked for by %q", named)
		}
		if q.Get("continue") == "" {
			return m{"metadata": m{"continue": "more"}, "items": l{tag}}
		}
		return m{"items": l{m{"spec": m{"name": "we-1", "from": m{"kind": "DockerImage", "name": "s.io/shop:we-1"}}}}}
	}
	if to, page := search("we"); to != "" || !strings.Contains(page, ">web</a> <span class=\"quiet\">prod / shop, 1 pod<") || !strings.Contains(page, "ref=s.io%2Fshop%3Awe-1") {
		t.Errorf("parts of names lead to %q and\n%s", to, page)
	}
	if body := b.do("GET", Root+"repositories?q=SHOP", nil).Body.String(); !strings.Contains(body, "s.io/</span><wbr>shop") {
		t.Errorf("a repository on the second page of tags is not found:\n%s", body)
	}
	answers["POST "+reviewPath] = m{"status": m{"allowed": true}}
	answers["POST "+reviewsPath] = m{"status": m{"references": l{m{"state": "Absent", "question": m{"reference": "r.io/a:1"}, "meaning": m{"reference": "r.io/a:1"}}}}}
	if _, page := search("r.io/a:1"); !strings.Contains(page, "Import r.io/a:1") {
		t.Errorf("who names a registry may not import from it:\n%s", page)
	}
	if _, page := search("v1.54.6"); strings.Contains(page, "Import ") {
		t.Errorf("a registry is guessed:\n%s", page)
	}
	answers["POST "+reviewsPath] = m{"status": m{"references": l{m{"state": "Absent", "question": m{"reference": "ann"}}}}}
	answers["GET "+podsPath] = http.StatusForbidden
	if to, page := search("web-0"); to != "" || !strings.Contains(page, "unknown. You may not look for workloads") || !strings.Contains(page, "tidewaiter:cluster-viewer") {
		t.Errorf("who may not see pods is led to %q and\n%s", to, page)
	}
}

// While a person types, references, tags, repositories and workloads are found, in a fragment that
// a script puts below the search box. A letter alone finds nothing.
func TestSearchAsTyped(t *testing.T) {
	tags := l{}
	for _, name := range []string{"web", "shop"} {
		tags = append(tags, m{"spec": m{"name": "v1", "from": m{"kind": "DockerImage", "name": "r.io/team/" + name + ":v1"}}})
	}
	answers := map[string]any{
		"POST " + reviewsPath: m{"status": m{"references": l{m{"state": "Found"}}}}, "GET " + tagsPath: m{"items": tags},
		"GET " + podsPath: m{"items": l{m{"spec": m{"cluster": "prod", "namespace": "shop", "name": "web-0", "workload": "StatefulSet/web"}}}},
	}
	b := newBrowser(t, answers)
	if w := b.do("GET", typedPath+"?q=web", nil); w.Code != http.StatusUnauthorized {
		t.Errorf("without a session it is %d", w.Code)
	}
	b.signIn("good")
	asked := len(b.api.asked)
	if w := b.do("GET", typedPath+"?q=w", nil); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "<") || len(b.api.asked) > asked {
		t.Errorf("a letter finds %d %q", w.Code, w.Body)
	}
	body := b.do("GET", typedPath+"?q=web", nil).Body.String()
	for _, want := range []string{`<a href="/console/image?ref=web">`, "Repositories", `<a href="/console/repository?name=r.io%2Fteam%2Fweb">`, "Workloads", `<a href="/console/running?cluster=prod&amp;namespace=shop&amp;pod=web">`, `data-said="3 hits"`, `<a href="/console/images?q=web">`} {
		if !strings.Contains(body, want) {
			t.Errorf("what is found lacks %q:\n%s", want, body)
		}
	}
	if strings.Contains(body, "<html") || strings.Contains(body, "team/shop") {
		t.Errorf("what is found is\n%s", body)
	}
	answers["GET "+podsPath], answers["GET "+tagsPath], answers["POST "+reviewsPath] = http.StatusForbidden, m{"items": l{m{"spec": m{"from": m{"kind": "DockerImage", "name": hostile + "web:v1"}}}}}, http.StatusForbidden
	body = b.do("GET", typedPath+"?q=web", nil).Body.String()
	if !strings.Contains(body, "You may not look for workloads") || !strings.Contains(body, "&lt;script") {
		t.Errorf("who may not see pods finds\n%s", body)
	}
	wantNoMarkup(t, body)
	// Without a script the box leads to the page with the same results.
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, `action="/console/images"`) || !strings.Contains(body, `hx-get="`+typedPath+`"`) || !strings.Contains(body, `<div id="typed"></div>`) {
		t.Errorf("the search box is\n%s", body)
	}
}

// Of more images than a page has, the first in an order are those that the last sweep found.
func TestImagesAreSorted(t *testing.T) {
	row := func(name, size, pods, known string) m {
		return m{"cells": l{name, name, size, pods}, "object": m{"metadata": m{"creationTimestamp": known}}}
	}
	table := m{
		"columnDefinitions": l{m{"name": "Name"}, m{"name": "Repository"}, m{"name": "Size"}, m{"name": "Pods"}},
		"rows":              l{row("b", "<none>", "2+", "2026-11-01T07:00:00Z"), row("c", "9.9kB", "Unknown", "2026-11-01T06:00:00Z"), row("a", "1.2MB", "10", "2026-11-01T05:00:00Z")},
	}
	answers := map[string]any{"GET " + imagesPath: table, "GET " + summaryPath: m{"imagesAsOf": at, "first": l{"a", "c", "b"}}}
	b := newBrowser(t, answers)
	b.signIn("good")
	order := func(query string) (names, body string) {
		t.Helper()
		body = b.do("GET", Root+"images?"+query, nil).Body.String()
		for _, found := range regexp.MustCompile(`<code title="([abc])">`).FindAllStringSubmatch(body, -1) {
			names += found[1]
		}
		return names, body
	}
	for query, want := range map[string]string{"": "bca", "sort=date": "bca", "sort=name": "abc", "sort=size": "acb", "sort=pods": "abc"} {
		if got, _ := order(query); got != want {
			t.Errorf("%q has the order %s, want %s", query, got, want)
		}
	}
	table["metadata"] = m{"continue": "more"}
	if got, body := order(""); got != "acb" || !strings.Contains(body, "The first 3 of all, counted") || !strings.Contains(body, "summary?first=need") || !strings.Contains(body, `href="/console/images?sort=digest"`) {
		t.Errorf("by need they have the order %s and\n%s", got, body)
	}
	if got, body := order("sort=digest"); got != "bca" || !strings.Contains(body, "In the order of their digests") {
		t.Errorf("by digest they have the order %s", got)
	}
	got, body := order("sort=size")
	if last := b.api.asked[len(b.api.asked)-1].URL.Query().Get("fieldSelector"); got != "acb" || last != "digest=a|c|b" || !strings.Contains(body, "The first 3 of all, counted") || !strings.Contains(body, "summary?first=size") {
		t.Errorf("by size they have the order %s; asked for %s", got, last)
	}
	if got, body := order("sort=size&signer=ann"); got != "acb" || !strings.Contains(body, "Each page is sorted by itself") {
		t.Errorf("those that match have the order %s", got)
	}
	// What runs with a verdict is a matter of pods: the name that they use decides.
	for query, to := range map[string]string{
		"verdict=False&used=true": "running?verified=False", "verdict=False&cluster=prod/shop&repository=r.io/app": "running?cluster=prod&image=r.io%2Fapp&namespace=shop&verified=False",
	} {
		if got := b.do("GET", Root+"images?"+query, nil); got.Code != http.StatusSeeOther || got.Header().Get("Location") != Root+to {
			t.Errorf("%s leads to %d %s", query, got.Code, got.Header().Get("Location"))
		}
	}
	// Where the page Running lacks a filter, the API is asked, which says what answers instead.
	for _, query := range []string{"verdict=False&used=true&package=openssl", "verdict=False&used=false&cluster=prod"} {
		if got := b.do("GET", Root+"images?"+query, nil); got.Code != http.StatusOK {
			t.Errorf("%s leads to %d %s", query, got.Code, got.Header().Get("Location"))
		}
	}
	// With a verdict, the first that match are known.
	many := make(l, maxSorted+1)
	for i := range many {
		many[i] = fmt.Sprint("d", i)
	}
	many[0], many[1], many[2] = "c", "a", "b"
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "first": many, "verified": m{"True": len(many)}}
	got, body = order("sort=size&verdict=True")
	last := b.api.asked[len(b.api.asked)-1].URL.Query().Get("fieldSelector")
	if got != "cab" || !strings.HasPrefix(last, "digest=c|a|b|d3|") || !strings.HasSuffix(last, "|d99,signatures.verified=True") ||
		!strings.Contains(body, "of all that match, counted") || !strings.Contains(body, "summary?first=size&amp;verified=True") || !strings.Contains(body, `href="/console/images?from=100&amp;sort=size&amp;verdict=True"`) {
		t.Errorf("those that match have the order %s; asked for %s:\n%s", got, last, body)
	}
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "first": l{"c"}, "verified": m{"True": 3}}
	if got, _ := order("sort=pods&verdict=True"); got != "abc" {
		t.Errorf("few that match have the order %s", got)
	}
	many[0], many[1], many[2], many[pageRows], many[pageRows+1] = "d0", "d1", "d2", "c", "a"
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "first": many}
	got, body = order("sort=size&from=100")
	if !strings.HasSuffix(got, "ca") || !strings.Contains(body, "101 to 200 of all") || !strings.Contains(body, `href="/console/images?from=200&amp;sort=size"`) || !strings.Contains(body, `href="/console/images?sort=size"`) {
		t.Errorf("the second hundred has the order %s and\n%s", got, body)
	}
	answers["GET "+summaryPath] = m{"imagesAsOf": at}
	if got, body := order("sort=pods"); got != "bca" || !strings.Contains(body, "The order is not known") {
		t.Errorf("by what was not counted they have the order %s", got)
	}
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "first": l{digestA}}
	if _, body := order("sort=pods"); strings.Contains(body, "The order is not known") {
		t.Error("one image that is counted has no order")
	}
	answers["GET "+summaryPath] = http.StatusForbidden
	if _, body := order("sort=size"); !strings.Contains(body, "tidewaiter:summary-viewer") {
		t.Error("who may not see the summary is not told so")
	}
	if _, body := order("sort=size&signer=ann"); !strings.Contains(body, "More match than are sorted together") {
		t.Error("a choice without an order is offered")
	}
}

// Up to 500 images that match are sorted together, also in an order that nobody has counted. Pages
// of more are sorted by themselves.
func TestFewHundredImagesAreSorted(t *testing.T) {
	n := 0
	answers := map[string]any{"GET " + imagesPath: func(query url.Values) any {
		from, _ := strconv.Atoi(query.Get("continue"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		rows := make(l, 0, limit)
		for i := from; i < min(from+limit, n); i++ {
			rows = append(rows, m{"cells": l{fmt.Sprintf("sha256:%064x", i), fmt.Sprintf("%d.0MB", i*7%n+1)}, "object": m{"metadata": m{"creationTimestamp": at}}})
		}
		next := m{}
		if from+limit < n {
			next["continue"] = strconv.Itoa(from + limit)
		}
		return m{"metadata": next, "columnDefinitions": l{m{"name": "Name"}, m{"name": "Size"}}, "rows": rows}
	}}
	b := newBrowser(t, answers)
	b.signIn("good")
	page := func(query string) (sizes []int, body string) {
		t.Helper()
		body = b.do("GET", Root+"images?"+query, nil).Body.String()
		for _, found := range regexp.MustCompile(`data-label="Size" class="number">(\d+)\.0`).FindAllStringSubmatch(body, -1) {
			size, _ := strconv.Atoi(found[1])
			sizes = append(sizes, size)
		}
		return sizes, body
	}
	for _, tt := range []struct {
		n, from    int
		says       string
		next, back bool
	}{
		{100, 0, "", false, false},
		{250, 0, "The first 100 of all that match, sorted", true, false},
		{250, 100, "101 to 200 of all that match, sorted", true, true},
		{250, 200, "201 to 250 of all that match, sorted", false, true},
		{500, 400, "401 to 500 of all that match, sorted", false, true},
	} {
		n = tt.n
		sizes, body := page(fmt.Sprintf("sort=size&signer=ann&from=%d", tt.from))
		var want []int
		for i := n - tt.from; i > max(0, n-tt.from-pageRows); i-- {
			want = append(want, i)
		}
		if !slices.Equal(sizes, want) || !strings.Contains(body, tt.says) || strings.Contains(body, "More images") != tt.next || strings.Contains(body, "To the beginning") != tt.back || strings.Contains(body, "continue=") {
			t.Errorf("%d images from %d: %v\n%s", n, tt.from, sizes, body)
		}
	}
	// Where it is known that there are more, no more than a page is read.
	total := m{"metadata": m{"continue": "more", "remainingItemCount": 500}, "items": l{m{}}}
	table := answers["GET "+imagesPath].(func(url.Values) any)
	n = 501
	answers["GET "+imagesPath] = func(query url.Values) any {
		if query.Get("limit") == "1" {
			return total
		}
		return table(query)
	}
	before := len(b.api.asked)
	page("sort=size")
	for _, r := range b.api.asked[before:] {
		if r.URL.Path == imagesPath && r.URL.Query().Has("continue") {
			t.Errorf("it asks for %s", r.URL)
		}
	}
	if sizes, body := page("sort=size&signer=ann"); len(sizes) != pageRows || !slices.IsSortedFunc(sizes, func(a, b int) int { return b - a }) || !strings.Contains(body, "Each page is sorted by itself") || !strings.Contains(body, "continue=100&amp;") {
		t.Errorf("of more than are sorted: %v\n%s", sizes, body)
	}
}

// A size counts with its unit, however large.
func TestSizesHaveAnOrder(t *testing.T) {
	ascending := []text{"Unknown", "0B", "999B", "1kB", "1.5MB", "2GB", "999GB", "1TB", "1PB", "1.2EB"}
	for i, cell := range ascending[1:] {
		if inBytes(ascending[i]) >= inBytes(cell) {
			t.Errorf("%s is not less than %s", ascending[i], cell)
		}
	}
}

// Each layer of an image says in how many images it is.
func TestLayersAreCounted(t *testing.T) {
	answers := hostileAnswers()
	answers["GET "+imagesPath+"/"+digestA] = m{"dockerImageLayers": l{m{"name": digestB, "size": 5}}}
	one := m{"metadata": m{"creationTimestamp": at}}
	b := newBrowser(t, answers)
	b.signIn("good")
	for want, list := range map[string]any{
		"in this image alone": m{"items": l{one}}, "in 2 images": m{"items": l{one, one}}, "in more than 2 images": m{"metadata": m{"continue": "x"}, "items": l{one, one}}, ">images with this layer": http.StatusForbidden,
	} {
		answers["GET "+imagesPath] = list
		body := b.do("GET", Root+"image?ref=r.io/a:1", nil).Body.String()
		if link := Root + "images?layer=" + url.QueryEscape(digestB); !strings.Contains(body, want+"</a>") || !strings.Contains(body, `href="`+link) {
			t.Errorf("there is no %q in\n%s", want, body)
		}
	}
}

// Who may, has a registry asked again, or for the first time; who may not, sees no button, and is
// told which role he lacks.
func TestRegistryIsAskedAgain(t *testing.T) {
	answer := func(state string) m {
		return m{"status": m{"references": l{m{"state": state, "question": m{"reference": "r.io/a:1"}, "meaning": m{"reference": "r.io/a:1", "tag": "1", "repository": "r.io/a"}}}}}
	}
	answers := map[string]any{"POST " + reviewsPath: answer("Gone"), "POST " + reviewPath: m{"status": m{"allowed": true}}, "POST " + importsPath: m{"reference": "r.io/a:1"}}
	b := newBrowser(t, answers)
	b.signIn("good")
	if body := b.do("GET", Root+"image?ref=r.io/a:1", nil).Body.String(); !strings.Contains(body, "Check again</button>") {
		t.Errorf("there is no button:\n%s", body)
	}
	w := b.do("POST", Root+"import", url.Values{"ref": {"r.io/a:1"}})
	if last := b.api.asked[len(b.api.asked)-1]; w.Code != http.StatusSeeOther || last.URL.RawQuery != "reference=r.io%2Fa%3A1" || last.Header.Get("Authorization") != "Bearer good" {
		t.Errorf("%d, asked %s", w.Code, last.URL)
	}
	if body := b.do("GET", w.Header().Get("Location"), nil).Body.String(); !strings.Contains(body, "The registry is being asked") {
		t.Errorf("nothing is said:\n%s", body)
	}
	answers["POST "+reviewsPath] = answer("NotImported")
	if body := b.do("GET", Root+"image?ref=r.io/a:1", nil).Body.String(); !strings.Contains(body, ">Import</button>") {
		t.Error("what is not imported cannot be imported")
	}
	answers["POST "+reviewsPath] = answer("Absent")
	if body := b.do("GET", Root+"images?q=r.io/a:1", nil).Body.String(); !strings.Contains(body, ">Import r.io/a:1</button>") {
		t.Error("what is absent cannot be imported")
	}
	answers["POST "+reviewPath], answers["POST "+importsPath] = m{"status": m{"allowed": false}}, http.StatusForbidden
	if body := b.do("GET", Root+"images?q=r.io/a:1", nil).Body.String(); strings.Contains(body, ">Import r.io") {
		t.Error("who may not import sees the button")
	}
	if w := b.do("POST", Root+"import", url.Values{"ref": {"r.io/a:1"}}); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "tidewaiter:importer") {
		t.Errorf("who may not import is told %d %s", w.Code, w.Body)
	}
}

// Who may not change the queue sees it without buttons.
func TestQueueWithoutButtons(t *testing.T) {
	answers := hostileAnswers()
	b := newBrowser(t, answers)
	b.signIn("good")
	if body := b.do("GET", Root+"activity", nil).Body.String(); !strings.Contains(body, ">Retry</button>") {
		t.Error("there is no button")
	}
	answers["POST "+reviewPath] = m{"status": m{}}
	if body := b.do("GET", Root+"activity", nil).Body.String(); strings.Contains(body, ">Retry</button>") || !strings.Contains(body, "given up") {
		t.Error("there is a button, or no queue")
	}
	if body := b.do("GET", Root+"policies", nil).Body.String(); strings.Contains(body, "Judge all images again") {
		t.Error("who may not have images judged again sees the button")
	}
}

// A person signs in with a provider: the API gets the ID token, and the browser goes on from a page
// of the console, which alone sends the session's cookie.
func TestSignInWithAProvider(t *testing.T) {
	nonce, token := "", ""
	mux := http.NewServeMux()
	issuer := httptest.NewTLSServer(mux)
	defer issuer.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(m{"issuer": issuer.URL, "authorization_endpoint": issuer.URL + "/auth", "token_endpoint": issuer.URL + "/token"})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, _ *http.Request) {
		claims, _ := json.Marshal(m{"nonce": nonce})
		token = "h." + base64.RawURLEncoding.EncodeToString(claims) + ".s"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(m{"access_token": "a", "id_token": token})
	})
	b := newBrowser(t, map[string]any{"GET " + imagesPath: m{}})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})
	flow, err := openid.New([]openid.Provider{{Issuer: issuer.URL, ClientID: "console", CA: string(ca)}}, nil, b.clock)
	if err != nil {
		t.Fatal(err)
	}
	b.console = New(b.api, Options{Clock: b.clock, Providers: flow, At: Address{Hosts: []string{"console.example"}, Port: 443}})
	begin := func() url.Values {
		t.Helper()
		w := b.do("GET", Root+"sign-in/with?provider=0&next="+url.QueryEscape(Root+"images"), nil)
		to, err := url.Parse(w.Header().Get("Location"))
		if err != nil || w.Code != http.StatusSeeOther || to.Query().Get("redirect_uri") != "https://console.example/console/sign-in/callback" {
			t.Fatalf("the browser is sent to %v: %d", to, w.Code)
		}
		nonce = to.Query().Get("nonce")
		return url.Values{"code": {"c"}, "state": {to.Query().Get("state")}}
	}
	if page := b.do("GET", Root+"sign-in?next="+url.QueryEscape(Root+"images"), nil).Body.String(); !strings.Contains(page, `href="/console/sign-in/with?next=%2Fconsole%2Fimages&amp;provider=0"`) || !strings.Contains(page, "Sign in with 127.0.0.1") {
		t.Errorf("the page to sign in is\n%s", page)
	}
	back := begin()
	if w := b.do("GET", Root+"sign-in/callback?"+back.Encode(), nil); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "does not accept this token") {
		t.Errorf("a token that the API refuses: %d", w.Code)
	}
	back = begin()
	claims, _ := json.Marshal(m{"nonce": nonce})
	b.api.tokens["h."+base64.RawURLEncoding.EncodeToString(claims)+".s"] = "ann"
	w := b.do("GET", Root+"sign-in/callback?"+back.Encode(), nil)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `<meta http-equiv="refresh" content="0;url=/console/images">`) || len(b.cookies) != 1 || b.cookies[0].Name != cookieName || b.cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("%d, cookies %v:\n%s", w.Code, b.cookies, w.Body)
	}
	if w := b.do("GET", Root+"images", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ann") {
		t.Errorf("signed in: %d", w.Code)
	}
	if last := b.api.asked[len(b.api.asked)-1]; last.Header.Get("Authorization") != "Bearer "+token {
		t.Errorf("the API was asked with %q", last.Header.Get("Authorization"))
	}
	b.cookies = nil
	if w := b.do("GET", Root+"sign-in/callback?"+back.Encode(), nil); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "has not begun") {
		t.Errorf("another browser with the same code: %d", w.Code)
	}
	for _, query := range []string{"", "provider=1", "provider=x", "provider=-1"} {
		if w := b.do("GET", Root+"sign-in/with?"+query, nil); w.Code == http.StatusSeeOther {
			t.Errorf("%q leads to %s", query, w.Header().Get("Location"))
		}
	}
	if w := b.do("GET", Root+"sign-in/with?provider=0", nil, func(r *http.Request) { r.TLS = (*tls.ConnectionState)(nil) }); w.Code == http.StatusSeeOther {
		t.Error("over plain HTTP a browser is sent to a provider")
	}
}

// A provider sends a browser back to the configured URL, or to a host of the server, whatever a
// request says of its host.
func TestProvidersSendBackToTheServer(t *testing.T) {
	mux := http.NewServeMux()
	issuer := httptest.NewTLSServer(mux)
	defer issuer.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(m{"issuer": issuer.URL, "authorization_endpoint": issuer.URL + "/auth", "token_endpoint": issuer.URL + "/token"})
	})
	b := newBrowser(t, nil)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})
	flow, err := openid.New([]openid.Provider{{Issuer: issuer.URL, ClientID: "console", CA: string(ca)}}, nil, b.clock)
	if err != nil {
		t.Fatal(err)
	}
	known := Address{Hosts: []string{"localhost", "::1", "Node-1", "*.example.com"}, Port: 6443}
	configured := Address{URL: "https://tw.example:8443", Hosts: known.Hosts, Port: 6443}
	for _, c := range []struct {
		at         Address
		host, want string // empty where nothing is begun
	}{
		{known, "localhost:6443", "https://localhost:6443"},
		{known, "[::1]:6443", "https://[::1]:6443"},
		{known, "node-1:6443", "https://node-1:6443"},
		{Address{Hosts: known.Hosts, Port: 443}, "localhost", "https://localhost"},
		{known, "evil.example:6443", ""},
		{known, "a.example.com:6443", ""},
		{known, "localhost:6444", ""},
		{known, "localhost", ""},
		{known, "localhost.:6443", ""},
		{known, "localhost:6443@evil.example", ""},
		{known, "evil.example@localhost:6443", ""},
		{known, "localhost:6443/x", ""},
		{known, "localhost:6443?x", ""},
		{known, "", ""},
		{Address{}, "localhost:443", ""},
		{configured, "evil.example", "https://tw.example:8443"},
		{configured, "localhost:6443", "https://tw.example:8443"},
	} {
		b.console = New(b.api, Options{Clock: b.clock, Providers: flow, At: c.at})
		at := func(r *http.Request) { r.Host = c.host }
		w := b.do("GET", Root+"sign-in/with?provider=0", nil, at)
		to, err := url.Parse(w.Header().Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			back := b.do("GET", Root+"sign-in/callback?code=c", nil, at)
			for _, w := range []*httptest.ResponseRecorder{w, back} {
				if w.Code < 400 || w.Header().Get("Location") != "" || !strings.Contains(w.Body.String(), "--advertise-url") {
					t.Errorf("%q: %d to %s", c.host, w.Code, to)
				}
			}
			continue
		}
		if got := to.Query().Get("redirect_uri"); got != c.want+callbackPath {
			t.Errorf("%q: a provider sends the browser back to %q, not to %q", c.host, got, c.want)
		}
		if page := b.do("GET", Root+"sign-in", nil, at).Body.String(); !strings.Contains(page, `href="`+c.at.URL+`/console/sign-in/with?`) {
			t.Errorf("%q: the page leads elsewhere than to %q:\n%s", c.host, c.at.URL, page)
		}
	}
}

// The page of an image says what it is built on, which documents list its packages, and until when
// an exception lets it through.
func TestImageSaysWhatIsInIt(t *testing.T) {
	answers := hostileAnswers()
	base := m{"reference": "r.io/base:1", "digest": digestB, "outdated": "True", "now": digestA, "until": at}
	verdict := m{"reference": "r.io/team/app:v1", "verified": "Excepted", "until": "2026-12-24T10:00:00Z", "attested": "False"}
	answers["POST "+reviewsPath] = echoed(func(n int) any {
		return m{"status": m{"references": slices.Repeat(l{m{"state": "Found", "meaning": m{"digest": digestA}, "verdict": verdict, "base": base}}, n)}}
	})
	documents := l{m{"format": "SPDX", "count": 92, "signature": "1f"}, m{"format": "CycloneDX", "problem": "it has 17 MiB"}, m{"format": "OpenVEX", "statements": l{m{"vulnerability": "CVE-1", "status": "not_affected"}}}}
	answers["GET "+packagesPath] = m{"items": l{m{"sources": documents}}}
	answers["GET "+packagesPath+"/"+digestA] = m{"sources": l{m{"packages": l{m{"name": "openssl"}}}}}
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root+"image?ref=app", nil).Body.String()
	for _, want := range []string{"Excepted until 2026-12-24", "attestations:", "An older revision.", "It led to this one until", "92 packages", "packages unknown", "it has 17 MiB", "CVE-1: not_affected"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not say %q:\n%s", want, body)
		}
	}
	if strings.Contains(body, "0 packages") {
		t.Error("a document of which no package is known has none")
	}
	base["outdated"], base["message"] = "Unknown", "it is not stored"
	answers["GET "+packagesPath] = http.StatusForbidden
	body = b.do("GET", Root+"image?ref=app", nil).Body.String()
	for _, want := range []string{"unknown: it is not stored.", "You may not list the packages of images"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not say %q:\n%s", want, body)
		}
	}
	if raw := b.do("GET", Root+"raw?packages=all&digest="+digestA, nil).Body.String(); !strings.Contains(raw, "openssl") {
		t.Errorf("the packages are\n%s", raw)
	}
}

// A reference by digest has 12 characters of it.
func TestNamesAreShort(t *testing.T) {
	if got := nameOf(text("r.io/team/app:v1@" + digestA)); got.Host != "r.io" || strings.Join(got.Parts, "") != "team/app:v1@"+short(text(digestA)) || len(short(text(digestA))) != 12 {
		t.Errorf("it is %+v", got)
	}
}

// A name that a table has cut is whole where a verdict tells it, and a message has the part of a
// digest that people compare.
func TestWholeNames(t *testing.T) {
	for _, c := range [][3]text{
		{"r.io/app", "True@r.io/other", "r.io/app"},
		{"…example.com/team/app", "True@a.io/app,False@registry.example.com/team/app", "registry.example.com/team/app"},
		{"…example.com/team/app,+1", "True@registry.example.com/team/app", "registry.example.com/team/app,+1"},
		{"…example.com/team/app", "<none>", "…example.com/team/app"},
	} {
		if got := wholeName(c[0], c[1]); got != c[2] {
			t.Errorf("%s with %s is %s, want %s", c[0], c[1], got, c[2])
		}
	}
	if got := brief(text("signed by sha256:" + strings.Repeat("ab", 32) + ", not sha256:abc")); got != "signed by sha256:abababababab…, not sha256:abc" {
		t.Errorf("in short: %s", got)
	}
}

// A repository has the worst verdict of the tags that moved last, and the pods that run them, each
// image once.
func TestRepositoriesAreJudged(t *testing.T) {
	tag := func(repository, name, moved string) m {
		return m{"metadata": m{"name": name}, "spec": m{"name": name, "from": m{"kind": "DockerImage", "name": repository + ":" + name}}, "status": m{"items": l{m{"created": moved, "image": digestA}}}}
	}
	tags := l{tag("r.io/app", "old", "2026-10-01T00:00:00Z"), tag("r.io/app", "v2", "2026-10-03T00:00:00Z"), tag("r.io/app", "v3", "2026-10-04T00:00:00Z"), tag("r.io/gone", "v1", "2026-10-04T00:00:00Z")}
	for i := range shownTags {
		tags = append(tags, tag("r.io/many", fmt.Sprint("n", i), "2026-10-05T00:00:00Z"))
	}
	tags = append(tags, tag("r.io/many", "bad", "2026-10-01T00:00:00Z"))
	verified := map[string]m{
		"r.io/app:v3":  {"state": "Found", "meaning": m{"digest": digestA}, "verdict": m{"verified": "True"}, "running": m{"pods": 2, "complete": true}},
		"r.io/app:v2":  {"state": "Found", "meaning": m{"digest": digestA}, "verdict": m{"verified": "True"}, "running": m{"pods": 2, "complete": true}},
		"r.io/app:old": {"state": "Found", "meaning": m{"digest": digestB}, "verdict": m{"verified": "Unsigned"}, "running": m{"pods": 1, "complete": true}},
		"r.io/gone:v1": {"state": "Gone", "meaning": m{"digest": digestA}, "running": m{"pods": 2, "complete": true}}, "r.io/many:bad": {"state": "Found", "verdict": m{"verified": "False"}},
	}
	answers := map[string]any{"GET " + tagsPath: m{"items": tags}, "POST " + reviewsPath: answered(func(reference string) m {
		if a := verified[reference]; a != nil {
			return a
		}
		return m{"state": "Found", "meaning": m{"digest": reference}, "verdict": m{"verified": "True"}, "running": m{"pods": 1, "complete": true}}
	})}
	b := newBrowser(t, answers)
	b.signIn("good")
	rows := strings.Split(b.do("GET", Root+"repositories", nil).Body.String(), "<tr>")
	if len(rows) != 5 {
		t.Fatalf("%d rows: %q", len(rows), rows)
	}
	for i, want := range [][]string{2: {"Unsigned", "the worst of all its tags", `"number">3</td>`}, 3: {`<span class="quiet">none</span>`, `"number">2</td>`}, 4: {"Verified", "the worst of the 8 tags that moved last", `"number">8+</td>`}} {
		for _, w := range want {
			if !strings.Contains(rows[i], w) {
				t.Errorf("a repository has no %q:\n%s", w, rows[i])
			}
		}
	}
	if first := strings.Index(rows[2], ">v3</a>"); first < 0 || first > strings.Index(rows[2], ">v2</a>") || strings.Index(rows[2], ">v2</a>") > strings.Index(rows[2], ">old</a>") {
		t.Errorf("what moved last is not first:\n%s", rows[2])
	}
	answers["POST "+reviewsPath] = http.StatusForbidden
	if body := b.do("GET", Root+"repositories", nil).Body.String(); !strings.Contains(body, "You may not ask about references") || !strings.Contains(body, `<span class="quiet">unknown</span>`) || strings.Contains(body, "Verified<") {
		t.Errorf("who may not ask sees\n%s", body)
	}
}

// What is not known of all rows is said once above them; a row has the word once, and quietly.
func TestImagesWithUnknownPods(t *testing.T) {
	rows := func(cells ...l) m {
		all := l{}
		for i, c := range cells {
			all = append(all, m{"cells": append(l{fmt.Sprintf("sha256:%064x", i)}, c...), "object": m{"metadata": m{"creationTimestamp": at}}})
		}
		return m{"columnDefinitions": l{m{"name": "Name"}, m{"name": "Pods"}, m{"name": "Outdated"}}, "rows": all}
	}
	b := newBrowser(t, map[string]any{"GET " + imagesPath: rows(l{"Unknown", "Unknown"}, l{"3", "Unknown"}, l{"2", "1"}, l{"4", "0"}, l{"0", "Unknown"})})
	b.signIn("good")
	var got []string
	for _, cell := range regexp.MustCompile(`data-label="Pods" class="number">(.*)</td>`).FindAllStringSubmatch(b.do("GET", Root+"images?sort=digest", nil).Body.String(), -1) {
		got = append(got, regexp.MustCompile(`<[^>]*>`).ReplaceAllString(cell[1], ""))
	}
	if want := []string{"unknown", "3 (outdated?)", "2 (1 outdated)", "4", "0"}; !slices.Equal(got, want) {
		t.Errorf("the pods are %q, want %q", got, want)
	}
}

// The links to filters that people often want lead to the filter, and show which one the page has.
func TestSavedFilters(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + imagesPath: m{}})
	b.signIn("good")
	for query, want := range map[string]string{"": `href="/console/images" aria-current="true">All<`, "?verdict=Unsigned": `href="/console/images?verdict=Unsigned" aria-current="true">Unsigned<`, "?used=false&sort=size&verdict=": `aria-current="true">Does not run<`} {
		if body := b.do("GET", Root+"images"+query, nil).Body.String(); !strings.Contains(body, want) || strings.Count(body, `class="tag" href="/console/images`) != len(savedFilters) || strings.Count(body, `aria-current="true"`) != 1 {
			t.Errorf("with %q there is no %q:\n%s", query, want, body)
		}
	}
	if body := b.do("GET", Root+"images?verdict=True&package=x", nil).Body.String(); strings.Contains(body, `aria-current="true"`) {
		t.Error("another filter is shown as one of these")
	}
}
