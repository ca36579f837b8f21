package packages

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// GroupVersion is the group and version of ImagePackages.
var GroupVersion = schema.GroupVersion{Group: "tidewaiter.dev", Version: "v1"}

// Resource is the resource of ImagePackages, and Kind its kind.
const (
	Resource = "imagepackages"
	Kind     = "ImagePackages"
)

// Bounds of a list.
const (
	MaxSources    = 16        // documents of an image
	MaxPackages   = 10_000    // packages of a document
	MaxStatements = 200       // statements of a VEX document
	MaxPacked     = 512 << 10 // packed bytes of the packages of all documents of an image
	MaxName       = 256       // bytes of a name, a version or a licence
	MaxPURL       = 512       // bytes of a package URL
)

// Install registers ImagePackages and its list with scheme. The API machinery works with the Go
// type that is served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &ImagePackages{}, &ImagePackagesList{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	if err := scheme.AddFieldLabelConversionFunc(GroupVersion.WithKind(Kind), ConvertFieldLabel); err != nil {
		return err
	}
	return scheme.SetVersionPriority(GroupVersion)
}

// ImagePackages says which packages an image has, by the documents that are attached to it. Its
// name is the digest of the image.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.packages
type ImagePackages struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is standard; the name is the digest of the image.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Sources are the documents, at most 16.
	//
	// +listType=atomic
	Sources []Source `json:"sources,omitempty"`
}

// ImagePackagesList is a list of ImagePackages.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.packages
type ImagePackagesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImagePackages `json:"items"`
}

// Formats of documents.
const (
	FormatSPDX      = "SPDX"
	FormatCycloneDX = "CycloneDX"
	FormatOpenVEX   = "OpenVEX"
)

// Source is a document that is attached to an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Source struct {
	// Repository has the document, beside the image.
	Repository string `json:"repository"`
	// Manifest is the digest of the manifest that holds the document, and Blob that of the document
	// itself.
	Manifest string `json:"manifest"`
	Blob     string `json:"blob"`
	// Type is the predicate type of the statement that holds the document, or the document's media
	// type.
	Type string `json:"type,omitempty"`
	// Format is SPDX, CycloneDX or OpenVEX; it is empty where the document could not be read.
	Format string `json:"format,omitempty"`
	// Signature is the second half of the name of the image's signature that is the signed
	// document: its conditions say whether a trusted signer vouches for it. It is empty where the
	// document is not signed, or too large to be judged.
	Signature string `json:"signature,omitempty"`
	// Signed is true if somebody signed the document, trusted or not.
	Signed bool `json:"signed,omitempty"`
	// Index is the digest of the index that lists the document beside the image, as BuildKit does
	// it: whoever signs the index vouches for the document.
	Index string `json:"index,omitempty"`
	// DerivedFrom is the digest of what the server has read the packages and statements from
	// itself: a signed statement in a signature that the image holds, or a document that an index
	// lists. The server writes it. Where it is empty, packages and statements are the word of
	// whoever wrote this object, and nobody vouches for them.
	DerivedFrom string `json:"derivedFrom,omitempty"`
	// Count is how many packages the document has.
	Count int32 `json:"count,omitempty"`
	// Problem says why packages of the document are not known: all of them if count is 0.
	Problem string `json:"problem,omitempty"`
	// Packages are the packages, at most 10,000. Lists and watches have packed in its place.
	//
	// +listType=atomic
	Packages []Package `json:"packages,omitempty"`
	// Packed has the packages as lines, packed by gzip: name, version, package URL and license,
	// with tabs between.
	Packed []byte `json:"packed,omitempty"`
	// Statements are what an OpenVEX document says, at most 200, by Author.
	//
	// +listType=atomic
	Statements []Statement `json:"statements,omitempty"`
	// Author is who a VEX document says that it is by; nobody verifies that.
	Author string `json:"author,omitempty"`
}

// Package is a package of an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Package struct {
	// Name is the package's, with its scope or group where that is part of it: openssl,
	// @babel/core, golang.org/x/net.
	Name string `json:"name"`
	// Version is as the document has it; empty if it has none.
	Version string `json:"version,omitempty"`
	// PURL is the package URL, https://github.com/package-url/purl-spec.
	PURL string `json:"purl,omitempty"`
	// License is an SPDX expression, or whatever the document has.
	License string `json:"license,omitempty"`
}

// Statement is what a VEX document says of a vulnerability.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Statement struct {
	// Vulnerability is its name, such as CVE-2014-0160.
	Vulnerability string `json:"vulnerability"`
	// Status is not_affected, affected, fixed or under_investigation.
	Status string `json:"status"`
	// Justification says why it does not affect the image.
	Justification string `json:"justification,omitempty"`
}

// Bounded returns a package whose texts are printable lines within their bounds. A package URL that
// is too long is left out, as a part of one is another.
func (p Package) Bounded() Package {
	p.Name, p.Version, p.License = printable.Line(p.Name, MaxName), printable.Line(p.Version, MaxName), printable.Line(p.License, MaxName)
	if len(p.PURL) > MaxPURL || strings.ContainsFunc(p.PURL, func(r rune) bool { return r <= ' ' || r > '~' }) {
		p.PURL = ""
	}
	return p
}

// Bounded returns a statement whose texts are printable lines within their bounds.
func (s Statement) Bounded() Statement {
	s.Vulnerability, s.Status, s.Justification = printable.Line(s.Vulnerability, MaxName), printable.Line(s.Status, MaxName), printable.Line(s.Justification, MaxName)
	return s
}

// IsUnderived reports whether the server may read the source's document itself, and has not.
func (s Source) IsUnderived() bool {
	return s.DerivedFrom == "" && (s.Signature != "" || s.Index != "")
}

// SameDocument reports whether two sources have the same document of an index, and the same of it.
func (s *Source) SameDocument(other *Source) bool {
	own, _ := SplitProblem(s.Problem)
	same, _ := SplitProblem(other.Problem)
	return s.Repository == other.Repository && s.Manifest == other.Manifest && s.Blob == other.Blob && s.Index == other.Index && s.Format == other.Format &&
		own == same && s.Author == other.Author && slices.Equal(s.Statements, other.Statements) && bytes.Equal(s.Packed, other.Packed)
}

// Fit drops the packages of a source for which there is no room beside those of other sources,
// which are packed into so many bytes. It returns the bytes of all.
func (s *Source) Fit(packed int) int {
	if packed+len(s.Packed) > MaxPacked {
		s.Packed, s.Count = nil, 0
		s.Problem = fmt.Sprintf("the documents of the image have more packages than are kept: %d bytes packed", MaxPacked)
	}
	return packed + len(s.Packed)
}

// besides is between what is wrong with a document and a note about others, for which there was no
// room.
const besides = "(besides, "

// SplitProblem splits the problem of a source into what is wrong with its document and a note about
// others.
func SplitProblem(problem string) (own, note string) {
	own, note, _ = strings.Cut(problem, besides)
	return strings.TrimSuffix(own, " "), strings.TrimSuffix(note, ")")
}

// JoinProblem is the inverse of SplitProblem.
func JoinProblem(own, note string) string {
	if note == "" {
		return own
	}
	return strings.TrimSpace(own + " " + besides + note + ")")
}

// Known reports whether the list has all packages of its image, as far as documents can say: it has
// an SBOM, and every document was read whole.
func (l *ImagePackages) Known() bool {
	known := false
	for i := range l.Sources {
		s := &l.Sources[i]
		if s.Format == "" || s.Problem != "" {
			return false
		}
		known = known || s.Format != FormatOpenVEX
	}
	return known
}

// Unread says of how many images it is not known whether they have a package, if lists of them have
// a list: "" if it is known of all. partly says that there are lists which are not
// [ImagePackages.Known].
func Unread(images, lists int64, partly bool) string {
	const some = "only a part of the packages may be known: see problem in imagepackages"
	text := ""
	if unknown := images - lists; unknown > 0 {
		text = fmt.Sprintf("no SBOM was read for %d of %s, multi-platform indexes among them, so it is not known whether they have the package", unknown, table.Quantity(images, "image"))
	}
	switch {
	case partly && text != "":
		return text + "; of others " + some
	case partly:
		return "of some images " + some
	}
	return text
}

// Count is how many packages a list has, each counted in every document that has it.
func (l *ImagePackages) Count() (n int32) {
	for i := range l.Sources {
		n += l.Sources[i].Count
	}
	return n
}
