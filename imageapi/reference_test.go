package imageapi

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
)

// FuzzParseReference: what is read of a reference, and every error, is reference.ParseNormalizedNamed's.
func FuzzParseReference(f *testing.F) {
	digest := "@sha256:" + strings.Repeat("0123456789abcdef", 4)
	for _, name := range []string{
		"", "app", "team/app", "localhost/app", "localhost:5000/app", "localhost:/app", "localhost:a/app", "quay.io/team/app", "quay.io/", "quay.io//app", "quay.io/app/",
		"docker.io/app", "index.docker.io/team/app", "registry-1.docker.io/app", "docker.io:443/app", "Quay.io/app", "quay.io/App", "10.0.0.1:5000/a/b/c", "[::1]:5000/app",
		"a-b.c/d_e/f__g/h--i/j.k", "a--b.c/d", "a..b/c", "-a.b/c", "a.b-/c", "a.b/-c", "a.b/c-", "a.b/c.", "a.b/c:tag", "a.b/c:", "a_b.c/d", "a.b/c/d:5/e", "é.b/c", "a.b/é",
		"a.b/" + strings.Repeat("c", 255), "a.b/" + strings.Repeat("c", 256), strings.Repeat("0", 64),
	} {
		f.Add(name)
		f.Add(name + digest)
	}
	f.Add("a.b/c@sha256:" + strings.Repeat("A", 64))
	f.Add("a.b/c@sha256:" + strings.Repeat("a", 63))
	f.Add("a.b/c@sha512:" + strings.Repeat("a", 128))
	f.Add("a.b/c" + digest + digest)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseReference(s)
		named, wantErr := reference.ParseNormalizedNamed(s)
		if wantErr != nil {
			if err == nil || err.Error() != wantErr.Error() {
				t.Errorf("%q: %+v, %v; want %v", s, got, err, wantErr)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		want := parsedReference{repository: named.Name()}
		if tagged, ok := named.(reference.Tagged); ok {
			want.tag = tagged.Tag()
		}
		canonical, ok := named.(reference.Canonical)
		if ok {
			want.digest = canonical.Digest().String()
		}
		if got != want || ok != (got.digest != "") {
			t.Errorf("%q: %+v, want %+v", s, got, want)
		}
	})
}

// If nothing were plain, the comparison above would compare nothing.
func TestPlainReference(t *testing.T) {
	for _, name := range []string{"quay.io/team/app", "127.0.0.1:5000/a", "localhost:5000/a.b/c_d/e-f"} {
		if _, ok := parsePlainReference(name + "@sha256:" + strings.Repeat("0", 64)); !ok {
			t.Errorf("%s is not plain", name)
		}
	}
}
