package listing_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/listing"
)

// A kind that is misspelt is refused, with what was meant.
func TestParse(t *testing.T) {
	for text, want := range map[string]listing.Kind{"": listing.Catalog, "catalog": listing.Catalog, "harbor": listing.Harbor, "gitlab": listing.GitLab, "gitea": listing.Gitea, "quay": listing.Quay, "zot": listing.Zot} {
		if got, err := listing.Parse(text); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if _, err := listing.Parse("habor"); err == nil || !strings.Contains(err.Error(), "did you mean harbor?") {
		t.Error(err)
	}
}

// Patterns of one owner need one list; a list of an owner needs one.
func TestLists(t *testing.T) {
	for _, tc := range []struct {
		kind     listing.Kind
		patterns string
		want     string // owners
	}{
		{listing.Harbor, "** a/*", "."}, {listing.Zot, "**", "."},
		{listing.Gitea, "a/* a/b* b/c", "a b"}, {listing.Quay, "a/**", "a"},
		{listing.GitLab, "a/b/** a/b/*/c a/*", "a/b a"},
		{listing.Gitea, "**", "error"}, {listing.Quay, "a*/b", "error"}, {listing.GitLab, "*/b/c", "error"},
	} {
		lists, err := tc.kind.Lists(strings.Fields(tc.patterns))
		got := ""
		for _, l := range lists {
			got += " " + l.Owner()
			if l.Owner() == "" {
				got += "."
			}
		}
		if err != nil {
			got = "error"
		}
		if strings.TrimSpace(got) != tc.want {
			t.Errorf("%s %s: %s, %v", tc.kind, tc.patterns, got, err)
		}
	}
}

// Whatever an answer says, the next page is on the API's path, each page of a list that repeats
// ends it, and names are those of the answer.
func fuzz(f *testing.F, kind listing.Kind, prefix string, seeds ...string) {
	for _, seed := range append(seeds, "[]", "null", "{}", "[1]", "[{}]", "{") {
		f.Add(seed, "", "")
		f.Add(seed, "3", `<https://evil.example.com/x?page=7>; rel="next"`)
	}
	f.Fuzz(func(t *testing.T, body, total, link string) {
		lists, err := kind.Lists([]string{"acme/app/**"})
		if err != nil {
			t.Fatal(err)
		}
		l := lists[0]
		header := http.Header{"Link": {link}, "X-Total-Count": {total}, "X-Total": {total}}
		for n := 0; l.Path() != ""; n++ {
			path := l.Path()
			if u, err := url.Parse(path); err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(path, prefix) {
				t.Fatalf("the next page is %q", path)
			}
			if n > 2 {
				t.Fatalf("the same page is read %d times", n)
			}
			names, err := l.Read([]byte(body), header)
			if err != nil && (len(names) > 0 || l.Path() != "") {
				t.Errorf("error %v, names %q, and it goes on at %q", err, names, l.Path())
			}
			if len(names) > len(body) {
				t.Errorf("%d names of %d bytes", len(names), len(body))
			}
		}
	})
}

func FuzzHarborList(f *testing.F) {
	fuzz(f, listing.Harbor, "/api/v2.0/repositories?", `[{"name":"library/app"},{"name":"library/db"}]`)
}

func FuzzGitLabList(f *testing.F) {
	fuzz(f, listing.GitLab, "/api/v4/groups/acme%2Fapp/registry/repositories?", `[{"id":1,"path":"acme/app/web","location":"r/acme/app/web"}]`)
}

func FuzzGiteaList(f *testing.F) {
	fuzz(f, listing.Gitea, "/api/v1/packages/acme?", `[{"type":"container","name":"app","version":"1.0","owner":{"login":"Acme"}},{"type":"npm","name":"x"}]`)
}

func FuzzQuayList(f *testing.F) {
	fuzz(f, listing.Quay, "/api/v1/repository?", `{"repositories":[{"namespace":"acme","name":"app"}],"next_page":"gAAAA+/=&x=y"}`, `{"next_page":"a"}`)
}

func FuzzZotList(f *testing.F) {
	fuzz(f, listing.Zot, "/v2/_zot/ext/search?", `{"data":{"RepoListWithNewestImage":{"Page":{"TotalCount":3,"ItemCount":1},"Results":[{"Name":"acme/app"}]}}}`, `{"errors":[{"message":"x"}]}`)
}

// Whatever Harbor answers, the next page is of the same repository, and a list that contradicts
// itself is an error.
func FuzzHarborArtifacts(f *testing.F) {
	for _, seed := range []string{`[{"digest":"sha256:a","tags":[{"name":"v1"},{"name":"v2"}],"accessories":[{"digest":"sha256:b"}]},{"digest":"sha256:c","tags":null}]`, `[{"digest":"sha256:a","tags":[{"name":"v1"}]},{"digest":"sha256:b","tags":[{"name":"v1"}]}]`, "[]", "[{}]", "null"} {
		f.Add(seed, "2")
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, body, total string) {
		a := listing.ArtifactsOf("acme/web/app")
		for n := 0; a.Path() != ""; n++ {
			if !strings.HasPrefix(a.Path(), "/api/v2.0/projects/acme/repositories/web%252Fapp/artifacts?page=") {
				t.Fatalf("the next page is %q", a.Path())
			}
			if err := a.Read([]byte(body), http.Header{"X-Total-Count": {total}}); err != nil {
				return
			}
			if len(a.Tags()) > len(body) || n > 0 && len(a.Tags()) > 0 {
				t.Fatalf("%d tags of %d bytes, page %d", len(a.Tags()), len(body), n)
			}
			if body == "[]" || n > 100 {
				return
			}
		}
	})
}

// Only what the list says counts, in whatever order.
func TestArtifactsSum(t *testing.T) {
	sum := func(body string) (sum [32]byte, path string) {
		a := listing.ArtifactsOf("acme/app")
		if err := a.Read([]byte(body), http.Header{"X-Total-Count": {"2"}}); err != nil {
			t.Fatal(err)
		}
		return a.Sum(), a.Path()
	}
	const one = `{"digest":"sha256:a","pull_time":"1","tags":[{"name":"v1"},{"name":"v2"}],"accessories":[{"digest":"sha256:s"}]}`
	want, path := sum(`[` + one + `,{"digest":"sha256:b"}]`)
	if path != "" {
		t.Errorf("it goes on at %s", path)
	}
	if got, _ := sum(`[{"digest":"sha256:b","pull_time":"2"},` + strings.Replace(one, `{"name":"v1"},{"name":"v2"}`, `{"name":"v2"},{"name":"v1"}`, 1) + `]`); got != want {
		t.Error("another order is another sum")
	}
	for from, to := range map[string]string{"v2": "v3", "sha256:a": "sha256:d", "sha256:s": "sha256:t", `{"name":"v1"},`: "", `,"accessories":[{"digest":"sha256:s"}]`: ""} {
		if got, _ := sum(`[` + strings.Replace(one, from, to, 1) + `,{"digest":"sha256:b"}]`); got == want {
			t.Errorf("%s instead of %s is the same sum", to, from)
		}
	}
	a := listing.ArtifactsOf("acme/app")
	if err := a.Read([]byte(`[`+one+`]`), http.Header{"X-Total-Count": {"3"}}); err == nil {
		t.Error("a list that ends early is whole")
	}
	for body, want := range map[string]string{`{"project_id":1}`: "false <nil>", `{"project_id":1,"registry_id":3}`: "true <nil>", `{}`: "false it is no project"} {
		if is, err := listing.IsCache([]byte(body)); fmt.Sprint(is, err) != want {
			t.Errorf("%s: %t, %v", body, is, err)
		}
	}
}

// A list by number goes on while there is more by its count, its link or its size.
func TestPagesGoOn(t *testing.T) {
	full := "[" + strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, 100), ",") + "]"
	for name, tc := range map[string]struct {
		body   string
		header http.Header
		want   bool
	}{
		"by its count":       {`[{"name":"a"}]`, http.Header{"X-Total-Count": {"2"}}, true},
		"by its link":        {`[{"name":"a"}]`, http.Header{"Link": {`</x?page=2>; rel="next"`}}, true},
		"by its size":        {full, nil, true},
		"not":                {`[{"name":"a"}]`, nil, false},
		"not by a last link": {`[{"name":"a"}]`, http.Header{"Link": {`</x?page=1>; rel="prev"`}}, false},
		"full, and all":      {full, http.Header{"X-Total-Count": {"100"}}, false},
		"none":               {`[]`, http.Header{"Link": {`</x?page=2>; rel="next"`}}, false},
	} {
		lists, _ := listing.Harbor.Lists(nil)
		if _, err := lists[0].Read([]byte(tc.body), tc.header); err != nil || (lists[0].Path() != "") != tc.want || lists[0].Cut() != "" {
			t.Errorf("%s: goes on at %q, %v", name, lists[0].Path(), err)
		}
		if tc.want && lists[0].Path() != "/api/v2.0/repositories?page=2&page_size=100&sort=name" {
			t.Errorf("%s: %s", name, lists[0].Path())
		}
	}
}
