package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	restclient "k8s.io/client-go/rest"
)

// concernDoors are what the console's first page counts, and the doors of which one must be open to
// who sees a number: what is not open is unknown.
var concernDoors = map[string]string{
	"Runs and is not verified": "clusterpods summary", "Runs and is unsigned": "clusterpods summary", "Runs and cannot be judged": "clusterpods summary", "Runs something else than its tag leads to": "clusterpods summary",
	"Runs and is gone from its registry": "summary", "Not verified": "images summary", "Unsigned": "images summary", "Verdict unknown": "images summary",
	"Imports that failed": "spool", "Notifications that failed": "spool", "Registries that are away": "spool", "Clusters that are away": "clusters", "Access to clusters that ends soon": "clusters",
	"Policies that do nothing": "policies", "Certificates and keys that end soon": "policies", "Exceptions that end soon": "policies",
	"Certificates of this server that end soon": "summary",
}

var (
	refusedShown = regexp.MustCompile(`<h2>([^<]+): unknown</h2>`)
	podShown     = regexp.MustCompile(`\bpod-\d+\b`)
)

// pageOf reads a page of the console with somebody's client.
func (s *sides) pageOf(client *http.Client, path string) (code int, page string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.Config.Host+"/console/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// askPages asks every page of the console as each user; while a cluster is away, those that show
// what runs. None shows what the API denies the user, and the first page shows as none only what
// the user may ask for and is known to be none.
func (s *sides) askPages() {
	s.t.Helper()
	tag := s.leading(0)
	digest := s.leads[tag]
	other := s.stored()[1]
	paths := []string{
		"", "images", "images?verdict=Unknown", "images?used=true", "image?ref=" + url.QueryEscape(tag.String()), "image?ref=" + digest, "images?q=" + digest, "images?q=pod-1", "repositories",
		"repository?name=" + url.QueryEscape(tag.name()), "compare?a=" + digest + "&b=" + other, "running", "running?verified=Unknown", "running?pod=pod-1", "running.csv",
		"running?at=2030-01-01T00:00", "policies", "activity", "changes", "raw?digest=" + digest,
	}
	if s.away && !*exhaustive {
		paths = []string{"", "images?used=true", "image?ref=" + digest, "running"}
	}
	right := s.totals()
	naming := func(verified string) int { return len(s.podsJudged(verified)) }
	numbers := map[string]int{
		"Runs and is not verified": naming("False"), "Runs and is unsigned": naming("Unsigned"), "Runs and cannot be judged": naming("Unknown"), "Runs something else than its tag leads to": len(s.podsSo("true")),
		"Not verified": int(right.images["False"]), "Unsigned": int(right.images["Unsigned"]), "Verdict unknown": int(right.images["Unknown"]),
	}
	for user, doors := range sideUsers {
		open := strings.Fields(doors)
		may := func(any ...string) bool {
			return slices.ContainsFunc(any, func(door string) bool { return slices.Contains(open, door) })
		}
		client, err := restclient.HTTPClientFor(as(s.Config, user))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, path := range paths {
			code, page := s.pageOf(client, path)
			about := fmt.Sprintf("/console/%s as %s", path, user)
			if code >= http.StatusInternalServerError {
				s.t.Errorf("%s is answered %d: %s", about, code, page)
			}
			asked := digest + other
			var shown []string
			for _, one := range s.stored() {
				if short := strings.TrimPrefix(one, "sha256:")[:12]; strings.Contains(page, short) && !strings.Contains(asked, short) {
					shown = append(shown, short)
				}
			}
			s.is("console by role", about+": other digests", len(shown) > 0 && !may("images", "tags", "review", "clusterpods", "runs", "spool"), false)
			pods := slices.DeleteFunc(podShown.FindAllString(page, -1), func(name string) bool { return strings.Contains(path, name) })
			s.is("console by role", about+": pods", len(pods) > 0 && !may("clusterpods"), false)
			if path == "policies" {
				s.is("console by role", about, strings.Contains(page, "You may not list policies"), !may("policies"))
			}
			if path != "" {
				continue
			}
			none, many, refused := map[string]bool{}, map[string]string{}, []string{}
			for _, m := range concernFine.FindAllStringSubmatch(page, -1) {
				none[m[1]] = true
			}
			for _, m := range concernShown.FindAllStringSubmatch(page, -1) {
				many[m[1]] = m[2]
			}
			for _, m := range refusedShown.FindAllStringSubmatch(page, -1) {
				for title := range strings.SplitSeq(m[1], ", ") {
					refused = append(refused, strings.ToLower(title))
				}
			}
			for title, needs := range concernDoors {
				number, isMany := many[title]
				isUnknown := slices.Contains(refused, strings.ToLower(title))
				s.is("console by role", about+": "+title+" is none, or a number, or unknown", none[title] != isMany != isUnknown, true)
				if !may(strings.Fields(needs)...) {
					s.is("console by role", about+": "+title+" is unknown", isUnknown, true)
					continue
				}
				n, known := numbers[title]
				if !known {
					continue
				}
				unsure := s.away && strings.HasPrefix(title, "Runs") || title == "Runs something else than its tag leads to" && len(s.podsSo("unknown")) > 0
				want := fmt.Sprint(n)
				switch got := number; {
				case !unsure && n == 0:
					s.is("console by role", about+": "+title, none[title], true)
				case unsure && n == 0:
					s.is("console by role", about+": "+title, isUnknown, true)
				case unsure:
					s.is("console by role", about+": "+title, got, want+"+")
				default:
					s.is("console by role", about+": "+title, got, want)
				}
			}
		}
		client.CloseIdleConnections()
	}
}
