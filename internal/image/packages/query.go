package packages

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/package-url/packageurl-go"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
)

// Field is the field for selecting ImagePackages and Images by a name or a package URL.
const Field = selectors.Package

// Query selects packages by name or by package URL. A package matches a URL if it has the same
// type, namespace and name, and also the version and the qualifiers that the URL has.
type Query struct {
	text  string
	name  string
	probe string // a part of the name, in lower case, that every package URL with this name contains
	purl  *packageurl.PackageURL
}

const purlScheme = "pkg:"

// ParseQuery reads a name, or a package URL.
func ParseQuery(text string) (*Query, error) {
	switch {
	case text == "" || len(text) > MaxPURL:
		return nil, fmt.Errorf("a package is named by 1 to %d bytes: openssl, or pkg:deb/debian/openssl@3.0.11-1", MaxPURL)
	case !strings.HasPrefix(text, purlScheme):
		return &Query{text: text, name: text, probe: strings.ToLower(longestWord(text))}, nil
	}
	purl, err := packageurl.FromString(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a package URL: %w", text, err)
	}
	return &Query{text: text, purl: &purl}, nil
}

// String returns the query's original text, because the canonical form of a package URL may be too
// long.
func (q *Query) String() string { return q.text }

// longestWord returns the longest run of ASCII letters and digits, which package URLs do not
// encode.
func longestWord(text string) (longest string) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	}) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return longest
}

// Key returns a name that every matching package has, see [Names].
func (q *Query) Key() string {
	if q.purl != nil {
		return PURLName(q.purl)
	}
	return q.name
}

// Matches reports whether a package satisfies the query.
func (q *Query) Matches(p *Package) bool {
	if q.purl == nil {
		return p.Name == q.name || strings.Contains(strings.ToLower(p.PURL), q.probe) && slices.Contains(names(p), q.name)
	}
	if !strings.Contains(strings.ToLower(p.PURL), purlScheme+q.purl.Type+"/") {
		return false
	}
	other, err := packageurl.FromString(p.PURL)
	if err != nil || other.Type != q.purl.Type || other.Namespace != q.purl.Namespace || other.Name != q.purl.Name {
		return false
	}
	if q.purl.Version != "" && q.purl.Version != other.Version {
		return false
	}
	have := other.Qualifiers.Map()
	for key, value := range q.purl.Qualifiers.Map() {
		if have[key] != value {
			return false
		}
	}
	return true
}

// In returns the packages of a list that match, with their sources. An unreadable list is an error.
func (q *Query) In(list *ImagePackages) (found []Found, err error) {
	for i := range list.Sources {
		all, err := list.Sources[i].All()
		if err != nil {
			return nil, fmt.Errorf("the packages of %s: %w", list.Name, err)
		}
		for j := range all {
			if q.Matches(&all[j]) {
				found = append(found, Found{all[j], &list.Sources[i]})
			}
		}
	}
	return found, nil
}

// Found is a package that matches a query, and the document that lists it.
type Found struct {
	Package
	Source *Source
}

// IndexValue returns the value for a name in the index: 40 bits of its hash, which are short for
// any name. Names may share a value, because the caller matches again what the index finds.
func IndexValue(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:5])
}

// Names returns the names of all packages of a list, in no order. A name may occur more than once.
func Names(list *ImagePackages) (all []string, err error) {
	for i := range list.Sources {
		packages, err := list.Sources[i].All()
		if err != nil {
			return nil, err
		}
		for j := range packages {
			all = append(all, names(&packages[j])...)
		}
	}
	return all, nil
}

// names returns the names under which people know a package: the name in the document, and the name
// in its URL. A Maven package also has its artifact alone as a name, because documents differ in
// that.
func names(p *Package) []string {
	all := []string{p.Name}
	if !strings.HasPrefix(p.PURL, purlScheme) {
		return all
	}
	purl, err := packageurl.FromString(p.PURL)
	if err != nil {
		return all
	}
	add := func(name string) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	add(PURLName(&purl))
	if purl.Type == packageurl.TypeMaven {
		add(purl.Name)
	}
	return all
}

// Upstream returns the source package that a distribution built a package from, by the qualifier of
// its URL that Syft writes, and the source's version; both are empty if the URL does not have them.
func Upstream(p *packageurl.PackageURL) (name, version string) {
	if !isDistribution(p.Type) {
		return "", ""
	}
	upstream := p.Qualifiers.Map()["upstream"]
	source, isRPM := strings.CutSuffix(upstream, ".src.rpm")
	if !isRPM {
		name, version, _ = strings.Cut(upstream, "@")
		return name, version
	}
	for range 2 { // NAME-VERSION-RELEASE
		source = source[:max(strings.LastIndexByte(source, '-'), 0)]
	}
	return source, ""
}

// PURLName returns the name of a package with its namespace, if that is part of the name. For
// packages of operating systems it is not: there, the namespace is the distribution.
func PURLName(p *packageurl.PackageURL) string {
	switch {
	case p.Namespace == "", isDistribution(p.Type):
		return p.Name
	case p.Type == packageurl.TypeMaven:
		return p.Namespace + ":" + p.Name
	}
	return p.Namespace + "/" + p.Name
}

func isDistribution(typ string) bool {
	switch typ {
	case packageurl.TypeDebian, packageurl.TypeRPM, packageurl.TypeApk, packageurl.TypeAlpm, packageurl.TypeGeneric:
		return true
	}
	return false
}

// Comparable returns the data for comparing a package's version: the type of its package URL, "" if
// it has none, and its version with the epoch.
func (p *Package) Comparable() (typ, version string) {
	version = p.Version
	purl, err := packageurl.FromString(p.PURL)
	if err != nil {
		return "", version
	}
	version = cmp.Or(version, purl.Version)
	if epoch := purl.Qualifiers.Map()["epoch"]; epoch != "" && version != "" && !strings.Contains(version, ":") && isDistribution(purl.Type) {
		version = epoch + ":" + version
	}
	return purl.Type, version
}

// documents has the prefixes of the predicate types and media types of SBOMs and VEX documents.
var documents = []string{
	"https://spdx.dev/Document", "application/spdx", "text/spdx", "application/vnd.spdx",
	"https://cyclonedx.org/bom", "application/vnd.cyclonedx",
	"https://openvex.dev/ns", "application/openvex", "application/vnd.openvex",
}

// IsDocument reports whether a predicate type, or a media type, belongs to an SBOM or a VEX
// document.
func IsDocument(typ string) bool {
	return slices.ContainsFunc(documents, func(beginning string) bool { return strings.HasPrefix(typ, beginning) })
}

// ConvertFieldLabel accepts the selectable fields of ImagePackages.
func ConvertFieldLabel(label, value string) (string, string, error) {
	switch label {
	case "metadata.name":
		return label, value, nil
	case Field:
		_, err := ParseQuery(value)
		return label, value, err
	}
	return "", "", fmt.Errorf("field label %q is not supported for imagepackages: select by metadata.name or %s", label, Field)
}
