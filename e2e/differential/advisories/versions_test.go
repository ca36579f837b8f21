//go:build nightly

package advisories

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/packages/versions"
)

// fixtures is the folder with the cases of osv-scalibr, of the version that osv-scanner is built
// from.
func fixtures(t *testing.T) string {
	t.Helper()
	const module = "github.com/google/osv-scalibr"
	info, err := buildinfo.ReadFile(scanner(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Deps {
		if m.Path != module {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module+"@"+m.Version)
		cmd.Dir = t.TempDir()
		out, err := cmd.Output()
		var downloaded struct{ Dir string }
		if err == nil {
			err = json.Unmarshal(out, &downloaded)
		}
		if err != nil {
			t.Fatalf("%s@%s: %v", module, m.Version, err)
		}
		return filepath.Join(downloaded.Dir, "semantic", "testdata")
	}
	t.Fatal("osv-scanner is not built from " + module)
	return ""
}

// TestVersionsOfOSV: the order of two versions is that of osv-scalibr's cases, or unknown. Its
// authors made most of them from real versions, with the ecosystems' own programs.
func TestVersionsOfOSV(t *testing.T) {
	dir := fixtures(t)
	// PHP's version_compare made these, which does not know, as Composer does, that 3.0 is 3.0.0, that
	// ALPHA is alpha, and what stable means.
	composer := strings.Split(`v3.0 < v3.0.0-beta
v3.4 < v3.4.0-alpha
v4-beta4 < v4.0-alpha
v4.4 < v4.4.0-beta
v6.5 < v6.5.0-beta-0
v6.6 < v6.6.0-beta
v1.9.0-ALPHA.1 = v1.9.0-BETA.1
v1.9.0-BETA.1 < v1.9.0-ALPHA.2
v1.9.0-ALPHA.2 = v1.9.0-BETA.2
5.1.0-stable < 5.1.0-beta2
1.0.0 > 1.0`, "\n")
	// apk refuses these, and our library does not.
	alpine := []string{"1-r-0 < 1-r0", "1-r-1 < 1-r0", "0.r1 < 0r2", "0.8.21.r2 < 0.8.21r2"}
	for _, tc := range []struct {
		typ, file string
		unknown   int
		why       string
	}{
		{"npm", "semver-versions", 3, "numbers of more than 64 bits, or five of them"},
		{"golang", "semver-versions", 3, "the same"},
		{"hex", "semver-versions", 3, "the same"},
		{"swift", "semver-versions", 3, "the same"},
		{"cargo", "semver-versions", 32, "a v in front, too"},
		{"pub", "pub-versions", 3, "numbers of more than 64 bits, or five of them"},
		{"gem", "rubygems-versions", 2, "1beta is not a version of RubyGems"},
		{"gem", "rubygems-versions-generated", 0, ""},
		{"nuget", "nuget-versions", 2, "numbers of more than 64 bits"},
		{"composer", "packagist-versions", 11, "branches, and what Composer refuses"},
		{"composer", "packagist-versions-generated", 18, "what Composer refuses, such as 3.1.0.post1"},
		{"maven", "maven-versions", 3, "numbers of more than 64 bits"},
		{"maven", "maven-versions-generated", 0, ""},
		{"pypi", "pypi-versions", 11, "what PEP 440 refuses, such as 0.1-bulbasaur"},
		{"pypi", "pypi-versions-generated", 69, "the same"},
		{"cran", "cran-versions", 0, ""},
		{"cran", "cran-versions-generated", 0, ""},
		{"hackage", "hackage-versions", 0, ""},
		{"deb", "debian-versions", 0, ""},
		{"deb", "debian-versions-generated", 0, ""},
		{"apk", "alpine-versions", 11, "what apk refuses, such as 1.0bc"},
		{"apk", "alpine-versions-generated", 0, ""},
		{"rpm", "redhat-versions", 28, "epochs that are not numbers, and no release behind the -"},
	} {
		content, err := os.ReadFile(filepath.Join(dir, tc.file+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		total, same, unknown := 0, 0, 0
		for line := range strings.Lines(string(content)) {
			parts := strings.Fields(line)
			if len(parts) != 3 || parts[0] == "//" || parts[0] == "#" {
				continue
			}
			total++
			want := strings.Index("<=>", parts[1]) - 1
			got, err := versions.Compare(tc.typ, parts[0], parts[2])
			switch {
			case err != nil:
				unknown++
			case cmp.Compare(got, 0) == want:
				same++
			case !slices.Contains(map[string][]string{"composer": composer, "apk": alpine}[tc.typ], strings.TrimSpace(line)):
				t.Errorf("%s: %s is not so: %d", tc.typ, strings.TrimSpace(line), got)
			}
		}
		t.Logf("%-8s %-28s %5d cases: %5d the same, %d unknown, %d otherwise %s", tc.typ, tc.file, total, same, unknown, total-same-unknown, tc.why)
		if unknown != tc.unknown || total == 0 {
			t.Errorf("%s: %d of %d cases of %s are unknown, want %d", tc.typ, unknown, total, tc.file, tc.unknown)
		}
	}
}
