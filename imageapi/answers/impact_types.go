package answers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ImpactResource is the resource of ImpactReview.
const ImpactResource = "impactreviews"

// ImpactKind is the kind of ImpactReview.
const ImpactKind = "ImpactReview"

// Bounds of a review of an act.
const (
	maxImpactPolicies = 100      // policies that are applied at once
	maxSigner         = 64 << 10 // bytes of keys
	defaultRows       = 500
	maxRows           = 5000
	maxTagsRead       = 500_000 // tags that are remembered
	maxPodsNamed      = 200_000 // pods that are told apart
	maxListing        = 64      // indexes that list an image
	maxOwnerLabels    = 16
	maxPackages       = 5   // packages, and statements, of an image
	maxWithPackage    = 100 // names of images with a package at a time
	maxAdvisories     = 20  // advisories of a row
	maxAdvisoryBytes  = 8 << 20
	maxAdvisoryNames  = 8  // names of packages for which the index is asked; else all lists are read
	maxFixes          = 20 // tags of a repository that are looked at for a fix
)

// ImpactReview asks what an act would change before it is done, and is answered in its status.
// Nothing is changed, no registry is asked, and the review is not stored.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.answers
type ImpactReview struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is ignored: a review is not stored.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the act.
	Spec ImpactReviewSpec `json:"spec"`
	// Status is what the act would change. The server writes it.
	Status ImpactReviewStatus `json:"status,omitempty"`
}

// ImpactReviewSpec is an act: exactly one of the fields but maxRows.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactReviewSpec struct {
	// ApplyPolicies are ClusterImagePolicy and ImagePolicy objects that are created, or take the
	// place of those of their names; at most 100.
	//
	// +listType=atomic
	ApplyPolicies []runtime.RawExtension `json:"applyPolicies,omitempty"`
	// RemovePolicy is the name of a policy that is deleted: of an ImagePolicy, its namespace, a
	// slash and its name.
	RemovePolicy string `json:"removePolicy,omitempty"`
	// RevokeSigner is who is no longer trusted: public keys in PEM form, an armored OpenPGP
	// keyring, fingerprints of keys with commas between them, or the subject of a certificate or of
	// an OpenPGP key.
	RevokeSigner string `json:"revokeSigner,omitempty"`
	// LoseRegistry is the host of a registry that goes away.
	LoseRegistry string `json:"loseRegistry,omitempty"`
	// Delete is a reference with a tag that its registry loses, or a digest whose image is deleted.
	Delete string `json:"delete,omitempty"`
	// Layer is the digest of a layer: which images have it?
	Layer string `json:"layer,omitempty"`
	// Package is a package by name or package URL, and after an @ a range of its versions, such as
	// openssl@>=3.0,<3.0.7: which images have it, by the SBOMs that are attached to them?
	Package string `json:"package,omitempty"`
	// Advisories are documents in the OSV format, one after another or in an array, packed by gzip:
	// which images have an affected package, by the SBOMs that are attached to them? At most 8 MiB
	// unpacked.
	Advisories []byte `json:"advisories,omitempty"`
	// Continue is that of a status: the same advisories are looked for in the images after it.
	Continue string `json:"continue,omitempty"`
	// Named has the status name all that is touched, so that the answers of several reviews can be
	// added up.
	Named bool `json:"named,omitempty"`
	// At is a later time: what expires until then? How old the knowledge about tags is stays as it
	// is now.
	At *metav1.Time `json:"at,omitempty"`

	// MaxRows bounds the rows of the answer: 500 if it is left out, at most 5000. What runs comes
	// first.
	MaxRows int32 `json:"maxRows,omitempty"`
}

// ImpactReviewStatus is what an act would change.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactReviewStatus struct {
	// AsOf is when the review was answered.
	AsOf metav1.Time `json:"asOf,omitempty"`
	// Summary counts what the act touches, also what has no row.
	Summary ImpactSummary `json:"summary"`
	// Rows are what the act touches, what runs in most pods first.
	//
	// +listType=atomic
	Rows []ImpactRow `json:"rows,omitempty"`
	// OmittedRows is how many more there are. Those that only pods tell of are omitted for a caller
	// who may not see pods.
	OmittedRows int32 `json:"omittedRows,omitempty"`
	// Unknowns are the parts of the answer that are not known, or not known as of now.
	//
	// +listType=atomic
	Unknowns []UnknownPart `json:"unknowns,omitempty"`
	// Continue is set if there was time for some of the images alone: the next review has it in its
	// spec.
	Continue string `json:"continue,omitempty"`
	// Touched names all that the summary counts, if the spec asks for it. Pods and workloads are
	// absent if the caller may not see pods.
	Touched *ImpactTouched `json:"touched,omitempty"`
}

// ImpactTouched names what an act touches.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactTouched struct {
	// Images are digests.
	//
	// +listType=atomic
	Images []string `json:"images,omitempty"`
	// References are the names of images, with the namespace in brackets where it matters.
	//
	// +listType=atomic
	References []string `json:"references,omitempty"`
	// NotAffected are those that are not affected by a VEX document.
	//
	// +listType=atomic
	NotAffected []string `json:"notAffected,omitempty"`
	// Pods are cluster/namespace/name, and Workloads cluster/namespace/resource/name.
	//
	// +listType=atomic
	Pods []string `json:"pods,omitempty"`
	// +listType=atomic
	Workloads []string `json:"workloads,omitempty"`
}

// ImpactSummary counts what an act touches.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactSummary struct {
	// Examined is how many images were looked at.
	Examined int32 `json:"examined"`
	// Unlisted is how many images have no SBOM that was read, if a package was asked for: it is not
	// known whether they have it. Multi-platform indexes, which have no packages of their own, are
	// among them.
	Unlisted int32 `json:"unlisted,omitempty"`
	// Unchecked is how many advisories say, as a whole or in part, nothing that can be compared with
	// an SBOM: the unknowns say why.
	Unchecked int32 `json:"unchecked,omitempty"`
	// NotAffected is how many references have an affected package, and are not affected by the word
	// of a VEX document for which somebody vouches whom the policies trust. No other count has them.
	NotAffected int32 `json:"notAffected,omitempty"`
	// Images and References are how many images, and references to them, the act touches.
	Images     int32 `json:"images"`
	References int32 `json:"references"`
	// Pods is how many pods run them. PodsComplete is false if there may be more: what is not known
	// is in the unknowns.
	Pods         int32 `json:"pods"`
	PodsComplete bool  `json:"podsComplete"`
	// Undecided is how many digests, and tags that lead to none, pods run of which it is not known
	// whether the act touches them.
	Undecided int32 `json:"undecided,omitempty"`
	// Denied is how many of these pods a cluster that asks on admission would refuse after the act,
	// and would not refuse now.
	Denied int32 `json:"denied,omitempty"`
	// Workloads is how many workloads need them; no image counts more than 20.
	Workloads int32 `json:"workloads"`
	// Changes count the references by their verdicts before and after.
	//
	// +listType=atomic
	Changes []ImpactChange `json:"changes,omitempty"`
}

// ImpactChange counts references by what becomes of them.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactChange struct {
	// Before and After are verdicts, or what the reference means where it has no verdict: Gone,
	// Absent, NotImported.
	Before     string `json:"before"`
	After      string `json:"after"`
	References int32  `json:"references"`
	// Pods is how many pods run them, each counted once. PodsComplete is false if there may be more.
	Pods         int32 `json:"pods"`
	PodsComplete bool  `json:"podsComplete"`
}

// Effect is what an act does with a reference.
type Effect string

// The effects of acts.
const (
	Judged     Effect = "Judged"     // its verdict, or what admission makes of that, is another
	Unpullable Effect = "Unpullable" // a node that does not have it cannot pull it
	Deleted    Effect = "Deleted"    // it means nothing any more
	Incomplete Effect = "Incomplete" // the index lists an image that is deleted
	Contains   Effect = "Contains"   // the image has the layer, or the package
	// the image has the package, and it is not known whether in a version of the range
	MayContain Effect = "MayContain"
	// the image has an affected package, and by a trusted VEX document the image is not affected
	NotAffected Effect = "NotAffected"
)

// ImpactRow is a reference that an act touches.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactRow struct {
	// Image is the digest, and Reference the repository with a tag or the digest.
	Image     string `json:"image"`
	Reference string `json:"reference"`
	// Namespace is set if the row is about the pods of that namespace alone, which has policies of
	// its own.
	Namespace string `json:"namespace,omitempty"`
	// Effect is Judged, Unpullable, Deleted, Incomplete, Contains, MayContain or NotAffected.
	Effect Effect `json:"effect"`
	// Before and After are what is known of the reference now and after the act.
	Before ImpactSide `json:"before"`
	After  ImpactSide `json:"after"`
	// Running is where the image runs under this reference; for a caller who may not see pods, it is
	// how many do, and absent if the row has a namespace. The server's own pods count for each
	// reference.
	Running *Running `json:"running,omitempty"`
	// NeededBy are workloads that need the image, as cluster/namespace/resource/name; at most 20. It
	// is absent if the caller may not see pods.
	//
	// +listType=atomic
	NeededBy []string `json:"neededBy,omitempty"`
	// Elsewhere are other repositories that have the image, at most 10.
	//
	// +listType=atomic
	Elsewhere []string `json:"elsewhere,omitempty"`
	// LastTag is true if no other tag of the repository is known to lead to the image, so that its
	// registry may delete it there.
	LastTag bool `json:"lastTag,omitempty"`
	// Packages are the packages of the image that were asked for, at most 5, and what VEX documents
	// say of the image at most 5 times.
	//
	// +listType=atomic
	Packages []ImpactPackage `json:"packages,omitempty"`
	// +listType=atomic
	Statements []ImpactStatement `json:"statements,omitempty"`
	// Advisories are those that are about a package of the image, at most 20: first those that
	// affect it, then those of which that is not known, then those that do not by a VEX document.
	// OmittedAdvisories is how many more there are.
	//
	// +listType=atomic
	Advisories        []ImpactAdvisory `json:"advisories,omitempty"`
	OmittedAdvisories int32            `json:"omittedAdvisories,omitempty"`
	// Labels are the labels of the Image, and those of its config that name owners.
	Labels map[string]string `json:"labels,omitempty"`
}

// ImpactPackage is a package that was asked for.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactPackage struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	License string `json:"license,omitempty"`
	// Document is the digest of the SBOM that lists it.
	Document string `json:"document"`
	// Vouched says whether somebody whom the policies trust signed the document: True, False,
	// Unsigned or Unknown. VouchedBy is who signed it.
	Vouched   string `json:"vouched"`
	VouchedBy string `json:"vouchedBy,omitempty"`
	// Unknown says why it is not known whether the version is in the range.
	Unknown string `json:"unknown,omitempty"`
}

// ImpactAdvisory is an advisory that is about a package of an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactAdvisory struct {
	ID string `json:"id"`
	// Aliases are its other names, such as a CVE, at most 5.
	//
	// +listType=atomic
	Aliases []string `json:"aliases,omitempty"`
	// Effect is Contains, MayContain or NotAffected.
	Effect Effect `json:"effect"`
	// Package is what it is about. Its unknown says why it may be affected.
	Package ImpactPackage `json:"package"`
	// Fixed is the first version with a fix, if the advisory names one.
	Fixed string `json:"fixed,omitempty"`
	// FixedBy is a tag of the same repository that leads to an image which the advisory is not
	// about, by its SBOM: the one that moved there last. It is absent if none is known.
	FixedBy string `json:"fixedBy,omitempty"`
	// Statement is what a VEX document says of the image: the one by which it is not affected, or
	// another one.
	Statement *ImpactStatement `json:"statement,omitempty"`
}

// ImpactStatement is what a VEX document says of a vulnerability of an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactStatement struct {
	Vulnerability string `json:"vulnerability"`
	Status        string `json:"status"`
	// Author is who wrote the document, by its own word.
	Author string `json:"author,omitempty"`
	// Vouched and VouchedBy are as those of a package.
	Vouched   string `json:"vouched"`
	VouchedBy string `json:"vouchedBy,omitempty"`
}

// ImpactSide is what is known of a reference before or after an act.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactSide struct {
	// State is that of an answer about the reference, such as Found or Gone; Moved if the tag leads to
	// another image, while pods that name it run this one.
	State State `json:"state"`
	// Verdict is the verdict for this very reference.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Admission is what becomes of a pod that names the reference, in a cluster that asks on
	// admission: allowed, audited, warned or denied. It is empty where there is no verdict.
	Admission string `json:"admission,omitempty"`
}

// word is the verdict of a side, or its state if it has none.
func (s *ImpactSide) word() string {
	if s.Verdict != nil {
		return s.Verdict.Verified
	}
	return string(s.State)
}
