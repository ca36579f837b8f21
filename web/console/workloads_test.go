package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// podOf is a pod of a workload in prod, with a container for each image of a verdict.
func podOf(name, workload string, runs ...m) m {
	return m{"metadata": m{"creationTimestamp": at}, "spec": m{"cluster": "prod", "namespace": "shop", "name": name, "workload": workload, "since": at, "containers": runs}}
}

func runs(container, image, verified string, more ...string) m {
	one := m{"name": container, "image": image, "digest": digestA, "verified": verified}
	if len(more) > 0 {
		one["outdated"] = more[0]
	}
	return one
}

// A row is a workload, with its pods and what each container runs; what needs somebody is first.
func TestRunningShowsWorkloads(t *testing.T) {
	pods := l{
		podOf("fine-1", "Deployment/fine", runs("main", "r.io/fine:v1", "True")), podOf("drifts-1", "StatefulSet/drifts", runs("main", "r.io/drifts:v1", "True", digestB)),
		podOf("bad-1", "Deployment/bad", runs("side", "r.io/side:v1", "True"), runs("main", "r.io/bad:v1", "False")), podOf("bad-2", "Deployment/bad", runs("side", "r.io/side:v1", "True"), runs("main", "r.io/bad:v1", "False")),
		podOf("alone", "", runs("main", "r.io/alone:v1", "Unsigned")),
	}
	answers := map[string]any{"GET " + clustersPath: m{"items": l{m{"metadata": m{"name": "prod"}}}}, "GET " + podsPath: m{"items": pods}}
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root+"running", nil).Body.String()
	last := -1
	for _, want := range []string{"4 workloads, 5 pods", ">bad</a><span class=\"by\">Deployment in ", "Not verified", "r.io/</span><wbr>bad:v1", ">2</td>", "r.io/</span><wbr>side:v1", ">alone</a><span class=\"by\">Pod in ", "Unsigned", ">drifts</a>", ">fine</a>"} {
		at := strings.Index(body[last+1:], want)
		if at < 0 {
			t.Fatalf("%q is not where it belongs in\n%s", want, body)
		}
		last += 1 + at
	}

	// Of a few hundred pods all are sorted; of more, each page is, and says so.
	answers["GET "+podsPath] = func(q url.Values) any {
		if q.Get("continue") != "" {
			return m{"items": pods[2:]}
		}
		return m{"metadata": m{"continue": "more", "remainingItemCount": 3}, "items": pods[:2]}
	}
	if whole := b.do("GET", Root+"running", nil).Body.String(); !strings.Contains(whole, "4 workloads, 5 pods") || strings.Index(whole, ">bad</a>") > strings.Index(whole, ">fine</a>") {
		t.Errorf("a few hundred pods are\n%s", whole)
	}
	answers["GET "+podsPath] = m{"metadata": m{"continue": "more", "remainingItemCount": podsSorted}, "items": pods}
	if page := b.do("GET", Root+"running", nil).Body.String(); !strings.Contains(page, "505 pods<") || !strings.Contains(page, "on each page, what needs somebody is first") {
		t.Errorf("more pods than are sorted are\n%s", page)
	}
}

// Without a cluster the page says how one is followed, and has no filters over nothing.
func TestRunningWithoutClusters(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + clustersPath: m{"items": l{m{"metadata": m{"name": ownCluster}}}}, "GET " + podsPath: m{}})
	b.signIn("good")
	body := b.do("GET", Root+"running", nil).Body.String()
	if !strings.Contains(body, "clusters:\n- name: prod") || !strings.Contains(body, "<code>tidewaiter follow CONTEXT</code>") || strings.Contains(body, `class="filters"`) {
		t.Errorf("without a cluster there is\n%s", body)
	}
}

// The first line says what follows, with the workloads and where they run; cards name them.
func TestAttentionBeginsWithWhatRuns(t *testing.T) {
	bad := func(name string) m { return podOf(name+"-1", "Deployment/"+name, runs("main", "r.io/bad:v1", "False")) }
	outdated := l{}
	answers := map[string]any{
		"GET " + imagesPath: m{}, "GET " + spoolPath: m{}, "GET " + clusterPoliciesPath: m{}, "GET " + policiesPath: m{},
		"GET " + clustersPath: m{"items": l{m{"metadata": m{"name": "prod"}, "status": m{"conditions": l{m{"type": "Reachable", "status": "True"}}}}}},
		"GET " + summaryPath:  m{"imagesAsOf": at, "usedAsOf": at, "used": m{"False": 3, "Unknown": 1, "True": 4}, "outdated": 1, "gone": 1, "overwritten": 0},
		"GET " + podsPath: func(q url.Values) any {
			switch q.Get("fieldSelector") {
			case "verified=False":
				return m{"items": l{bad("one"), bad("two"), bad("three")}}
			case "verified=Unknown":
				return m{"items": l{podOf("ghost-1", "Deployment/ghost", runs("main", "r.io/ghost:v1", "Unknown"))}}
			case "outdated=true":
				return m{"items": outdated}
			}
			return m{}
		},
	}
	outdated = append(outdated, podOf("old-1", "Deployment/old", runs("main", "r.io/old:v1", "True", digestB)))
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root, nil).Body.String()
	for _, want := range []string{
		"3 workloads in prod run images that fail their policy; 1 image runs and is gone from the registry; 1 workload in prod runs another build than the tag leads to; 1 workload in prod runs images that cannot be judged.",
		`pod=three">three</a> <span class="quiet">prod / shop, since <time`, "Next: restart the workload", "Next: see why, then sign", "Runs and cannot be judged",
		`pod=ghost">ghost</a> <span class="quiet">prod / shop, since <time`, "Next: see why, and import",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the first page lacks %q:\n%s", want, body)
		}
	}
	answers["GET "+summaryPath].(m)["goneUnknown"] = l{"the cluster prod is away"}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, `<p class="sentence">At least 3 workloads in prod run`) {
		t.Errorf("where a cluster is away, the page begins with\n%s", body)
	}
	if strings.Contains(body, "No cluster is followed") {
		t.Error("a cluster is followed, and the page says none is")
	}
	answers["GET "+clustersPath], answers["GET "+podsPath] = m{}, m{}
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "usedAsOf": at, "outdated": 0, "gone": 0, "overwritten": 0}
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "No cluster is followed, so what runs there is not known.") || !strings.Contains(body, "<h2>No cluster is followed</h2>") || !strings.Contains(body, "<code>tidewaiter follow CONTEXT</code>") {
		t.Errorf("that no cluster is followed is not said:\n%s", body)
	}
	answers["GET "+podsPath] = http.StatusForbidden
	answers["GET "+summaryPath] = http.StatusForbidden
	if body := b.do("GET", Root, nil).Body.String(); !strings.Contains(body, "It is not known whether all that runs is in order.") {
		t.Errorf("who may not see what runs reads\n%s", body)
	}
}

// A card about images names them, and says why if it cannot; so does a card about workloads.
func TestCardsNameWhatTheyAreAbout(t *testing.T) {
	answers := map[string]any{
		"GET " + spoolPath: m{}, "GET " + clusterPoliciesPath: m{}, "GET " + policiesPath: m{}, "GET " + clustersPath: m{},
		"GET " + summaryPath: m{"imagesAsOf": at, "verified": m{"False": 3}, "usedAsOf": at, "used": m{"Unsigned": 2}, "outdated": 0, "gone": 1, "overwritten": 0},
		"GET " + podsPath:    http.StatusInternalServerError,
		"GET " + imagesPath: func(q url.Values) any {
			row := func(name, repository string) m {
				return m{"cells": l{name, repository, "v1"}, "object": m{"metadata": m{"creationTimestamp": at}}}
			}
			rows := l{}
			switch q.Get("fieldSelector") {
			case "signatures.verified=False":
				rows = l{row("one", "r.io/one"), row("two", "<none>")}
			case "gone=true,used=true":
				return m{"metadata": m{"continue": "more"}}
			}
			return m{"items": make(l, len(rows)), "columnDefinitions": l{m{"name": "Name"}, m{"name": "Repository"}, m{"name": "Tags"}}, "rows": rows}
		},
	}
	answers["GET "+podsPath] = func(q url.Values) any {
		if q.Get("fieldSelector") == "verified=Unsigned" {
			return m{"metadata": m{"continue": "more"}}
		}
		return m{}
	}
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root, nil).Body.String()
	for _, want := range []string{
		`<a href="/console/image?ref=one"><span class="host">r.io/</span><wbr>one:v1</a> <span class="quiet">known since <time`, `<a href="/console/image?ref=two">two</a>`, `<li class="quiet">and more</li>`,
		"Which images: unknown. Not known. None at the beginning of the list",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the first page lacks %q:\n%s", want, body)
		}
	}
	answers["GET "+summaryPath] = m{"imagesAsOf": at, "verified": m{}, "usedAsOf": at, "used": m{"Unsigned": podRows + 1}, "outdated": 1, "gone": 0, "overwritten": 0}
	for code, want := range map[int]string{
		http.StatusForbidden:           "Which workloads: unknown. You may not list the pods of clusters (role <code>tidewaiter:cluster-viewer</code>)",
		http.StatusInternalServerError: "Which workloads: unknown. The server could not answer. ",
	} {
		answers["GET "+podsPath] = code
		if body := b.do("GET", Root, nil).Body.String(); strings.Count(body, want) != 2 || !strings.Contains(body, "51 pods run images that fail their policy; 1 pod runs another build than the tag leads to.") {
			t.Errorf("where pods cannot be read, the first page lacks %q:\n%s", want, body)
		}
	}
}

// Each verdict has one word and one icon of its own, and the selector's value beside its meaning.
func TestVerdictsHaveOneLook(t *testing.T) {
	var words, icons []string
	for _, l := range looks {
		words, icons = append(words, l.Word), append(icons, l.Icon)
		if shown := verdictOf(l.Value); shown.Word != l.Word || !strings.HasPrefix(shown.About, l.Value+": ") {
			t.Errorf("%s is shown as %+v", l.Value, shown)
		}
	}
	slices.Sort(words)
	slices.Sort(icons)
	if len(slices.Compact(words)) != len(looks) || len(slices.Compact(icons)) != len(looks) {
		t.Errorf("two verdicts share a word of %q or an icon of %q", words, icons)
	}
	if got := verdictOf("Excepted:2026-12-01"); got.Word != "Excepted until 2026-12-01" {
		t.Errorf("an exception is %+v", got)
	}
}

// An index has one row with its platforms, the worst of their verdicts and their sizes; what runs
// and fails is first.
func TestPlatformsAreFoldedIntoTheirIndex(t *testing.T) {
	columns := l{}
	for _, name := range []string{"Name", "Repository", "Tags", "Verdict", "Pods", "Size", "Platform"} {
		columns = append(columns, m{"name": name})
	}
	row := func(cells ...any) m { return m{"cells": cells, "object": m{"metadata": m{"creationTimestamp": at}}} }
	answers := map[string]any{"GET " + imagesPath: func(q url.Values) any {
		if q.Get("fieldSelector") == "digest=index" {
			return m{"items": l{m{"metadata": m{"name": "index"}, "dockerImageManifests": l{m{"digest": "amd"}, m{"digest": "arm"}, m{"digest": "tagged"}}}}}
		}
		return m{"columnDefinitions": columns, "rows": l{
			row("idle", "r.io/idle", "v1", "False", "0", "1MB", "linux/amd64"), row("fine", "r.io/fine", "v1", "True", "2", "1MB", "linux/amd64"),
			row("index", "r.io/app", "v2,latest", "True", "3", "<none>", "linux/amd64,linux/arm64"), row("amd", "r.io/app", "<none>", "ByIndex", "0", "7.7MB", "linux/amd64"),
			row("arm", "r.io/app", "<none>", "False", "3", "9.9MB", "linux/arm64"), row("tagged", "r.io/app", "arm", "ByIndex", "0", "9.9MB", "linux/arm64"),
		}}
	}}
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root+"images", nil).Body.String()
	last := -1
	for _, want := range []string{"6 in 4 rows", "r.io/</span><wbr>app:v2</a>", `<span class="tag">latest<`, "Not verified", `title="linux/amd64, linux/arm64">2 platforms<`, "7.7 MB to 9.9 MB", "r.io/</span><wbr>idle:v1", "r.io/</span><wbr>fine:v1", "r.io/</span><wbr>app:arm"} {
		at := strings.Index(body[last+1:], want)
		if at < 0 {
			_, rows, _ := strings.Cut(body, "<h1>")
			t.Fatalf("%q is not where it belongs in\n%s", want, rows)
		}
		last += 1 + at
	}
}

// A time within a message is shown as all times are.
func TestTimesInMessages(t *testing.T) {
	b := newBrowser(t, map[string]any{
		"GET " + verificationPath: m{}, "GET " + policiesPath: m{},
		"GET " + clusterPoliciesPath: m{"items": l{m{"metadata": m{"name": "team"}, "status": m{"conditions": l{m{"type": "CoversImages", "status": "True", "message": "6 images, as of 2026-11-01T07:00:00Z, of 7"}}}}}},
	})
	b.signIn("good")
	if body := b.do("GET", Root+"policies", nil).Body.String(); !strings.Contains(body, `6 images, as of <time datetime="2026-11-01T07:00:00Z" title="1 November 2026, 07:00:00 UTC">60m ago</time>, of 7`) {
		t.Errorf("the page is\n%s", body)
	}
}
