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
	maxPodsNamed      = 200_000 // pods that are counted once each
	maxListing        = 64      // indexes that list an image
	maxOwnerLabels    = 16
	maxPackages       = 5   // packages, and statements, of an image
	maxWithPackage    = 100 // names of images with a package at a time
	maxAdvisories     = 20  // advisories of a row
	maxAdvisoryBytes  = 8 << 20
	maxAdvisoryNames  = 8  // names of packages that are looked up in the index; for more, all lists are read
	maxFixes          = 20 // tags of a repository that are looked at for a fix
)

// ImpactReview asks what an act would change. The status has the answer. The server changes and
// stores nothing, and sends no requests to registries.
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
	// ApplyPolicies are at most 100 ClusterImagePolicy and ImagePolicy objects that would be created,
	// or would replace objects of the same name.
	//
	// +listType=atomic
	ApplyPolicies []runtime.RawExtension `json:"applyPolicies,omitempty"`
	// RemovePolicy is the name of a policy that is deleted: of an ImagePolicy, its namespace, a
	// slash and its name.
	RemovePolicy string `json:"removePolicy,omitempty"`
	// RevokeSigner names signers that would no longer be trusted: public keys in PEM form, an armored
	// OpenPGP keyring, fingerprints of keys separated by commas, or the subject of a certificate or
	// of an OpenPGP key.
	RevokeSigner string `json:"revokeSigner,omitempty"`
	// LoseRegistry is the host of a registry that goes away.
	LoseRegistry string `json:"loseRegistry,omitempty"`
	// Delete is a reference with a tag that its registry loses, a repository and a digest that it
	// loses, or a digest whose Image is deleted.
	Delete string `json:"delete,omitempty"`
	// Layer is the digest of a layer: which images have it?
	Layer string `json:"layer,omitempty"`
	// Base is a tag, a whole digest, or a repository for all its revisions: which images are built
	// on it, as their annotations or their layers say?
	Base string `json:"base,omitempty"`
	// Package is a package by name or package URL, and after an @ a range of its versions, such as
	// openssl@>=3.0,<3.0.7: which images have it, by the SBOMs that are attached to them?
	Package string `json:"package,omitempty"`
	// Advisories are documents in the OSV format, one after another or in an array, packed by gzip:
	// which images have an affected package, by the SBOMs that are attached to them? At most 8 MiB
	// unpacked.
	Advisories []byte `json:"advisories,omitempty"`
	// Image limits a review of advisories to one image: by a tag, a digest, or a repository and a
	// digest. Of a multi-platform index, the images of its platforms are looked at.
	Image string `json:"image,omitempty"`
	// Continue is copied from the status of a former review, to look for the same advisories in the
	// remaining images.
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
	// OmittedRows is the number of further rows. Rows that come from pods alone are omitted for a
	// caller who may not see pods.
	OmittedRows int32 `json:"omittedRows,omitempty"`
	// Unknowns are the parts of the answer that are not known, or not known as of now.
	//
	// +listType=atomic
	Unknowns []UnknownPart `json:"unknowns,omitempty"`
	// Continue is set if there was time for some of the images alone: the next review has it in its
	// spec.
	Continue string `json:"continue,omitempty"`
	// Touched names everything that the summary counts, if the spec requests it. It lacks pods and
	// workloads if the caller may not see pods.
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
	// Unchecked is the number of advisories that cannot be compared with an SBOM, as a whole or in
	// part. The unknowns give the reasons.
	Unchecked int32 `json:"unchecked,omitempty"`
	// NotAffected is the number of references with an affected package that are not affected
	// according to a VEX document. A signer whom the policies trust vouches for the document. No
	// other count includes these references.
	NotAffected int32 `json:"notAffected,omitempty"`
	// Images and References are how many images, and references to them, the act touches.
	Images     int32 `json:"images"`
	References int32 `json:"references"`
	// Pods is how many pods run them. PodsComplete is false if there may be more: what is not known
	// is in the unknowns.
	Pods         int32 `json:"pods"`
	PodsComplete bool  `json:"podsComplete"`
	// Undecided is the number of digests, and of tags without a digest, that pods run and for which
	// it is not known whether the act touches them.
	Undecided int32 `json:"undecided,omitempty"`
	// Denied is the number of these pods that a cluster with the admission webhook admits now, and
	// would refuse after the act.
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
	Contains   Effect = "Contains"   // the image has the layer, the base or the package
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
	// Running is where the image runs under this reference. A caller who may not see pods gets the
	// number of pods alone, and nothing if the row has a namespace. The server's own pods count for
	// each reference.
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
	// Packages are at most 5 of the requested packages that the image has, with at most 5 statements
	// of VEX documents about the image.
	//
	// +listType=atomic
	Packages []ImpactPackage `json:"packages,omitempty"`
	// +listType=atomic
	Statements []ImpactStatement `json:"statements,omitempty"`
	// Advisories are at most 20 advisories about packages of the image: first those that affect it,
	// then those that may, then those that do not according to a VEX document. OmittedAdvisories is
	// the number of further ones.
	//
	// +listType=atomic
	Advisories        []ImpactAdvisory `json:"advisories,omitempty"`
	OmittedAdvisories int32            `json:"omittedAdvisories,omitempty"`
	// Labels are the labels of the Image, and the labels of its config that name owners.
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
	// Vouched is True if a signer whom the policies trust signed the document; otherwise False,
	// Unsigned or Unknown. VouchedBy is the signer.
	Vouched   string `json:"vouched"`
	VouchedBy string `json:"vouchedBy,omitempty"`
	// Unknown is the reason if it is not known whether the version is in the range.
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
	// Package is the package that the advisory is about. If it may be affected, its field unknown
	// has the reason.
	Package ImpactPackage `json:"package"`
	// Fixed is the first version with a fix, if the advisory names one.
	Fixed string `json:"fixed,omitempty"`
	// FixedBy is a tag of the same repository that leads to an image which the advisory is not
	// about, by its SBOM: the one that moved there last. It is absent if none is known.
	FixedBy string `json:"fixedBy,omitempty"`
	// Statement is a VEX document's statement about the image, first of all the one by which the
	// image is not affected.
	Statement *ImpactStatement `json:"statement,omitempty"`
}

// ImpactStatement is a VEX document's statement about a vulnerability of an image.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactStatement struct {
	Vulnerability string `json:"vulnerability"`
	Status        string `json:"status"`
	// Author is the author that the document names.
	Author string `json:"author,omitempty"`
	// Vouched and VouchedBy mean the same as in ImpactPackage.
	Vouched   string `json:"vouched"`
	VouchedBy string `json:"vouchedBy,omitempty"`
}

// ImpactSide is what is known of a reference before or after an act.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImpactSide struct {
	// State is the state of the reference, such as Found or Gone. It is Moved if the tag leads to
	// another image, while pods that name the tag run this one.
	State State `json:"state"`
	// Verdict is the verdict for this very reference.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Admission is how a cluster with the admission webhook treats a pod that names the reference:
	// allowed, audited, warned or denied. It is empty if there is no verdict.
	Admission string `json:"admission,omitempty"`
}

// word is the verdict of a side, or its state if it has none.
func (s *ImpactSide) word() string {
	if s.Verdict != nil {
		return s.Verdict.Verified
	}
	return string(s.State)
}
