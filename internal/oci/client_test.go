package oci_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// serve is a registry, and a client of its repository team/app.
func serve(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *oci.Client) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s, oci.New("http", s.Listener.Addr().String(), "team/app", s.Client().Transport)
}

// A next page whose path begins with two slashes was asked of the host that follows
// them: a registry could have any server asked for it.
func TestNextPageThatNamesAHostInItsPath(t *testing.T) {
	t.Parallel()
	other, _ := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("another server was asked") })
	var asked []string
	s, c := serve(t, func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.Path) })
	path := "//" + other.Listener.Addr().String() + "/latest"
	next, elsewhere := c.Next(http.Header{"Link": {"<" + s.URL + path + `>; rel="next"`}}, c.Path("tags/list"))
	if elsewhere || next == "" {
		t.Fatalf("next %q, elsewhere %t", next, elsewhere)
	}
	if _, _, err := c.Read(t.Context(), next, "", 10); err != nil {
		t.Fatal(err)
	}
	if len(asked) != 1 || asked[0] != path {
		t.Errorf("the registry was asked for %q, want %q", asked, path)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	c := oci.New("https", "r.example.com", "team/app", http.DefaultTransport)
	for link, want := range map[string]string{
		``: "",
		`</v2/team/app/tags/list?last=b>; rel="next"`: "/v2/team/app/tags/list?last=b",
		`<list?last=b>;rel=next`:                      "/v2/team/app/tags/list?last=b",
		`<?last=b>`:                                   "/v2/team/app/tags/list?last=b",
		`</x>; rel="prev"`:                            "",
		`</x>; title="a"; rel="next"`:                 "/x",
		`<https://r.example.com/x?n=1>; rel=NEXT`:     "/v2/team/app/tags/list?n=1",
		// Artifactory, whose repository team is not in the path, and Nexus
		`</v2/app/tags/list?last=10000&n=10000>; rel="next"`:                                      "/v2/team/app/tags/list?last=10000&n=10000",
		`<http://r.example.com:5002/repository/hub/v2/team/app/tags/list?n=1&last=b>; rel="next"`: "/v2/team/app/tags/list?n=1&last=b",
		`<http://r.example.com.evil.example/v2/team/app/tags/list?last=b>; rel="next"`:            "elsewhere",
		`<https://r.example.com:8443/x>; rel="next"`:                                              "elsewhere",
		`<http://r.example.com/x>; rel="next"`:                                                    "elsewhere",
		`<//evil.example.com/x>; rel="next"`:                                                      "elsewhere",
		`<http://169.254.169.254/latest/meta-data/>; rel="next"`:                                  "elsewhere",
		`<https://r.example.com%2f@evil.example.com/x>; rel="next"`:                               "elsewhere",
		`</x`:                                "",
		`</a>; rel="prev", </b>; rel="next"`: "/b",
		`</b>; rel="next",</a>; rel="prev"`:  "/b",
		`</a>; rel="prev"; title="a, b", <?c=1,2>; rel="next"`: "/v2/team/app/tags/list?c=1,2",
		`</a>; rel="first", </c>; rel="last"`:                  "",
	} {
		next, elsewhere := c.Next(http.Header{"Link": {link}}, c.Path("tags/list?n=1"))
		if elsewhere {
			next += "elsewhere"
		}
		if next != want {
			t.Errorf("%s: %q, want %q", link, next, want)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	for _, declared := range []bool{true, false} {
		for size, fits := range map[int]bool{0: true, 9: true, 10: true, 11: false, 1000: false} {
			_, c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Seen", "yes")
				if !declared {
					w.(http.Flusher).Flush()
				}
				_, _ = w.Write(make([]byte, size))
			})
			body, header, err := c.Read(t.Context(), c.Path("manifests/1"), "", 10)
			var large *oci.TooLargeError
			if fits != (err == nil) || !fits && !errors.As(err, &large) || fits && len(body) != size || header.Get("X-Seen") != "yes" {
				t.Errorf("%d bytes, declared %t: %d bytes, %v, %v", size, declared, len(body), header, err)
			}
		}
	}
}

// What a transport says of its own bound is not lost.
func TestReadOfABoundedTransport(t *testing.T) {
	t.Parallel()
	own := errors.New("the transport's bound")
	c := oci.New("http", "r.example.com", "a", roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{}, Request: r, Body: &failing{strings.NewReader("0123456789"), own}}, nil
	}))
	_, _, err := c.Read(t.Context(), c.Path("x"), "", 10)
	var large *oci.TooLargeError
	if !errors.As(err, &large) || !errors.Is(err, own) {
		t.Errorf("%v", err)
	}
	if _, _, err = c.Read(t.Context(), c.Path("x"), "", 11); errors.As(err, &large) || !errors.Is(err, own) {
		t.Errorf("below the bound: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type failing struct {
	*strings.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	if n, _ := f.Reader.Read(p); n > 0 {
		return n, nil
	}
	return 0, f.err
}

func (f *failing) Close() error { return nil }

// A registry redirects to storage with a secret in the query: it is in no error.
func TestErrorsHoldNoQuery(t *testing.T) {
	t.Parallel()
	_, c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/team/app/blobs/b" {
			http.Redirect(w, r, "http://127.0.0.1:1/storage?signature=topsecret", http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"errors":[{"code":"DENIED","message":"no"}]}`)
	})
	_, _, err := c.Read(t.Context(), c.Path("blobs/b"), "", 10)
	var wrapped *url.Error
	if err == nil || strings.Contains(err.Error(), "topsecret") || errors.As(err, &wrapped) {
		t.Errorf("redirected: %v", err)
	}
	_, header, err := c.Read(t.Context(), c.Path("manifests/1")+"?token=topsecret", "", 10)
	var answer *transport.Error
	if !errors.As(err, &answer) || answer.StatusCode != 403 || strings.Contains(err.Error(), "topsecret") || header == nil {
		t.Errorf("denied: %v", err)
	}
}

// A registry that does not link its pages, of any size that is expected.
func TestListsWithoutLinksAreReadToTheirEnd(t *testing.T) {
	for _, size := range []int{50, 64, 100, 128, 200, 256, 500, 512, 1000} {
		var all []string
		for i := range 3*size + 3 {
			all = append(all, fmt.Sprintf("t%06d", i))
		}
		p := oci.New("https", "r.example.com", "a", nil).List("/v2/a/tags/list?n=1000", 1000)
		got := 0
		for at := 0; p.Path() != "" && at < len(all); at += size {
			page := all[at:min(at+size, len(all))]
			if isNew, _ := p.Read(http.Header{}, page); isNew {
				got += len(page)
			}
		}
		if got != len(all) {
			t.Errorf("pages of %d: %d of %d, cut=%q", size, got, len(all), p.Cut())
		}
	}
}

// A list ends where a page repeats, by its path or by its names, and says that it may lack names.
func TestListsThatLeadBackEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		link  func(asked int) string
		names func(asked int) []string
		want  int // names, of the pages that are read
		reads int
	}{
		"to itself":          {func(int) string { return "?n=2" }, numbered(2), 2, 1},
		"to itself, empty":   {func(int) string { return "?n=2" }, numbered(0), 0, 1},
		"in a circle":        {func(asked int) string { return fmt.Sprint("?n=2&page=", asked%3) }, numbered(2), 8, 4},
		"to the same names":  {func(asked int) string { return fmt.Sprint("?n=2&page=", asked) }, func(int) []string { return []string{"a", "b"} }, 2, 2},
		"to names in circle": {func(asked int) string { return fmt.Sprint("?n=2&page=", asked) }, func(asked int) []string { return []string{"a", fmt.Sprint(asked % 3)} }, 6, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := oci.New("https", "r.example.com", "a", nil).List("/v2/a/tags/list?n=2", 2)
			reads, got := 0, 0
			for p.Path() != "" && reads < 100 {
				reads++
				names := tc.names(reads)
				if isNew, _ := p.Read(http.Header{"Link": {"<" + tc.link(reads) + `>; rel="next"`}}, names); isNew {
					got += len(names)
				}
			}
			if reads != tc.reads || got != tc.want || !strings.Contains(p.Cut(), "leads back") {
				t.Errorf("%d names of %d pages, cut=%q; want %d of %d", got, reads, p.Cut(), tc.want, tc.reads)
			}
		})
	}
}

// numbered returns n other names for each page.
func numbered(n int) func(int) []string {
	return func(asked int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint(asked, "-", i))
		}
		return all
	}
}
