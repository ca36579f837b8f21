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

// ImagePackages lists the packages of an image, from the documents that are attached to it. Its
// name is the image's digest.
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
	// Repository is the repository with the image and the document.
	Repository string `json:"repository"`
	// Manifest is the digest of the manifest that contains the document, and Blob the digest of the
	// document itself.
	Manifest string `json:"manifest"`
	Blob     string `json:"blob"`
	// Type is the predicate type of the statement that holds the document, or the document's media
	// type.
	Type string `json:"type,omitempty"`
	// Format is SPDX, CycloneDX or OpenVEX; it is empty if the document could not be read.
	Format string `json:"format,omitempty"`
	// Signature is the second half of the name of the signature, in the Image, that contains the
	// signed document. The signature's conditions show whether a trusted signer vouches for the
	// document. It is empty if the document is not signed, or too large to be judged.
	Signature string `json:"signature,omitempty"`
	// Signed is true if the document has a signature, trusted or not.
	Signed bool `json:"signed,omitempty"`
	// Index is the digest of an index that lists the document beside the image, as BuildKit's do: a
	// signature of the index also vouches for the document.
	Index string `json:"index,omitempty"`
	// DerivedFrom is the digest of the document from which the server itself has read the packages and
	// statements: a signed statement in a signature of the Image, or a document that an index lists.
	// The server writes it. If it is empty, the writer of this object supplied the packages and
	// statements, and no signer vouches for them.
	DerivedFrom string `json:"derivedFrom,omitempty"`
	// Count is how many packages the document has.
	Count int32 `json:"count,omitempty"`
	// Problem is the reason why packages of the document are unknown: all of them if count is 0.
	Problem string `json:"problem,omitempty"`
	// Packages are the packages, at most 10,000. Lists and watches have packed instead.
	//
	// +listType=atomic
	Packages []Package `json:"packages,omitempty"`
	// Packed has the packages as lines, compressed with gzip: name, version, package URL and license,
	// separated by tabs.
	Packed []byte `json:"packed,omitempty"`
	// Statements are the statements of an OpenVEX document, at most 200.
	//
	// +listType=atomic
	Statements []Statement `json:"statements,omitempty"`
	// Author is the author that a VEX document names, without verification.
	Author string `json:"author,omitempty"`
}

// Package is a package of an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Package struct {
	// Name is the package's name, with its scope or group if that is part of the name: openssl,
	// @babel/core, golang.org/x/net.
	Name string `json:"name"`
	// Version is as the document has it; empty if it has none.
	Version string `json:"version,omitempty"`
	// PURL is the package URL, https://github.com/package-url/purl-spec.
	PURL string `json:"purl,omitempty"`
	// License is an SPDX expression, or whatever the document has.
	License string `json:"license,omitempty"`
}

// Statement is a VEX document's statement about a vulnerability.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Statement struct {
	// Vulnerability is its name, such as CVE-2014-0160.
	Vulnerability string `json:"vulnerability"`
	// Status is not_affected, affected, fixed or under_investigation.
	Status string `json:"status"`
	// Justification is why it does not affect the image.
	Justification string `json:"justification,omitempty"`
}

// Bounded returns a package whose texts are printable lines within their bounds. A package URL that
// is too long is left out, because its beginning would be another URL.
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

// IsUnderived reports whether the server may read the source's document itself, but has not done
// so.
func (s Source) IsUnderived() bool {
	return s.DerivedFrom == "" && (s.Signature != "" || s.Index != "")
}

// SameDocument reports whether two sources have the same document of an index, and the same
// packages from it.
func (s *Source) SameDocument(other *Source) bool {
	own, _ := SplitProblem(s.Problem)
	same, _ := SplitProblem(other.Problem)
	return s.Repository == other.Repository && s.Manifest == other.Manifest && s.Blob == other.Blob && s.Index == other.Index && s.Format == other.Format &&
		own == same && s.Author == other.Author && slices.Equal(s.Statements, other.Statements) && bytes.Equal(s.Packed, other.Packed)
}

// Fit drops the packages of a source if there is no room for them beside the other sources'
// packages, which take packed bytes. It returns the bytes of all.
func (s *Source) Fit(packed int) int {
	if packed+len(s.Packed) > MaxPacked {
		s.Packed, s.Count = nil, 0
		s.Problem = fmt.Sprintf("the documents of the image have more packages than are kept: %d bytes packed", MaxPacked)
	}
	return packed + len(s.Packed)
}

// besides separates the problem of a document from a note about others for which there was no room.
const besides = "(besides, "

// SplitProblem splits the problem of a source into the problem of its own document and a note about
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

// Known reports whether the list has all packages of its image, as far as documents can show that:
// it has an SBOM, and every document was read to its end.
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

// Unread returns a text about the images whose packages are unknown, given the number of images and
// of their lists: "" if there are none. partly is true if there are lists that are not
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

// Count returns the number of packages of a list. A package counts once for each document that has
// it.
func (l *ImagePackages) Count() (n int32) {
	for i := range l.Sources {
		n += l.Sources[i].Count
	}
	return n
}
