package reference_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var (
	hex64  = strings.Repeat("0123456789abcdef", 4)
	sha256 = "sha256:" + hex64
	sha512 = "sha512:" + hex64 + hex64
)

func TestParse(t *testing.T) {
	for _, tc := range []struct{ in, want, pulled string }{
		{"busybox", "docker.io/library/busybox", "docker.io/library/busybox:latest"},
		{"busybox:1.36", "docker.io/library/busybox:1.36", ""},
		{"docker.io/busybox", "docker.io/library/busybox", "docker.io/library/busybox:latest"},
		{"docker.io/library/busybox:1", "docker.io/library/busybox:1", ""},
		{"index.docker.io/acme/web", "docker.io/acme/web", "docker.io/acme/web:latest"},
		{"index.docker.io/busybox:1", "docker.io/library/busybox:1", ""},
		{"Index.Docker.IO/busybox:1", "docker.io/library/busybox:1", ""},
		{"registry-1.docker.io/library/busybox:1", "docker.io/library/busybox:1", ""},
		{"Registry-1.docker.io:443/busybox:1", "docker.io/library/busybox:1", ""},
		{"docker.io:443/busybox:1", "docker.io/library/busybox:1", ""},
		{"index.docker.io:443/acme/web:1", "docker.io/acme/web:1", ""},
		{"docker.io:80/busybox:1", "docker.io:80/busybox:1", ""},
		{"acme/web@" + sha256, "docker.io/acme/web@" + sha256, ""},
		{"quay.io/acme/web:V1.0-rc_1", "quay.io/acme/web:V1.0-rc_1", ""},
		{"quay.io/acme/web:v1@" + sha256, "quay.io/acme/web:v1@" + sha256, "quay.io/acme/web@" + sha256},
		{"quay.io/acme/web@" + sha512, "quay.io/acme/web@" + sha512, ""},
		{"Quay.IO/acme/web:1", "quay.io/acme/web:1", ""},
		{"localhost/web:1", "localhost/web:1", ""},
		{"LocalHost/web:1", "localhost/web:1", ""},
		{"localhost:5000", "docker.io/library/localhost:5000", ""},
		{"localhost:5000/web:1", "localhost:5000/web:1", ""},
		{"127.0.0.1:5000/a/b/c__d:1", "127.0.0.1:5000/a/b/c__d:1", ""},
		{"[::1]:5000/web:1", "[::1]:5000/web:1", ""},
		{"[2001:DB8:0:0::1]/web:1", "[2001:db8::1]/web:1", ""},
		{"registry:5000/web:1", "registry:5000/web:1", ""},
		{"registry.example.com:443/web:1", "registry.example.com/web:1", ""},
		{"REGISTRY.example.com:443/web@" + sha256, "registry.example.com/web@" + sha256, ""},
		{"registry.example.com:80/web:1", "registry.example.com:80/web:1", ""},
		{"registry.example.com:4430/web:1", "registry.example.com:4430/web:1", ""},
		{"10.0.0.1:443/web:1", "10.0.0.1/web:1", ""},
		{"[::1]:443/web:1", "[::1]/web:1", ""},
		{"localhost:443/web:1", "localhost/web:1", ""},
		{"registry:443/web:1", "registry:443/web:1", ""},
	} {
		t.Run(tc.in, func(t *testing.T) {
			ref, err := reference.Parse(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if ref.String() != tc.want {
				t.Errorf("got %s, want %s", ref, tc.want)
			}
			if tc.pulled == "" {
				tc.pulled = tc.want
			}
			if got := ref.Pulled().String(); got != tc.pulled {
				t.Errorf("pulled is %s, want %s", got, tc.pulled)
			}
		})
	}
}

func TestParseSuggests(t *testing.T) {
	for _, tc := range []struct{ in, problem, suggestion string }{
		{"", "empty", ""},
		{"   ", "white space", ""},
		{" quay.io/acme/web:1 ", "white space", "quay.io/acme/web:1"},
		{"https://quay.io/acme/web", "no URL scheme", "quay.io/acme/web"},
		{"docker://quay.io/acme/web:1", "no URL scheme", "quay.io/acme/web:1"},
		{"quay.io/Acme/Web:V1", "lower case", "quay.io/acme/web:V1"},
		{"Acme/web:V1", "lower case", "acme/web:V1"},
		{"quay.io/acme/web:", "missing", "quay.io/acme/web"},
		{"quay.io/acme//web", "empty", "quay.io/acme/web"},
		{"quay.io/acme/web/", "empty", "quay.io/acme/web"},
		{"quay.io/acme/web@v1", "a tag follows a colon", "quay.io/acme/web:v1"},
		{"quay.io/acme/web@sha256:abc", "64 hex digits", ""},
		{"quay.io/acme/web@sha512:" + hex64, "128 hex digits", ""},
		{"quay.io/acme/web@sha256:" + strings.ToUpper(hex64), "lower case", ""},
		{"quay.io/acme/web@sha384:" + strings.Repeat("a", 96), "sha256 or sha512", ""},
		{sha256, "needs the repository", ""},
		{hex64, "needs the repository", ""},
		{"quay.io/../web:1", "not a valid part of a repository name", ""},
		{"quay.io/acme/we\x00b", "unprintable", "quay.io/acme/web"},
		{"quay.io/" + strings.Repeat("a/", 300) + "b", "longer than 255", ""},
		{strings.Repeat("a/", 600) + "b", "longer than 1024", ""},
		{"quay.io/acme/web:" + strings.Repeat("t", 129), "up to 127 more", ""},
		{"quay.io:0/acme/web", "not a port", ""},
		{"quay.io:65536/acme/web", "not a port", ""},
		{"quay.io:/acme/web", "not a port", ""},
		{"-quay.io/acme/web", "not a host name", ""},
		{"a_b.io/acme/web", "not a host name", ""},
		{"[::1/acme/web", "not an IPv6 address", ""},
		{"[1.2.3.4]/acme/web", "not an IPv6 address", ""},
		{"[fe80::1%eth0]/acme/web", "not an IPv6 address", ""},
		{"[::ffff:1.2.3.4]/acme/web", "not an IPv6 address", ""},
		{"[::0.0.0.0]/acme/web", "not an IPv6 address", ""},
	} {
		t.Run(tc.in, func(t *testing.T) {
			ref, err := reference.Parse(tc.in)
			var e *reference.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, %v; want an Error", ref, err)
			}
			if ref != (reference.Reference{}) {
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
		"busybox":                "docker.io/library/busybox",
		"localhost:5000/web":     "localhost:5000/web",
		"quay.io/acme/latest":    "quay.io/acme/latest",
		"registry:5000/x/latest": "registry:5000/x/latest",
	} {
		ref, err := reference.ParseRepository(in)
		if err != nil || ref.String() != want {
			t.Errorf("%s: got %s, %v; want %s", in, ref, err, want)
		}
	}
	for _, in := range []string{"busybox:latest", "quay.io/acme/web:v1", "quay.io/acme/web@" + sha256, "Quay.io/Acme"} {
		var e *reference.Error
		if ref, err := reference.ParseRepository(in); !errors.As(err, &e) {
			t.Errorf("%s: got %s, %v; want an Error", in, ref, err)
		} else if e.Suggestion == "" {
			t.Errorf("%s: %v suggests nothing", in, err)
		}
	}
}

func TestParseHost(t *testing.T) {
	for in, want := range map[string]string{
		"docker.io": "docker.io", "index.docker.io": "docker.io", "Quay.io": "quay.io", "localhost": "localhost", "registry:5000": "registry:5000",
		"[::1]": "[::1]", "[0::1]:5000": "[::1]:5000", "10.0.0.1": "10.0.0.1", "registry-1.docker.io": "docker.io", "docker.io:443": "docker.io",
		"Registry.example.com:443": "registry.example.com", "registry:443": "registry:443", "registry.example.com:80": "registry.example.com:80",
	} {
		if host, err := reference.ParseHost(in); err != nil || host != want {
			t.Errorf("%s: got %s, %v; want %s", in, host, err, want)
		}
	}
	for in, problem := range map[string]string{
		"": "empty", "registry": "registry:443", "https://quay.io": "without a scheme", "quay.io/acme": "without a scheme or a path", "quay.io:x": "not a port", "::1": "not a host name", "quay..io": "not a host name",
		strings.Repeat("a.", 600) + "b": "longer than",
	} {
		if host, err := reference.ParseHost(in); err == nil || !strings.Contains(err.Error(), problem) || len(err.Error()) > 1024 {
			t.Errorf("%s: got %q, %v; want an error that says %q", in, host, err, problem)
		}
	}
}

func TestParts(t *testing.T) {
	ref, err := reference.Parse("quay.io/acme/web:v1@" + sha256)
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]string{
		"name":            {ref.Name(), "quay.io/acme/web"},
		"identifier":      {ref.Identifier(), sha256},
		"tag":             {ref.WithTag("x").String(), "quay.io/acme/web:x"},
		"tag, identified": {ref.WithTag("x").Identifier(), "x"},
		"digest":          {ref.WithDigest(sha512).String(), "quay.io/acme/web@" + sha512},
		"bare":            {ref.Bare().String(), "quay.io/acme/web"},
		"zero":            {reference.Reference{}.String(), ""},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
		}
	}
}

// A reference in its canonical form, as nearly all are, is read without memory of
// its own: it is read for each of a list's images.
func TestCanonicalFormIsReadInPlace(t *testing.T) {
	for _, s := range []string{"registry.example.com:5000/team/app@" + sha256, "quay.io/acme/web:v1", "docker.io/library/busybox:1"} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := reference.Parse(s); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", s, n)
		}
	}
}

func TestShortDigest(t *testing.T) {
	for digest, want := range map[string]string{
		"sha256:0123456789abcdef": "sha256:0123456789ab",
		"sha512:0123456789abcdef": "sha512:0123456789ab",
		"sha256:01":               "sha256:01",
		"rubbish":                 "rubbish",
		"":                        "",
	} {
		if got := reference.ShortDigest(digest); got != want {
			t.Errorf("%q: got %q, want %q", digest, got, want)
		}
	}
}

// A name in a signature keeps what containers/image keeps.
func TestParseSigned(t *testing.T) {
	for in, want := range map[string]string{
		"registry.example.com:443/web:1":         "registry.example.com:443/web:1",
		"registry-1.docker.io/library/busybox:1": "registry-1.docker.io/library/busybox:1",
		"docker.io:443/busybox":                  "docker.io:443/busybox",
		"index.docker.io/library/busybox:1":      "docker.io/library/busybox:1",
		"busybox":                                "docker.io/library/busybox",
	} {
		if r, err := reference.ParseSigned(in); err != nil || r.String() != want {
			t.Errorf("%s: got %s, %v; want %s", in, r, err, want)
		}
	}
	if r, err := reference.ParseSigned("quay.io/Acme"); err == nil {
		t.Errorf("got %s", r)
	}
}
