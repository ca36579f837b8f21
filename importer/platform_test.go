package importer

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// Names that runtimes take for one platform are one platform.
func TestWantedPlatforms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		wanted, has string
		is          bool
	}{
		{"linux/arm64", "linux/arm64/v8", true},
		{"linux/arm64/v8", "linux/arm64", true},
		{"linux/aarch64", "linux/arm64", true},
		{"linux/x86_64", "linux/amd64", true},
		{"linux/x86-64", "linux/amd64", true},
		{"linux/amd64/v1", "linux/amd64", true},
		{"LINUX/AMD64", "linux/amd64", true},
		{"macos/arm64", "darwin/arm64", true},
		{"linux/armel", "linux/arm/v6", true},
		{"linux/arm/v7", "linux/arm", true},
		{"linux/arm/v6", "linux/arm/v7", false},
		{"windows/amd64:10.0.20348", "windows/amd64:10.0.20348.2527", true},
		{"windows/amd64:10.0.2", "windows/amd64:10.0.20348.2527", false},
	} {
		im, err := New(Options{Platforms: []string{c.wanted}})
		if err != nil {
			t.Fatal(err)
		}
		p := manifest.ParsePlatform(c.has)
		if got := (&run{Importer: im}).wants(&p, false); got != c.is {
			t.Errorf("--platform %s of %s: %v", c.wanted, c.has, got)
		}
		im.Close()
	}
}

// An entry of an index is chosen by what the index says, as runtimes choose it: a config need not
// tell the variant, and tells the version of Windows alone.
func TestPlatformOfAnEntry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ entry, config, want string }{
		{"linux/arm/v6", "linux/arm", "linux/arm/v6"},
		{"linux/arm/v8", "linux/arm", "linux/arm/v8"},
		{"linux/arm64", "linux/arm64/v8", "linux/arm64"},
		{"windows/amd64", "windows/amd64:10.0.20348.2527", "windows/amd64:10.0.20348.2527"},
		{"windows/amd64:10.0.17763.1", "windows/amd64:10.0.20348.2527", "windows/amd64:10.0.17763.1"},
		{"", "linux/arm/v5", "linux/arm/v5"},
	} {
		entry := &manifest.Descriptor{}
		if c.entry != "" {
			p := manifest.ParsePlatform(c.entry)
			entry.Platform = &p
		}
		if got := listed(entry, manifest.ParsePlatform(c.config)).Exact(); got != c.want {
			t.Errorf("%q with the config's %q is %q, want %q", c.entry, c.config, got, c.want)
		}
	}
}
