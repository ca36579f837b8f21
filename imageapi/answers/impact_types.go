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
	// OmittedRows is how many more there are.
	OmittedRows int32 `json:"omittedRows,omitempty"`
	// Unknowns are the parts of the answer that are not known, or not known as of now.
	//
	// +listType=atomic
	Unknowns []UnknownPart `json:"unknowns,omitempty"`
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
	// Images and References are how many images, and references to them, the act touches.
	Images     int32 `json:"images"`
	References int32 `json:"references"`
	// Pods is how many pods run them; it is absent if the caller may not see pods. PodsComplete is
	// false if there may be more.
	Pods         *int32 `json:"pods,omitempty"`
	PodsComplete bool   `json:"podsComplete"`
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
	Pods       int32  `json:"pods"`
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
	// Effect is Judged, Unpullable, Deleted, Incomplete, Contains or MayContain.
	Effect Effect `json:"effect"`
	// Before and After are what is known of the reference now and after the act.
	Before ImpactSide `json:"before"`
	After  ImpactSide `json:"after"`
	// Running is where the image runs under this reference; it is absent if the caller may not see
	// pods. The server's own pods count for each reference.
	Running *Running `json:"running,omitempty"`
	// NeededBy are workloads that need the image, as cluster/namespace/resource/name; at most 20.
	//
	// +listType=atomic
	NeededBy []string `json:"neededBy,omitempty"`
	// Elsewhere are other repositories that have the image, at most 10.
	//
	// +listType=atomic
	Elsewhere []string `json:"elsewhere,omitempty"`
	// LastTag is true if no other tag is known to lead to the image, so that its registry may
	// delete it.
	LastTag bool `json:"lastTag,omitempty"`
	// Packages are the packages of the image that were asked for, at most 5, and what VEX documents
	// say of the image at most 5 times.
	//
	// +listType=atomic
	Packages []ImpactPackage `json:"packages,omitempty"`
	// +listType=atomic
	Statements []ImpactStatement `json:"statements,omitempty"`
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
	// State is that of an answer about the reference, such as Found or Gone.
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
