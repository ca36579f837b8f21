package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// A workload drifts while it runs another image than its tag led to, as far as that is known.
func TestDriftOverTime(t *testing.T) {
	since := time.Date(2026, 10, 31, 8, 0, 0, 0, time.UTC)
	hour := func(n int) time.Time { return since.Add(time.Duration(n) * time.Hour) }
	now := hour(24)
	for name, c := range map[string]struct {
		compared    []any // hours, and True, False or Unknown
		from, until int   // until is 0 while it runs
		unseen      bool
		want        []string
		unknown     bool
	}{
		"the tag does not move":                     {compared: []any{0, "False"}, from: -5},
		"the tag moves":                             {compared: []any{0, "False", 3, "True"}, from: -5, want: []string{"3 New"}},
		"the tag moves twice":                       {compared: []any{0, "False", 3, "True", 5, "True"}, from: -5, want: []string{"3 New"}},
		"the tag moved before that time":            {compared: []any{0, "True"}, from: -5},
		"the tag moves, and the workload follows":   {compared: []any{0, "False", 3, "True"}, from: -5, until: 4, want: []string{"3 New", "4 Over"}},
		"it drifted before, and no longer runs":     {compared: []any{0, "True"}, from: -5, until: 4, want: []string{"4 Over"}},
		"it was gone when its cluster was seen":     {compared: []any{0, "True"}, from: -5, until: 4, unseen: true, want: []string{"4 Over before"}},
		"the tag moves back":                        {compared: []any{0, "False", 3, "True", 6, "False"}, from: -5, want: []string{"3 New", "6 Over"}},
		"it begins with an older build":             {compared: []any{0, "True"}, from: 5, want: []string{"5 New"}},
		"it begins with what the tag leads to":      {compared: []any{0, "False"}, from: 5},
		"it begins between moves":                   {compared: []any{0, "True", 3, "False", 7, "True"}, from: 5, want: []string{"7 New"}},
		"it ends before the tag moves":              {compared: []any{0, "False", 7, "True"}, from: -5, until: 4},
		"nothing is compared":                       {from: -5, unknown: true},
		"the tag is not known":                      {compared: []any{0, "Unknown"}, from: -5, unknown: true},
		"where the tag led is known since a while":  {compared: []any{0, "Unknown", 2, "True"}, from: -5, want: []string{"2 New before"}, unknown: true},
		"it is known since a while that it is fine": {compared: []any{0, "Unknown", 2, "False"}, from: -5, unknown: true},
		"the registry lost the tag":                 {compared: []any{0, "False", 3, "Unknown", 5, "False"}, from: -5, unknown: true},
		"the registry lost the tag, which moved":    {compared: []any{0, "False", 3, "Unknown", 5, "True"}, from: -5, want: []string{"5 New before"}, unknown: true},
		"it drifts, and may do so until it ends":    {compared: []any{0, "True", 3, "Unknown"}, from: -5, until: 4, want: []string{"4 Over"}, unknown: true},
	} {
		r := &imageRun{}
		r.Spec.Workload, r.Spec.Image, r.Spec.From = "Deployment/app", "r.io/app:v1", hour(c.from)
		if c.until != 0 {
			r.Status.Until = hour(c.until)
		}
		if c.unseen {
			_ = json.Unmarshal([]byte(`[{"from": "2026-10-31T08:00:00Z", "until": "2026-10-31T12:00:00Z"}]`), &r.Status.Unseen)
		}
		var compared []drift
		for i := 0; i < len(c.compared); i += 2 {
			compared = append(compared, drift{Since: hour(c.compared[i].(int)), Outdated: text(c.compared[i+1].(string))})
		}
		changes, whole := (&tagRun{imageRun: r}).drift(since, now, compared)
		var got []string
		for _, one := range changes {
			text := strings.TrimSuffix(one.At.Sub(since).String(), "h0m0s") + " " + one.Sign()
			if one.Before {
				text += " before"
			}
			got = append(got, text)
		}
		if !slices.Equal(got, c.want) || whole == c.unknown {
			t.Errorf("%s: %q, all is known: %v; want %q, %v", name, got, whole, c.want, !c.unknown)
		}
	}
}

// What drifted is on the page and in the feed, from what is recorded of runs and tags; for what
// is not recorded it is said.
func TestWhatDrifted(t *testing.T) {
	const moved, yesterday, early = "2026-11-01T02:00:00Z", "2026-10-31T08:00:00Z", "2026-10-01T00:00:00Z"
	run := func(workload, image string) m {
		return m{"metadata": m{"namespace": "shop"}, "spec": m{"cluster": "prod", "workload": "Deployment/" + workload, "container": "main", "image": image, "digest": digestA, "from": early}}
	}
	answers := changedAnswers()
	answers["GET "+runsPath] = func(q url.Values) any {
		if strings.Contains(q.Get("fieldSelector"), "verified") {
			return m{}
		}
		return m{"items": l{run("old", "r.io/old:v1"), run("short", "short"), run("strange", "r.io/strange:v1"), run("fixed", "r.io/old@"+digestB)}}
	}
	answers["POST "+reviewsPath] = answered(func(reference string) m {
		if reference == "r.io/old:v1" || reference == "docker.io/library/short:latest" {
			return m{"drift": l{m{"since": yesterday, "outdated": "False", "digest": digestA}, m{"since": moved, "outdated": "True", "digest": digestB}}}
		}
		return m{"drift": l{m{"since": yesterday, "outdated": "Unknown", "message": "why"}}}
	})
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root+"changes", nil).Body.String()
	feed := b.do("GET", feedPath, nil).Body.String()
	for _, want := range []string{
		"Deployment/old runs another image than its tag: r.io/old:v1", "Deployment/short runs another image than its tag: short",
		"prod / shop, main: it runs " + digestA[:19] + ", and the tag leads to " + digestB[:19], "For 1 tag it is not recorded all that time whether their pods ran what they led to, such as r.io/strange:v1.",
	} {
		if !strings.Contains(body, want) || !strings.Contains(feed, want) {
			t.Errorf("the page or the feed lacks %q:\n%s\n%s", want, body, feed)
		}
	}
	if strings.Contains(body, "Deployment/fixed") {
		t.Error("a container that names a digest drifted")
	}

	// The command line reads the same.
	all, err := ReadChanges(t.Context(), asAnn(b.api), b.clock, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all.Items, func(c Change) bool { return c.What == "Deployment/old runs another image than its tag: r.io/old:v1" }); i < 0 || all.Items[i].Attention != "New" || all.Items[i].At.Format(time.RFC3339) != moved || len(all.Unknown) != 1 {
		t.Errorf("the command line reads %+v", all)
	}

	// Of more than are compared, the rest is named.
	answers["GET "+runsPath] = func(q url.Values) any {
		var many l
		for i := range 500 {
			many = append(many, run("app", "r.io/app:"+strings.Repeat("v", 1+i%120)+string(rune('a'+i/120))))
		}
		return m{"metadata": m{"continue": "more"}, "items": many}
	}
	if body := b.do("GET", Root+"changes", nil).Body.String(); !strings.Contains(body, "More than 2\u202f000 stretches ran") {
		t.Errorf("of many stretches the page says\n%s", body)
	}

	// Who may not ask about references is told so.
	answers["POST "+reviewsPath] = http.StatusForbidden
	if body := b.do("GET", Root+"changes", nil).Body.String(); !strings.Contains(body, "You may not see what drifted") {
		t.Errorf("who may not ask is told\n%s", body)
	}
}

// asAnn adds a credential to calls of an API.
func asAnn(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer good")
		api.ServeHTTP(w, r)
	})
}

// Nothing that can be read is an error, and not an empty list.
func TestReadChangesFails(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + runsPath: http.StatusBadGateway, "GET " + summaryPath: http.StatusBadGateway, "GET " + clustersPath: http.StatusBadGateway, "GET " + clusterPoliciesPath: http.StatusBadGateway, "GET " + spoolPath: http.StatusBadGateway})
	if all, err := ReadChanges(t.Context(), asAnn(b.api), b.clock, time.Hour); err == nil {
		t.Errorf("it reads %+v", all)
	}
	if _, err := ReadChanges(t.Context(), b.api, b.clock, time.Hour); !isCode(err, http.StatusUnauthorized) {
		t.Errorf("without a credential: %v", err)
	}
}
