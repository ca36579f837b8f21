package find

import (
	"net/http"
	"strings"
	"testing"
	"unicode"
)

// A next page is always on the same registry.
func FuzzNextPage(f *testing.F) {
	const base, here = "https://registry.example.com:5000", "/v2/a/referrers/sha256:00?n=1"
	for _, link := range []string{`</v2/a/referrers/sha256:00?last=x>; rel="next"`, `<https://registry.example.com:5000/x>;rel=next`,
		`<//evil.example.com/x>; rel="next"`, `<?n=2>; title="x"; rel="next"`, `<http://[::1]/>; rel=next`, `<\\evil\x>; rel=next`, "<"} {
		f.Add(link)
	}
	f.Fuzz(func(t *testing.T, link string) {
		next := nextPage(http.Header{"Link": {link}}, here, base)
		if next == "" {
			return
		}
		c := &client{base: base, http: &http.Client{Transport: refusing{t, "registry.example.com:5000"}}}
		c.get(t.Context(), next, "", 1)
	})
}

// refusing fails the test when a request is for another host.
type refusing struct {
	t    *testing.T
	host string
}

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host != r.host {
		r.t.Errorf("a page of %s leads to %s", r.host, req.URL)
	}
	return nil, http.ErrUseLastResponse
}

// What is sorted is sorted once: an error or a type, and text that goes on is clean.
func FuzzPredicateOf(f *testing.F) {
	f.Add([]byte(`{"dsseEnvelope":{"payload":"eyJwcmVkaWNhdGVUeXBlIjoicCJ9"}}`))
	f.Add([]byte(`{"messageSignature":{}}`))
	f.Add([]byte(`{"dsseEnvelope":{"payload":"*"}}`))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		predicate, err := predicateOf(bundle)
		if err != nil && predicate != "" {
			t.Fatalf("%q with %v", predicate, err)
		}
		if c := clip(predicate); len(c) > maxWarningBytes || strings.ContainsFunc(c, unicode.IsControl) {
			t.Fatalf("%q", c)
		}
	})
}
