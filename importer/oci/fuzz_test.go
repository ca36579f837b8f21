package oci_test

import (
	"net/http"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/oci"
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
