package oci_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// A next page is always on the same registry.
func FuzzNext(f *testing.F) {
	const host = "registry.example.com:5000"
	for _, link := range []string{`</v2/a/referrers/sha256:00?last=x>; rel="next"`, `<https://registry.example.com:5000/x>;rel=next`,
		`<//evil.example.com/x>; rel="next"`, `<https://registry.example.com:5000//evil.example.com/x>; rel="next"`,
		`<?n=2>; title="x"; rel="next"`, `<http://[::1]/>; rel=next`, `<\\evil\x>; rel=next`, "<"} {
		f.Add(link)
	}
	f.Fuzz(func(t *testing.T, link string) {
		c := oci.New("https", host, "a", roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != host || r.URL.Scheme != "https" {
				t.Errorf("the page after %q is %s", link, r.URL)
			}
			return nil, http.ErrUseLastResponse
		}))
		if next, _ := c.Next(http.Header{"Link": {link}}, c.Path("referrers/sha256:00?n=1")); next != "" {
			_, _, _ = c.Read(t.Context(), next, "", 1)
		}
	})
}

// Whatever a registry lists, all pages are on it, one that is not linked is asked for once, and a
// list is not read again that comes again.
func FuzzPages(f *testing.F) {
	for _, seed := range []struct {
		path, link, names string
		asked             int
	}{
		{"/v2/a/tags/list?n=3", "", "a b c", 3}, {"/v2/a/tags/list", `<?n=2>; rel="next"`, "a", 1}, {"/v2/_catalog?n=1", "", "a/b", 1},
		{"/v2/a/tags/list?n=2", "", "&last=x #", 2}, {"/v2/a/tags/list?%zz", "", "%00 //evil", 2}, {"//evil", "<//evil>", "x", 0},
		// its one name is the path
		{"/v2/a/tags/list", "", "/v2/a/tags/list", 1},
	} {
		f.Add(seed.path, seed.link, seed.names, seed.asked)
	}
	f.Fuzz(func(t *testing.T, path, link, text string, asked int) {
		const host = "registry.example.com:5000"
		c := oci.New("https", host, "a", roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != host || r.URL.Scheme != "https" {
				t.Errorf("a page is %s", r.URL)
			}
			return nil, http.ErrUseLastResponse
		}))
		names, list := strings.Fields(text), c.List(path, asked)
		isNew, elsewhere := list.Read(http.Header{"Link": {link}}, names)
		if !isNew {
			t.Error("the first page is none")
		}
		if elsewhere && list.Path() != "" {
			t.Errorf("the list goes on elsewhere, and at %q", list.Path())
		}
		if list.Path() != "" {
			_, _, _ = c.Read(t.Context(), list.Path(), "", 1)
		}
		if list.IsGuess() {
			if isNew, _ := list.Read(http.Header{}, names); isNew || list.Path() != "" {
				t.Errorf("the same page again is new: %t, and goes on at %q", isNew, list.Path())
			}
		}
	})
}
