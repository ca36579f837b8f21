package manifest

import (
	"strings"
	"testing"
)

func TestPlatformsAreNormalized(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		has, wanted string
		is          bool
	}{
		{"linux/arm64/v8", "linux/arm64", true},
		{"linux/arm64/v8", "linux/arm64/v8", true},
		{"linux/arm64", "linux/arm64/v8", true},
		{"linux/arm64", "linux/aarch64", true},
		{"linux/aarch64", "linux/arm64/v8", true},
		{"linux/arm64/v9", "linux/arm64", false},
		{"linux/arm64/v9", "linux/arm64/v8", false},
		{"linux/arm64/v8", "linux/arm64/v9", false},
		{"linux/arm/v7", "linux/arm64", false},
		{"linux/arm/v7", "linux/arm", true},
		{"linux/arm/v6", "linux/arm", true},
		{"linux/arm", "linux/arm/v7", true},
		{"linux/arm", "linux/arm/7", true},
		{"linux/arm", "linux/arm/v6", false},
		{"linux/arm/v6", "linux/arm/v7", false},
		{"linux/arm/v7", "linux/armhf", true},
		{"linux/arm/v6", "linux/armhf", false},
		{"linux/arm/v6", "linux/armel", true},
		{"linux/amd64", "linux/amd64/v1", true},
		{"linux/amd64/v1", "linux/amd64", true},
		{"linux/amd64", "linux/x86_64", true},
		{"linux/amd64/v3", "linux/amd64/v1", false},
		{"linux/amd64/v3", "linux/amd64", false},
		{"linux/amd64/v2", "linux/amd64/v3", false},
		{"linux/386", "linux/amd64", false},
		{"linux/386", "linux/i386", true},
		{"Linux/AMD64", "linux/amd64", true},
		{"macos/arm64", "darwin/arm64", true},
		{"windows/amd64:10.0.20348.2527", "windows/amd64", true},
		{"linux/arm64", "linux/amd64", false},
		{"linux/arm64", "windows/arm64", false},
		{"unknown/unknown", "linux/amd64", false},
		{"/amd64", "linux/amd64", false},
		{"", "linux/amd64", false},
	} {
		if got := ParsePlatform(c.has).Is(ParsePlatform(c.wanted)); got != c.is {
			t.Errorf("%q is %q: %v", c.has, c.wanted, got)
		}
	}
}

func TestChoosePlatform(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ all, wanted, want string }{
		{"linux/arm/v6 linux/arm/v7", "linux/arm", "linux/arm/v7"},
		{"linux/arm/v5 linux/arm/v6", "linux/arm", "linux/arm/v6"},
		{"linux/arm64/v9 linux/arm64/v8", "linux/arm64", "linux/arm64/v8"},
		{"linux/arm/v7 linux/arm/v8", "linux/arm64", "linux/arm/v8"},
		{"linux/arm/v7 linux/arm64", "linux/arm64", "linux/arm64"},
		{"linux/amd64/v3 linux/amd64", "linux/x86_64", "linux/amd64"},
		{"linux/amd64/v3", "linux/amd64", ""},
		{"linux/amd64/v3 linux/386", "linux/amd64", "linux/386"},
		{"linux/amd64 linux/amd64/v2", "linux/amd64/v3", "linux/amd64/v2"},
		{"linux/amd64/v999999999", "linux/amd64/v999999999", "linux/amd64/v999999999"},
		{"linux/amd64 windows/amd64:10.0.1", "windows/amd64", "windows/amd64"},
		{"linux/amd64/v3 linux/amd64", "linux/amd64/v3", "linux/amd64/v3"},
		{"linux/amd64", "linux/s390x", ""},
	} {
		var all []Platform
		for text := range strings.FieldsSeq(c.all) {
			all = append(all, ParsePlatform(text))
		}
		got := ""
		if i := Choose(all, ParsePlatform(c.wanted)); i >= 0 {
			got = all[i].String()
		}
		if got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.wanted, c.all, got, c.want)
		}
	}
}

func TestNodesOfAnIndex(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ entries, want string }{
		{"linux/x86_64 linux/aarch64", "linux/amd64;linux/arm64"},
		{"linux/386 linux/arm/v7", "linux/386,linux/amd64;linux/arm,linux/arm64"},
		{"linux/386 linux/amd64 windows/amd64", "linux/386;linux/amd64;windows/amd64"},
		{"linux/amd64/v3", "linux/amd64"},
		{"linux/s390x", "linux/s390x"},
	} {
		var entries []Platform
		for text := range strings.FieldsSeq(c.entries) {
			entries = append(entries, ParsePlatform(text))
		}
		var got []string
		for _, nodes := range Nodes(entries) {
			got = append(got, strings.Join(nodes, ","))
		}
		if strings.Join(got, ";") != c.want {
			t.Errorf("%s run on %q, want %q", c.entries, got, c.want)
		}
	}
}

// FuzzPlatform: any platform equals itself and its normalized form, and its text can be parsed
// again.
func FuzzPlatform(f *testing.F) {
	for _, s := range []string{"linux/amd64", "linux/arm64/v8", "windows/amd64:10.0.1", "/", "", "LINUX/armhf", "a/b/c/d:e:f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := ParsePlatform(text)
		if n := p.Normalized(); !p.Is(p) || !p.Is(n) || n.Normalized().String() != n.String() {
			t.Errorf("%q is not itself, normalized %q", text, n)
		}
		if p.OS != "" && ParsePlatform(p.Exact()).Exact() != p.Exact() {
			t.Errorf("%q is read as %q", p.Exact(), ParsePlatform(p.Exact()).Exact())
		}
	})
}
