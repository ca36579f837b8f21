package advisories

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/package-url/packageurl-go"
)

// ecosystem is how packages of an ecosystem are named in documents and in package URLs.
type ecosystem struct {
	typ string
	// namespaces of package URLs are distributions; none for ecosystems of languages.
	namespaces []string
	// bySource is set if advisories name source packages alone.
	bySource bool
	// release converts a release from a document or a package URL to the form for comparisons; "" if
	// it is unknown.
	release func(string) string
}

// ecosystems are those whose packages SBOMs list. Others are unknown.
var ecosystems = map[string]ecosystem{
	"npm": {typ: "npm"}, "PyPI": {typ: "pypi"}, "Go": {typ: "golang"}, "Maven": {typ: "maven"}, "crates.io": {typ: "cargo"},
	"NuGet": {typ: "nuget"}, "RubyGems": {typ: "gem"}, "Packagist": {typ: "composer"}, "Hex": {typ: "hex"}, "Pub": {typ: "pub"},
	"Hackage": {typ: "hackage"}, "CRAN": {typ: "cran"}, "ConanCenter": {typ: "conan"}, "SwiftURL": {typ: "swift"}, "Bitnami": {typ: "bitnami"},

	"Debian":      {"deb", []string{"debian"}, true, numbers(1)},
	"Ubuntu":      {"deb", []string{"ubuntu"}, true, numbers(2)},
	"Alpine":      {"apk", []string{"alpine"}, true, numbers(2)},
	"Wolfi":       {"apk", []string{"wolfi"}, true, nil},
	"Chainguard":  {"apk", []string{"chainguard"}, true, nil},
	"Red Hat":     {"rpm", []string{"redhat", "rhel"}, false, numbers(1)},
	"Rocky Linux": {"rpm", []string{"rocky", "rockylinux", "rocky-linux"}, false, numbers(1)},
	"AlmaLinux":   {"rpm", []string{"almalinux", "alma"}, false, numbers(1)},
	"openSUSE":    {"rpm", []string{"opensuse", "suse"}, false, numbers(2)},
	"SUSE":        {"rpm", []string{"suse", "sles"}, false, numbers(2)},
	"Mageia":      {"rpm", []string{"mageia"}, false, numbers(1)},
	"Photon OS":   {"rpm", []string{"photon"}, false, numbers(2)},
	"Azure Linux": {"rpm", []string{"azurelinux", "mariner"}, false, numbers(1)},
}

var number = regexp.MustCompile(`\d+`)

// numbers returns a function that reduces a release to its first n numbers.
func numbers(n int) func(string) string {
	return func(text string) string {
		all := number.FindAllString(text, n)
		return strings.Join(all, ".")
	}
}

// codenames are releases of Debian, as some package URLs have them.
var codenames = strings.NewReplacer("buster", "10", "bullseye", "11", "bookworm", "12", "trixie", "13", "forky", "14", "duke", "15")

// ecosystemOf reads the ecosystem of a document. release is empty if the document is about all
// releases. other is true if it is about a stream of updates that an image does not show, such as
// Ubuntu:Pro.
func ecosystemOf(text string) (e ecosystem, release string, other bool, err error) {
	name, suffix, _ := strings.Cut(text, ":")
	e, ok := ecosystems[name]
	if !ok {
		return e, "", false, fmt.Errorf("packages of the ecosystem %s are not known", cmp.Or(name, "without a name"))
	}
	if suffix == "" || e.release == nil {
		return e, "", false, nil
	}
	switch name {
	case "Ubuntu": // 24.04:LTS, Pro:24.04:LTS
		other = suffix[0] < '0' || suffix[0] > '9'
	case "Red Hat": // enterprise_linux:9::appstream, rhel_eus:9.4::baseos
		product, version, _ := strings.Cut(suffix, ":")
		other, suffix = product != "enterprise_linux", version
	}
	if release = e.release(suffix); release == "" && !other {
		return e, "", false, fmt.Errorf("the release %q of %s is not known", suffix, name)
	}
	return e, release, other, nil
}

// releaseOf returns the release of the distribution to which a package belongs; "" if its URL does
// not name it.
func (e ecosystem) releaseOf(p *packageurl.PackageURL) string {
	distro := p.Qualifiers.Map()["distro"] // debian-12, alpine-3.20.1, 3.20.1, bookworm
	return e.release(codenames.Replace(distro[strings.LastIndexByte(distro, '-')+1:]))
}

// is reports whether a package belongs to the ecosystem. unknown is the reason if that is not
// known.
func (e ecosystem) is(p *packageurl.PackageURL, release string) (is bool, unknown string) {
	switch {
	case p.Type != e.typ:
		return false, ""
	case e.namespaces == nil:
		return true, ""
	case p.Namespace == "":
		return true, "its package URL does not name the distribution"
	case !slices.Contains(e.namespaces, p.Namespace):
		return false, ""
	case release == "":
		return true, ""
	}
	switch e.releaseOf(p) {
	case release:
		return true, ""
	case "":
		return true, "its package URL does not name the release of " + p.Namespace
	}
	return false, ""
}

// same converts the name of a package to the form for comparisons.
func (e ecosystem) same(name string) string {
	switch e.typ {
	case "pypi": // https://packaging.python.org/en/latest/specifications/name-normalization/
		return separators.ReplaceAllString(strings.ToLower(name), "-")
	case "nuget", "composer", "golang", "deb", "apk", "bitnami": // package URLs of most have only lower case
		return strings.ToLower(name)
	}
	return name
}

var separators = regexp.MustCompile(`[-_.]+`)
