package find

import (
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// The folders are those of containers-registries.d(5), in the same order.
func TestRegistriesDirs(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "") // restored at the end
	os.Unsetenv("XDG_CONFIG_HOME")
	t.Setenv("HOME", "/home/a")
	for _, tc := range []struct {
		name string
		uid  int
		xdg  string
		want []string
	}{
		{"root", 0, "", []string{"/home/a/.config/containers/registries.d",
			"/etc/containers/registries.rootful.d", "/etc/containers/registries.d",
			"/usr/share/containers/registries.rootful.d", "/usr/share/containers/registries.d"}},
		{"user", 1000, "/xdg", []string{"/xdg/containers/registries.d",
			"/etc/containers/registries.rootless.d/1000", "/etc/containers/registries.rootless.d", "/etc/containers/registries.d",
			"/usr/share/containers/registries.rootless.d/1000", "/usr/share/containers/registries.rootless.d", "/usr/share/containers/registries.d"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.xdg != "" {
				t.Setenv("XDG_CONFIG_HOME", tc.xdg)
			}
			if diff := cmp.Diff(tc.want, registriesDirs(tc.uid)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The most specific scope with a URL wins. A host with another port is another host.
func TestLookasideOfAnImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(`
default-docker: {lookaside: "https://default"}
docker:
  registry.example.com: {lookaside: "https://host"}
  registry.example.com/team: {sigstore: "https://team"}
  registry.example.com/team/app: {lookaside: "https://app", sigstore: "https://older-name", lookaside-staging: "https://staging", sigstore-staging: "https://staging"}
  registry.example.com/team/written: {lookaside-staging: "https://staging", sigstore-staging: "https://staging"}
  registry.example.com/team/app:v1: {lookaside: "https://tag"}
  registry.example.com:5000/team: {lookaside: "https://port"}
  "*.corp.example": {lookaside: "https://corp"}
  docker.io/library/busybox: {lookaside: "https://busybox"}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := loadLookasides([]string{dir}, "/storage")
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"registry.example.com/team/app:v1":  "https://tag",
		"registry.example.com/team/app:v2":  "https://app",
		"registry.example.com/team/app/sub": "https://app",
		"registry.example.com/team/apple":   "https://team",
		// keys for writing do not affect reading
		"registry.example.com/team/written":    "https://team",
		"registry.example.com/other":           "https://host",
		"registry.example.com:5000/team/app":   "https://port",
		"registry.example.com:5000/other":      "https://default",
		"a.b.corp.example/x":                   "https://corp",
		"busybox":                              "https://busybox",
		"index.docker.io/library/busybox:1.36": "https://busybox",
		"quay.io/x":                            "https://default",
	} {
		r, err := reference.Parse(image)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.base(r); got != want {
			t.Errorf("%s is kept at %s, want %s", image, got, want)
		}
	}
	if l, err = loadLookasides(nil, "/storage"); err != nil || l.base(reference.Reference{Host: "quay.io", Repository: "x"}) != "file:///storage" {
		t.Errorf("%v, %v", l, err)
	}
}

// A scope with port 443 also applies to the host without a port, after the host's own scope.
func TestLookasideOfTheDefaultPort(t *testing.T) {
	t.Parallel()
	l := newLookasides()
	err := l.parse([]byte(`docker: {"a.example.com:443": {lookaside: "https://a443", use-sigstore-attachments: false}, a.example.com: {lookaside: "https://a", use-sigstore-attachments: true}, "b.example.com:443/x": {lookaside: "https://b443"}}`), "f", map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"a.example.com": "https://a", "b.example.com": "https://b443"} {
		if got := l.base(reference.Reference{Host: host, Repository: "x"}); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	if !l.sigstore(reference.Reference{Host: "a.example.com", Repository: "x"}) {
		t.Error("the port's entry decides on attachments")
	}
}

// The most specific scope with a setting for sigstore signatures wins, then default-docker. Without
// a setting, they are read.
func TestSigstoreAttachmentsOfAnImage(t *testing.T) {
	t.Parallel()
	load := func(content string) *lookasides {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := loadLookasides([]string{dir}, "")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	scopes := `
docker:
  registry.example.com: {use-sigstore-attachments: false}
  registry.example.com/team: {lookaside: "https://team"}
  registry.example.com/team/app: {use-sigstore-attachments: true}
  "*.corp.example": {use-sigstore-attachments: false}
  docker.io/library: {use-sigstore-attachments: false}
`
	for _, c := range []struct {
		image    string
		fallback string
		want     bool
	}{
		{"registry.example.com/other", "", false},
		{"registry.example.com/team/else:v1", "", false}, // the scope of the team does not say
		{"registry.example.com/team/app:v1", "", true},
		{"registry.example.com:5000/other", "", true},
		{"a.corp.example/x", "", false},
		{"busybox", "", false},
		{"quay.io/x", "", true},
		{"quay.io/x", "default-docker: {use-sigstore-attachments: false}", false},
		{"quay.io/x", "default-docker: {use-sigstore-attachments: true}", true},
		{"registry.example.com/team/app", "default-docker: {use-sigstore-attachments: false}", true},
	} {
		r, err := reference.Parse(c.image)
		if err != nil {
			t.Fatal(err)
		}
		if got := load(c.fallback + scopes).sigstore(r); got != c.want {
			t.Errorf("%s, %q: %v", c.image, c.fallback, got)
		}
	}
}

// Whatever is in the file, the result is a URL of a supported kind.
func FuzzRegistriesFile(f *testing.F) {
	f.Add([]byte("default-docker: {lookaside: 'https://a/b'}\ndocker: {quay.io: {sigstore: 'file:///c'}}\n"))
	f.Add([]byte("docker: {a: {lookaside: 'ftp://x'}}"))
	f.Add([]byte("docker: 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newLookasides()
		if l.parse(data, "fuzz.yaml", map[string]string{}) != nil {
			return
		}
		for _, base := range slices.AppendSeq([]string{l.fallback}, maps.Values(l.byScope)) {
			u, err := url.Parse(base)
			if err != nil || !slices.Contains([]string{"", "http", "https", "file"}, u.Scheme) {
				t.Errorf("%q was taken: %v", base, err)
			}
		}
	})
}
