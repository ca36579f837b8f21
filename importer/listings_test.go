package importer_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/listing"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// loginOf gives credentials for one host alone.
type loginOf struct {
	host string
	authn.AuthConfig
}

func (l loginOf) Resolve(of authn.Resource) (authn.Authenticator, error) {
	if of.RegistryStr() != l.host {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(l.AuthConfig), nil
}

// names are n repositories of acme, in two groups, and three others.
func listedNames(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("acme/%s/app%04d", []string{"core", "edge"}[i%2], i))
	}
	all = append(all, "other/secret", "public/a", "public/b")
	slices.Sort(all)
	return all
}

// Each kind of registry lists what it has, page by page, to who may see it, and is asked with the
// credentials that its API takes.
func TestOwnLists(t *testing.T) {
	t.Parallel()
	const repositories = 230
	for _, tc := range []struct {
		kind     listing.Kind
		username string
		serve    func(*registrytest.Registry, registrytest.Lists)
		pages    int // of acme/** and public/*
	}{
		{listing.Harbor, "robot$sweep", (*registrytest.Registry).ServeHarbor, 3},
		{listing.GitLab, "ci", (*registrytest.Registry).ServeGitLab, 3 + 1},
		{listing.Gitea, "ci", (*registrytest.Registry).ServeGitea, 10 + 1}, // two versions, 50 a page
		{listing.Quay, pull.OAuthUser, (*registrytest.Registry).ServeQuay, 3 + 1},
		{listing.Zot, "ci", (*registrytest.Registry).ServeZot, 1},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			all := listedNames(repositories)
			tc.serve(registry, registrytest.Lists{Names: func() []string { return all }, Username: tc.username, Password: "s3cret", Versions: 2})
			list := func(password string) (names []string, warnings []string, err error) {
				im := newImporter(t, importer.Options{Keychain: loginOf{registry.Host, authn.AuthConfig{Username: tc.username, Password: password}}, Limits: pull.Limits{Attempts: 1}})
				repositories, warnings, err := im.ListRepositories(t.Context(), registry.Host, tc.kind, []string{"acme/**", "public/*"})
				for _, r := range repositories {
					names = append(names, r.Repository)
				}
				return names, warnings, err
			}
			got, warnings, err := list("s3cret")
			want := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
				return name == "other/secret" && tc.kind != listing.Harbor && tc.kind != listing.Zot
			})
			if err != nil || len(warnings) > 0 || !slices.Equal(got, want) {
				t.Errorf("%d names of %d, warnings %q, error %v", len(got), len(want), warnings, err)
			}
			asked := 0
			for _, r := range registry.Requests() {
				if r.Status == http.StatusOK {
					asked++
				}
			}
			if asked != tc.pages {
				t.Errorf("%d pages were read, want %d", asked, tc.pages)
			}
			if tc.kind == listing.Zot {
				return // this one asks nobody who he is
			}
			// Credentials that are wrong are an error: else a list would have what everybody may see.
			if _, _, err := list("wrong"); pull.ReasonOf(err) != pull.Unauthorized || !strings.Contains(err.Error(), "list of "+string(tc.kind)) || strings.Contains(err.Error(), "wrong") {
				t.Errorf("with wrong credentials: %v", err)
			}
		})
	}
}

// Quay's API does not know robots: their list has public repositories alone, and says so.
func TestQuayListsForRobots(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	registry.ServeQuay(registrytest.Lists{Names: func() []string { return []string{"acme/app", "public/a"} }, Password: "s3cret"})
	im := newImporter(t, importer.Options{Keychain: loginOf{registry.Host, authn.AuthConfig{Username: "acme+robot", Password: "robots"}}})
	got, warnings, err := im.ListRepositories(t.Context(), registry.Host, listing.Quay, []string{"acme/*", "public/*"})
	if err != nil || len(got) != 1 || len(warnings) != 2 || !strings.Contains(warnings[0], "shows public repositories alone: its API takes an OAuth access token") {
		t.Errorf("%v, warnings %q, error %v", got, warnings, err)
	}
	for _, r := range registry.AllRequests() {
		if r.Authorization != "" {
			t.Errorf("%s was sent %s", r, r.Authorization)
		}
	}
}

// GitLab is where its registry sends clients for tokens, if that host may see the credentials.
func TestGitLabIsAtTheTokenServer(t *testing.T) {
	t.Parallel()
	gitlab := registrytest.New(t)
	gitlab.ServeGitLab(registrytest.Lists{Names: func() []string { return listedNames(4) }, Password: "glpat"})
	registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Realm: gitlab.URL + "/jwt/auth"}))
	keychain := loginOf{registry.Host, authn.AuthConfig{Username: "ci", Password: "glpat"}}

	_, _, err := newImporter(t, importer.Options{Keychain: keychain}).ListRepositories(t.Context(), registry.Host, listing.GitLab, []string{"acme/**"})
	if pull.ReasonOf(err) != pull.Unauthorized || !strings.Contains(err.Error(), "tokenHosts") {
		t.Errorf("a token server that nobody named: %v", err)
	}
	if n := len(gitlab.AllRequests()); n != 0 {
		t.Errorf("it was asked %d times", n)
	}

	im := newImporter(t, importer.Options{Keychain: keychain, Registries: []pull.Registry{{Prefix: registry.Host, TokenHosts: []string{gitlab.Host}}}})
	// A project, a path below one, and a group.
	for pattern, want := range map[string]int{"acme/core/**": 2, "acme/core/app0000/*": 2, "acme/**": 4} {
		got, _, err := im.ListRepositories(t.Context(), registry.Host, listing.GitLab, []string{pattern})
		if err != nil || len(got) < want || got[0].Host != registry.Host {
			t.Errorf("%s: %v, %v", pattern, got, err)
		}
	}
	for _, r := range registry.AllRequests() {
		if r.Header.Get("Private-Token") != "" || strings.HasPrefix(r.Path, "/api") {
			t.Errorf("the registry got %s", r)
		}
	}
	if _, _, err := im.ListRepositories(t.Context(), registry.Host, listing.GitLab, []string{"nobody/**"}); pull.ReasonOf(err) != pull.NotFound {
		t.Errorf("no such group: %v", err)
	}
}

// A redirect takes no credentials along, and no list reads on elsewhere.
func TestOwnListsStayAtTheirHost(t *testing.T) {
	t.Parallel()
	elsewhere := registrytest.New(t)
	elsewhere.Inject("GET /", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[]") })
	})
	for kind, login := range map[listing.Kind]authn.AuthConfig{
		listing.Harbor: {Username: "ci", Password: "s3cret"}, listing.Gitea: {Username: "ci", Password: "s3cret"},
		listing.GitLab: {Username: "ci", Password: "s3cret"}, listing.Quay: {Username: pull.OAuthUser, Password: "s3cret"},
	} {
		registry := registrytest.New(t)
		registry.Inject("GET /api/", 0, registrytest.Status(http.StatusFound, "", "Location", elsewhere.URL+"/api/list"))
		_, _, _ = newImporter(t, importer.Options{Keychain: loginOf{registry.Host, login}}).ListRepositories(t.Context(), registry.Host, kind, []string{"acme/*"})
	}
	for _, r := range elsewhere.AllRequests() {
		if r.Authorization != "" || r.Header.Get("Private-Token") != "" {
			t.Errorf("%s has credentials: %v", r, r.Header)
		}
	}
}

// Lists that do not end, are too long or are none are errors; one that repeats or is short of its
// own count says that there may be more.
func TestOwnListsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	answer := func(body func(page int) string, headers ...string) registrytest.Fault {
		page := 0
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				page++
				for i := 0; i+1 < len(headers); i += 2 {
					w.Header().Set(headers[i], headers[i+1])
				}
				fmt.Fprint(w, body(page))
			})
		}
	}
	same := func(text string) func(int) string { return func(int) string { return text } }
	many := func(page int) string {
		var all []string
		for i := range 40_000 {
			all = append(all, fmt.Sprintf(`{"name":"a/%d-%d"}`, page, i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for name, tc := range map[string]struct {
		kind          listing.Kind
		fault         registrytest.Fault
		reason        pull.Reason
		text, warning string
	}{
		"not JSON":        {listing.Harbor, answer(same("<html>")), pull.Unexpected, "cannot be read", ""},
		"huge":            {listing.Harbor, answer(same("[" + strings.Repeat(" ", 5<<20))), pull.TooLarge, "", ""},
		"endless":         {listing.Harbor, answer(func(page int) string { return fmt.Sprintf(`[{"name":"a/%d"}]`, page) }, "X-Total-Count", "999999"), pull.TooLarge, "more than 1000 pages", ""},
		"too many":        {listing.Harbor, answer(many, "X-Total-Count", "999999"), pull.TooLarge, "more than 100000 repositories", ""},
		"the same again":  {listing.Harbor, answer(same(`[{"name":"a/b"}]`), "X-Total-Count", "9"), "", "", "a page is the same as one before"},
		"short":           {listing.Gitea, answer(func(page int) string { return []string{`[{"type":"container","name":"b"}]`, "[]"}[min(page, 2)-1] }, "X-Total-Count", "9"), "", "", "9 entries by its own count, and it shows 1"},
		"an error of zot": {listing.Zot, answer(same(`{"errors":[{"message":"no search"}],"data":null}`)), pull.Unexpected, "no search", ""},
		"no data of zot":  {listing.Zot, answer(same(`{}`)), pull.Unexpected, "no data", ""},
		"none":            {listing.Zot, registrytest.Status(404, "NOT_FOUND"), pull.NotFound, "the list of zot", ""},
		"closed":          {listing.Quay, registrytest.Status(403, "DENIED"), pull.Denied, "the list of quay", ""},
	} {
		registry := registrytest.New(t)
		registry.Inject("GET /(api|v2/_zot)/", 0, tc.fault)
		_, warnings, err := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}}).ListRepositories(t.Context(), registry.Host, tc.kind, []string{"a/*"})
		if pull.ReasonOf(err) != tc.reason || err != nil && !strings.Contains(err.Error(), tc.text) || (tc.warning != "") != (len(warnings) == 1) || tc.warning != "" && !strings.Contains(warnings[0], tc.warning) {
			t.Errorf("%s: warnings %q, error %v", name, warnings, err)
		}
	}
}
