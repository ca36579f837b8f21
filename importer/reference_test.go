package importer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
)

var hex64 = strings.Repeat("0123456789abcdef", 4)

func TestParseReference(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"busybox", "index.docker.io/library/busybox:latest"},
		{"busybox:1.36", "index.docker.io/library/busybox:1.36"},
		{"docker.io/busybox", "index.docker.io/library/busybox:latest"},
		{"docker.io/library/busybox:1", "index.docker.io/library/busybox:1"},
		{"index.docker.io/acme/web", "index.docker.io/acme/web:latest"},
		{"acme/web@sha256:" + hex64, "index.docker.io/acme/web@sha256:" + hex64},
		{"quay.io/acme/web:V1.0-rc_1", "quay.io/acme/web:V1.0-rc_1"},
		{"quay.io/acme/web:v1@sha256:" + hex64, "quay.io/acme/web@sha256:" + hex64},
		{"localhost/web", "localhost/web:latest"},
		{"localhost:5000/web", "localhost:5000/web:latest"},
		{"127.0.0.1:5000/a/b/c__d", "127.0.0.1:5000/a/b/c__d:latest"},
		{"[::1]:5000/web:1", "[::1]:5000/web:1"},
		{"registry.example.com:443/web", "registry.example.com:443/web:latest"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			ref, err := importer.ParseReference(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if ref.String() != tc.want {
				t.Errorf("got %s, want %s", ref, tc.want)
			}
			if (ref.Tag == "") == (ref.Digest == "") {
				t.Errorf("want one of tag and digest: %+v", ref)
			}
		})
	}
}

func TestParseReferenceSuggests(t *testing.T) {
	for _, tc := range []struct{ in, problem, suggestion string }{
		{"", "empty", ""},
		{"   ", "white space", ""},
		{" quay.io/acme/web:1 ", "white space", "quay.io/acme/web:1"},
		{"https://quay.io/acme/web", "no URL scheme", "quay.io/acme/web"},
		{"docker://quay.io/acme/web:1", "no URL scheme", "quay.io/acme/web:1"},
		{"quay.io/Acme/Web:V1", "lower case", "quay.io/acme/web:V1"},
		{"quay.io/acme/web:", "missing", "quay.io/acme/web"},
		{"quay.io/acme//web", "empty", "quay.io/acme/web"},
		{"quay.io/acme/web/", "empty", "quay.io/acme/web"},
		{"quay.io/acme/web@v1", "a tag follows a colon", "quay.io/acme/web:v1"},
		{"quay.io/acme/web@sha256:abc", "64 hex digits", ""},
		{"sha256:" + hex64, "needs the repository", ""},
		{hex64, "needs the repository", ""},
		{"quay.io/acme/web@sha512:" + strings.Repeat(hex64, 2), "sha256 here", ""},
		{"quay.io/../web:1", "", ""},
		{"quay.io/acme/we\x00b", "unprintable", "quay.io/acme/web"},
		{strings.Repeat("a/", 300) + "b", "longer than", ""},
		{"quay.io/acme/web:" + strings.Repeat("t", 129), "", ""},
	} {
		t.Run(tc.in, func(t *testing.T) {
			ref, err := importer.ParseReference(tc.in)
			var e *importer.ReferenceError
			if !errors.As(err, &e) {
				t.Fatalf("got %v, %v; want a ReferenceError", ref, err)
			}
			if ref != (importer.Reference{}) {
				t.Errorf("an error comes with %+v", ref)
			}
			if !strings.Contains(e.Problem, tc.problem) || e.Problem == "" {
				t.Errorf("problem is %q, want it to say %q", e.Problem, tc.problem)
			}
			if e.Suggestion != tc.suggestion {
				t.Errorf("suggestion is %q, want %q", e.Suggestion, tc.suggestion)
			}
			if len(err.Error()) > 1024 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseRepository(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                "index.docker.io/library/busybox:",
		"localhost:5000/web":     "localhost:5000/web:",
		"quay.io/acme/latest":    "quay.io/acme/latest:",
		"registry:5000/x/latest": "registry:5000/x/latest:",
	} {
		ref, err := importer.ParseRepository(in)
		if err != nil || ref.String() != want {
			t.Errorf("%s: got %s, %v; want %s", in, ref, err, want)
		}
	}
	for _, in := range []string{"busybox:latest", "quay.io/acme/web:v1", "quay.io/acme/web@sha256:" + hex64, "Quay.io/Acme"} {
		var e *importer.ReferenceError
		if ref, err := importer.ParseRepository(in); !errors.As(err, &e) {
			t.Errorf("%s: got %s, %v; want a ReferenceError", in, ref, err)
		} else if e.Suggestion == "" {
			t.Errorf("%s: %v suggests nothing", in, err)
		}
	}
}

// A reference that is accepted is a fixed point: it reads back to itself, and
// it goes into the path of a URL as it is.
func FuzzParseReference(f *testing.F) {
	for _, seed := range []string{
		"busybox", "docker.io/library/busybox:1", "quay.io/acme/web:v1@sha256:" + hex64, "localhost:5000/a/b:c",
		"[::1]:5000/web", "https://quay.io/acme/web", "Quay.io/Acme/Web:V1", "a//b", "x:", "x@", "@", ":", "/", "x/../y",
		"sha256:" + hex64, "docker.io/library/library/x", "index.docker.io/x", "xn--e1afmkfd.com/x:y", "localhost/x", "UPPER/x",
		"quay.io/acme/web@sha256:abc", " x ", "x y", "\xff/\xfe", "host:99999/x", "host:/x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := importer.ParseReference(s)
		if err != nil {
			var e *importer.ReferenceError
			if !errors.As(err, &e) {
				t.Fatalf("%q: %v is no ReferenceError", s, err)
			}
			if ref != (importer.Reference{}) {
				t.Fatalf("%q: an error comes with %+v", s, ref)
			}
			if e.Suggestion != "" {
				if _, err := importer.ParseReference(e.Suggestion); err != nil {
					t.Fatalf("%q: the suggestion is no better: %v", s, err)
				}
			}
			return
		}
		again, err := importer.ParseReference(ref.String())
		if err != nil || again != ref {
			t.Fatalf("%q is %q, which reads as %q, %v", s, ref, again, err)
		}
		if strings.Contains("/"+ref.Repository+"/", "/../") || strings.ContainsAny(ref.Repository+ref.Tag, "?#%\\ ") || ref.Host == "" || ref.Repository == "" {
			t.Fatalf("%q has unfit parts: %+v", s, ref)
		}
		if _, err := importer.ParseRepository(ref.Host + "/" + ref.Repository); err != nil {
			t.Fatalf("%q: its repository: %v", s, err)
		}
	})
}
