package manifest

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imagev1 "github.com/openshift/api/image/v1"
)

// Platform is the platform of an image (OCI image index, "platform").
type Platform struct {
	Architecture string   `json:"architecture"`
	OS           string   `json:"os"`
	OSVersion    string   `json:"os.version,omitempty"`
	OSFeatures   []string `json:"os.features,omitempty"`
	Variant      string   `json:"variant,omitempty"`
}

// ParsePlatform reads what Exact writes: os/architecture[/variant][:os.version].
func ParsePlatform(text string) (p Platform) {
	text, p.OSVersion, _ = strings.Cut(text, ":")
	p.OS, p.Architecture, _ = strings.Cut(text, "/")
	p.Architecture, p.Variant, _ = strings.Cut(p.Architecture, "/")
	return p
}

// Platforms are the platforms of the images that an index lists.
func Platforms(listed []imagev1.ImageManifest) []Platform {
	all := make([]Platform, len(listed))
	for i, m := range listed {
		all[i] = Platform{OS: m.OS, Architecture: m.Architecture, Variant: m.Variant}
	}
	return all
}

// String is os/architecture[/variant], as docker and containerd write it; empty when neither is
// known.
func (p Platform) String() string {
	if p.OS == "" && p.Architecture == "" {
		return ""
	}
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// Exact is String with the version of the operating system, if there is one:
// windows/amd64:10.0.20348.2527, as crane writes it.
func (p Platform) Exact() string {
	if s := p.String(); s != "" && p.OSVersion != "" {
		return s + ":" + p.OSVersion
	}
	return p.String()
}

// Normalized returns the platform under the names that containerd compares: linux/aarch64 and
// linux/arm64/v8 are linux/arm64, linux/x86_64 and linux/amd64/v1 are linux/amd64, linux/arm is
// linux/arm/v7. Unknown parts stay unknown.
func (p Platform) Normalized() Platform {
	// Normalize would replace an empty operating system with this program's.
	n := platforms.Normalize(ocispec.Platform{OS: cmp.Or(p.OS, "linux"), Architecture: p.Architecture, Variant: p.Variant})
	if p.OS != "" {
		p.OS = n.OS
	}
	p.Architecture, p.Variant = n.Architecture, n.Variant
	return p
}

// runner returns a matcher for the platforms whose images a runtime runs on a node of platform p,
// best first: a linux/arm64 node also runs images for linux/arm, and a linux/amd64 node none for
// linux/amd64/v3. Versions of operating systems do not count.
func (p Platform) runner() platforms.MatchComparer {
	spec := p.spec()
	if !variant.MatchString(spec.Variant) { // containerd counts down from any number
		return platforms.OnlyStrict(spec)
	}
	return platforms.Only(spec)
}

// variant matches possible variants: v3 of amd64, v7 of arm, v9.5 of arm64.
var variant = regexp.MustCompile(`^([vV]?[0-9](\.[0-9])?)?$`)

// spec returns the platform as runtimes compare it. Without an operating system, it matches none.
func (p Platform) spec() ocispec.Platform {
	return ocispec.Platform{OS: cmp.Or(p.OS, "unknown"), Architecture: p.Architecture, Variant: p.Variant}
}

// Is reports whether p is the wanted platform, whatever the version of its operating system. If
// wanted has no variant, every variant counts whose images a runtime runs there: linux/arm/v6 is
// linux/arm, and linux/amd64/v3 is not linux/amd64.
func (p Platform) Is(wanted Platform) bool {
	is, want := p.Normalized(), wanted.Normalized()
	if wanted.Variant != "" || !strings.EqualFold(wanted.Architecture, "arm") && want.Architecture == "arm" { // armhf and armel imply one
		return is.String() == want.String()
	}
	return is.Architecture == want.Architecture && Choose([]Platform{p}, wanted) == 0
}

// Choose returns the index of the platform that a runtime chooses on a node of the wanted platform,
// -1 if it chooses none.
func Choose(all []Platform, wanted Platform) int {
	runner, exactly, chosen := wanted.runner(), wanted.Normalized().String(), -1
	for i, p := range all {
		same := p.Normalized().String() == exactly
		switch spec := p.spec(); {
		case !same && !runner.Match(spec):
		case chosen < 0, runner.Less(spec, all[chosen].spec()):
			chosen = i
		}
	}
	return chosen
}

// Nodes returns, for each entry of an index, the platforms of nodes whose runtimes may choose it.
// They are os/architecture, because nodes do not report variants. An entry without a platform has
// none. An entry for another architecture counts if the index has none for the node's, as linux/386
// for linux/amd64.
func Nodes(entries []Platform) [][]string {
	all := make([][]string, len(entries))
	own := func(p Platform) Platform {
		p = p.Normalized()
		return Platform{OS: p.OS, Architecture: p.Architecture}
	}
	has := map[string]bool{}
	for i, p := range entries {
		if node := own(p).String(); p.OS != "" && p.Architecture != "" {
			all[i], has[node] = []string{node}, true
		}
	}
	for i, p := range entries {
		for _, architecture := range []string{"amd64", "arm64"} {
			node := Platform{OS: own(p).OS, Architecture: architecture}
			if !has[node.String()] && Choose([]Platform{p}, node) == 0 {
				all[i] = append(all[i], node.String())
			}
		}
	}
	return all
}
