package manifest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
// linux/arm/v7. What is not known stays so.
func (p Platform) Normalized() Platform {
	// An empty name of an operating system would become that of this program.
	n := platforms.Normalize(ocispec.Platform{OS: cmp.Or(p.OS, "linux"), Architecture: p.Architecture, Variant: p.Variant})
	if p.OS != "" {
		p.OS = n.OS
	}
	p.Architecture, p.Variant = n.Architecture, n.Variant
	return p
}

// Is reports whether p is the platform that is wanted, whatever its versions. A platform that is
// wanted without a variant is any of its variants.
func (p Platform) Is(wanted Platform) bool {
	anyVariant := wanted.Variant == ""
	if a := strings.ToLower(wanted.Architecture); a == "armhf" || a == "armel" {
		anyVariant = false // these names imply one
	}
	p, wanted = p.Normalized(), wanted.Normalized()
	return p.OS == wanted.OS && p.Architecture == wanted.Architecture && (anyVariant || p.Variant == wanted.Variant)
}

// Choose returns which of all platforms is the wanted one, -1 if none is. Of several variants it is
// the one that a runtime takes for the name without a variant, or else the first.
func Choose(all []Platform, wanted Platform) int {
	n := wanted.Normalized()
	exact := func(p Platform) bool { return p.Is(wanted) && p.Normalized().Variant == n.Variant }
	if i := slices.IndexFunc(all, exact); i >= 0 {
		return i
	}
	return slices.IndexFunc(all, func(p Platform) bool { return p.Is(wanted) })
}
