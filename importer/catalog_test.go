package importer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// catalogPages answers with pages of names; after the last one without a Link.
func catalogPages(t *testing.T, pages ...[]string) registrytest.Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			n := 0
			fmt.Sscan(req.URL.Query().Get("last"), &n)
			if n < len(pages)-1 {
				w.Header().Set("Link", fmt.Sprintf(`</v2/_catalog?n=2&last=%d>; rel="next"`, n+1))
			}
			if err := json.NewEncoder(w).Encode(map[string]any{"repositories": pages[n]}); err != nil {
				t.Error(err)
			}
		})
	}
}

// All pages are read, with a token for the catalog, and what is not a repository is told and left
// out: it would be part of a URL.
func TestCatalogIsPaged(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Anonymous: true}))
	registry.Inject("GET /v2/_catalog", 0, catalogPages(t, []string{"team/b", "team/a"}, []string{"../../evil", "UPPER"}, nil, []string{"team/a", "top"}))
	got, warnings, err := newImporter(t, importer.Options{}).Repositories(t.Context(), registry.Host)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range got {
		names = append(names, r.String())
	}
	if want := "HOST/team/a HOST/team/b HOST/top"; strings.ReplaceAll(strings.Join(names, " "), registry.Host, "HOST") != want {
		t.Errorf("%v", names)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "lists 2 invalid repository names") {
		t.Errorf("warnings %q", warnings)
	}
	scoped := false
	for _, r := range registry.AllRequests() {
		scoped = scoped || r.Path == "/token"
	}
	if !scoped {
		t.Error("no token was asked for")
	}
}

func TestCatalogsThatCannotBeRead(t *testing.T) {
	registry := registrytest.New(t)
	im := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}})
	asked := 0
	link := func(to string) registrytest.Fault {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.Header().Set("Link", fmt.Sprintf(`<%s%d>; rel="next"`, to, asked))
				fmt.Fprintf(w, `{"repositories":["a%d"]}`, asked)
			})
		}
	}
	many := make([]string, 120_000)
	for i := range many {
		many[i] = fmt.Sprint("r", i)
	}
	const advice = "name the repositories one by one: import has --all-tags and -f"
	for name, tc := range map[string]struct {
		fault registrytest.Fault
		want  pull.Reason
		text  string
	}{
		"there is none":  {registrytest.Status(404, "UNSUPPORTED"), pull.NotFound, advice},
		"not for you":    {registrytest.Status(401, "UNAUTHORIZED"), pull.Unauthorized, advice},
		"forbidden":      {registrytest.Status(403, "DENIED"), pull.Denied, advice},
		"method":         {registrytest.Status(405, "UNSUPPORTED"), pull.Unexpected, advice},
		"endless":        {link("/v2/_catalog?n=1000&last=a"), pull.TooLarge, "1000 pages"},
		"another host":   {link("http://localhost:1/v2/_catalog"), pull.Unexpected, "not on the registry"},
		"too many":       {catalogPages(t, many[:60_000], many[60_000:]), pull.TooLarge, "more than 100000 repositories"},
		"huge":           {registrytest.Append(5<<20, false), pull.TooLarge, ""},
		"asks for peace": {registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "0"), pull.RateLimited, ""},
	} {
		t.Run(name, func(t *testing.T) {
			registry.Heal()
			registry.Inject("/_catalog", 0, tc.fault)
			_, _, err := im.Repositories(t.Context(), registry.Host)
			var e *pull.Error
			if !errors.As(err, &e) || e.Reason != tc.want || e.Host != registry.Host || !strings.Contains(err.Error(), tc.text) || !strings.HasPrefix(err.Error(), registry.Host+": ") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A list that leads back, to itself or in a circle, ends there, with a warning.
func TestListsThatLeadBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		link func(page int) int // by the number of the page that links
		want int
	}{
		"to the page itself": {func(page int) int { return page }, 1},
		"to the first page":  {func(page int) int { return (page + 1) % 3 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			registry.Inject("/(tags/list|_catalog)", 0, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					page, _ := strconv.Atoi(req.FormValue("page"))
					w.Header().Set("Link", fmt.Sprintf(`<%s?n=1000&page=%d>; rel="next"`, req.URL.Path, tc.link(page)))
					names := []string{fmt.Sprint("a", page)}
					_ = json.NewEncoder(w).Encode(map[string]any{"tags": names, "repositories": names})
				})
			})
			im := newImporter(t, importer.Options{})
			tags, warnings, err := im.Tags(t.Context(), parse(t, registry.Host+"/app"))
			if err != nil || len(tags) != tc.want || len(warnings) != 1 || !strings.Contains(warnings[0], "there may be more: a page leads back") {
				t.Errorf("tags %q, warnings %q, error %v", tags, warnings, err)
			}
			repositories, warnings, err := im.Repositories(t.Context(), registry.Host)
			if err != nil || len(repositories) != tc.want || len(warnings) != 1 || !strings.Contains(warnings[0], "there may be more: a page leads back") {
				t.Errorf("repositories %v, warnings %q, error %v", repositories, warnings, err)
			}
			// The first request has no number of a page, so it is read once more by its number.
			if n, most := registry.Count("/(tags/list|_catalog)"), 2*(tc.want+1); n > most {
				t.Errorf("%d pages were read, want at most %d", n, most)
			}
		})
	}
}

func created(t *testing.T, image v1.Image, at time.Time) v1.Image {
	t.Helper()
	out, err := mutate.CreatedAt(image, v1.Time{Time: at})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Dates are those of configs, and of what is stored already; what reproducible builds write is
// none.
func TestCreated(t *testing.T) {
	registry := registrytest.New(t)
	day := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	registry.Push("team/app:dated", created(t, newImage(t, sample.Spec{}), day))
	for tag, at := range map[string]time.Time{"epoch": time.Unix(0, 0), "zip": time.Date(1980, 1, 1, 0, 0, 1, 0, time.UTC), "zero": {}} {
		registry.Push("team/app:"+tag, created(t, newImage(t, sample.Spec{}), at))
	}
	registry.PushIndex("team/app:index", newIndex(t, sample.Spec{}, true, "linux/arm64", "linux/amd64"))
	chart, err := sample.Artifact("application/vnd.cncf.helm.config.v1+json", []byte("chart"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:chart", chart)
	im, images := newImporter(t, importer.Options{}), &registrytest.Images{}
	for tag, want := range map[string]time.Time{"dated": day, "epoch": {}, "zip": {}, "zero": {}} {
		got, err := im.Created(t.Context(), parse(t, registry.Host+"/team/app:"+tag), images)
		if err != nil || !got.Equal(want) {
			t.Errorf("%s was created at %v, %v; want %v", tag, got, err, want)
		}
	}
	if got, err := im.Created(t.Context(), parse(t, registry.Host+"/team/app:index"), images); err != nil || got.IsZero() {
		t.Errorf("the index was created at %v, %v", got, err)
	}
	_, err = im.Created(t.Context(), parse(t, registry.Host+"/team/app:chart"), images)
	wantReason(t, err, pull.NotAnImage)
}

// Some registries cut lists at the number that was asked for, or at one of their own, and do not
// link the next page. No list is cut in silence.
func TestListsWithoutLinks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		names, page int
		// the answer to last=: the next page if empty
		last  string
		reads int
		want  int
		warns bool
	}{
		"nothing more":                      {names: 999, page: 1000, reads: 1, want: 999},
		"exactly a page":                    {names: 1000, page: 1000, reads: 2, want: 1000},
		"three more":                        {names: 1003, page: 1000, reads: 2, want: 1003},
		"two pages exactly":                 {names: 2000, page: 1000, reads: 3, want: 2000},
		"pages of its own":                  {names: 207, page: 100, reads: 3, want: 207},
		"it does not know last":             {names: 1003, page: 1000, last: "ignored", reads: 2, want: 1000, warns: true},
		"it does not take last":             {names: 1003, page: 1000, last: "refused", reads: 2, want: 1000, warns: true},
		"it knows no pages":                 {names: 1250, page: 5000, last: "ignored", reads: 1, want: 1250},
		"a round number, and no last":       {names: 50, page: 5000, last: "ignored", reads: 2, want: 50},
		"a round number, and last is wrong": {names: 50, page: 5000, last: "refused", reads: 2, want: 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			all := make([]string, tc.names)
			for i := range all {
				all[i] = fmt.Sprintf("t%05d", i)
			}
			registry.Inject("/(tags/list|_catalog)", 0, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					last, rest := req.FormValue("last"), all
					switch {
					case last != "" && tc.last == "refused":
						w.WriteHeader(http.StatusBadRequest)
						return
					case last != "" && tc.last == "":
						rest = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name <= last })
					}
					rest = rest[:min(len(rest), tc.page)]
					_ = json.NewEncoder(w).Encode(map[string]any{"tags": rest, "repositories": rest})
				})
			})
			im := newImporter(t, importer.Options{})
			tags, warnings, err := im.Tags(t.Context(), parse(t, registry.Host+"/app"))
			if err != nil || len(tags) != tc.want || (len(warnings) > 0) != tc.warns {
				t.Errorf("%d tags, warnings %q, error %v", len(tags), warnings, err)
			}
			repositories, warnings, err := im.Repositories(t.Context(), registry.Host)
			if err != nil || len(repositories) != tc.want || (len(warnings) > 0) != tc.warns {
				t.Errorf("%d repositories, warnings %q, error %v", len(repositories), warnings, err)
			}
			if n := registry.Count("/(tags/list|_catalog)"); n != 2*tc.reads {
				t.Errorf("%d pages were read, want %d", n, 2*tc.reads)
			}
		})
	}
}
