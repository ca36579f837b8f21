package importer_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

func TestTags(t *testing.T) {
	registry := registrytest.New(t)
	image := newImage(t, sample.Spec{})
	for _, tag := range []string{
		"v1.9", "v1.10", "latest", "main", "v2.0-rc1", "v2.0", "1.0", "sha256-" + hex64, "sha256-" + hex64 + ".sig", "sha256-" + hex64 + ".att", "sha256-short",
	} {
		registry.Push("team/app:"+tag, image)
	}
	got, _, err := newImporter(t, importer.Options{}).Tags(t.Context(), parse(t, registry.Host+"/team/app"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"latest", "v2.0", "v2.0-rc1", "v1.10", "v1.9", "1.0", "main", "sha256-short"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTagsFail(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}})
	_, _, err := im.Tags(t.Context(), parse(t, registry.Host+"/team/none"))
	if e := wantReason(t, err, pull.NotFound); e.Reference != registry.Host+"/team/none" {
		t.Errorf("%v", e)
	}
	asked := 0
	page := func(body, link string) registrytest.Fault {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				asked++
				each := strings.NewReplacer("SELF", req.URL.Path, "NEXT", fmt.Sprint("t", asked))
				if link != "" {
					w.Header().Set("Link", each.Replace(link))
				}
				_, _ = each.WriteString(w, body)
			})
		}
	}
	for name, tc := range map[string]struct {
		fault registrytest.Fault
		want  pull.Reason
	}{
		"not JSON":     {page("<html>", ""), pull.Unexpected},
		"endless":      {page(`{"tags":["NEXT"]}`, `<SELF?last=NEXT&n=1>; rel="next"`), pull.TooLarge},
		"another host": {page(`{"tags":["a"]}`, `<http://localhost:1/v2/x/tags/list>; rel="next"`), pull.Unexpected},
		"huge":         {registrytest.Append(5<<20, false), pull.TooLarge},
		"rate limit":   {registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "0"), pull.RateLimited},
	} {
		t.Run(name, func(t *testing.T) {
			registry.Heal()
			registry.Inject("/tags/list", 0, tc.fault)
			_, _, err := im.Tags(t.Context(), parse(t, registry.Host+"/team/app"))
			wantReason(t, err, tc.want)
		})
	}
}

// One bad name failed the whole list.
func TestNamesThatAreNoTagsAreLeftOut(t *testing.T) {
	registry := registrytest.New(t)
	registry.Inject("/tags/list", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"tags":["../../x","v1","a\u001b[31m b","v2",""]}`)
		})
	})
	got, warnings, err := newImporter(t, importer.Options{}).Tags(t.Context(), parse(t, registry.Host+"/team/app"))
	if err != nil || !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("the tags are %q, %v", got, err)
	}
	if want := registry.Host + `/team/app lists 3 invalid tag names, "" last`; !slices.Equal(warnings, []string{want}) {
		t.Errorf("the warnings are %q, want %s", warnings, want)
	}
}

func TestTagsArePaged(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	var want []string
	registry.Inject("/tags/list", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			n := 0
			fmt.Sscan(req.URL.Query().Get("last"), &n)
			var tags []string
			for i := range 10 {
				tags = append(tags, fmt.Sprint(n+i+1))
			}
			if n < 40 {
				w.Header().Set("Link", fmt.Sprintf(`</v2/team/app/tags/list?last=%d>; rel="next"`, n+10))
			}
			if err := json.NewEncoder(w).Encode(map[string]any{"name": "team/app", "tags": tags}); err != nil {
				t.Error(err)
			}
		})
	})
	for i := 50; i > 0; i-- {
		want = append(want, fmt.Sprint(i))
	}
	got, _, err := newImporter(t, importer.Options{}).Tags(t.Context(), parse(t, registry.Host+"/team/app"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompareTags(t *testing.T) {
	want := []string{
		"latest", "2024.01.15", "10.0.0", "v9.2.10", "v9.2.9", "9.2.9-rc.10", "9.2.9-rc.2", "1.1", "1", "v1", "1-alpine", "0.1",
		"alpine", "build", "build-10", "build-9", "main", "pr-7-amd64", "pr-7-arm64", "pr-6", "sha-0a1b", "t1002", "t1001", "t0999", "t999", "t2",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, importer.CompareTags)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The order is total: what SortFunc needs.
func FuzzCompareTags(f *testing.F) {
	f.Add("v1.9", "v1.10", "latest")
	f.Add("1", "01", "001")
	f.Add("v", "1-", "1-rc1")
	f.Add("1.a", "1.1", "1-")
	f.Add("t0999", "t999", "t1000")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab, bc, ac := importer.CompareTags(a, b), importer.CompareTags(b, c), importer.CompareTags(a, c)
		if importer.CompareTags(b, a) != -ab {
			t.Fatalf("%q and %q are each before the other", a, b)
		}
		if (ab == 0) != (a == b) {
			t.Fatalf("%q and %q are the same", a, b)
		}
		if ab < 0 && bc < 0 && ac >= 0 {
			t.Fatalf("%q < %q < %q, yet not %[1]q < %[3]q", a, b, c)
		}
	})
}
