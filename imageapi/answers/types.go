package answers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the reviews.
var GroupVersion = schema.GroupVersion{Group: "tidewaiter.dev", Version: "v1"}

// Resource is the resource of ReferenceReview.
const Resource = "referencereviews"

// Kind is the kind of ReferenceReview.
const Kind = "ReferenceReview"

// Bounds of a review and of an answer.
const (
	maxReferences      = 500       // questions of a review
	maxText            = 1024      // bytes of a text in a question
	maxRead            = 256 << 20 // bytes of Images that a review reads
	maxOthers          = 10        // other meanings of a reference
	maxSimilar         = 50        // tags that are read to find what else a short name may mean
	maxTags            = 20        // tags that lead, or led, to an image
	maxHistories       = 500       // tags of a repository whose histories are searched
	maxSearched        = 100_000   // tags, and entries of their histories, that a review searches
	maxPrevious        = 10        // images that a tag led to before
	maxDrift           = 11        // images that a tag led to that are compared with what runs
	maxNeeding         = 20        // workloads that need an image
	maxUsers           = 5000      // pods that are counted by namespace
	maxNames           = 20        // pods that are named
	maxContainers      = 1000      // pods that name a tag
	maxVerifiedIndexes = 16        // indexes that vouch for an image
	ofEvent            = 256       // bytes of an event in the history of a tag, about
	maxVerdicts        = 32        // repositories of an image that is named by its digest alone
)

// Install registers ReferenceReview, LocalReferenceReview and ImpactReview with scheme. The API
// machinery works with the Go type that is served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &ReferenceReview{}, &LocalReferenceReview{}, &ImpactReview{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme.SetVersionPriority(GroupVersion)
}

// ReferenceReview asks what references mean. The status has the answers; the review is not stored.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.answers
type ReferenceReview struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is ignored: a review is not stored.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the questions.
	Spec ReferenceReviewSpec `json:"spec"`
	// Status has the answers. The server writes it.
	Status ReferenceReviewStatus `json:"status,omitempty"`
}

// ReferenceReviewSpec has the questions of a review.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ReferenceReviewSpec struct {
	// References are the questions: at least one, at most 500.
	//
	// +listType=atomic
	References []Question `json:"references"`
	// FormerTags has the histories of tags searched for those that led to an image before, which
	// costs more than the rest of the answer.
	FormerTags bool `json:"formerTags,omitempty"`
	// DriftSince has each digest that a container runs (Question.Runs) compared with where its tag
	// led from this time on.
	DriftSince *metav1.Time `json:"driftSince,omitempty"`
}

// Question is a reference as a person or a pod writes it.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Question struct {
	// Reference is a tag (registry.example.com/team/app:v1), a repository, a digest, the beginning
	// of a digest (at least four hex digits, with or without sha256:), or a repository with a
	// digest or its beginning. The registry may be left out, and the name may be a mirror's.
	Reference string `json:"reference"`
	// Namespace is whose pods ask. Where no policy of the cluster covers the reference, the
	// policies of this namespace do.
	Namespace string `json:"namespace,omitempty"`
	// Platform chooses an image of a multi-platform index, as os/architecture[/variant].
	Platform string `json:"platform,omitempty"`
	// Runs is the digest that a container runs which names the reference. The verdict is then the
	// one for that container, as clusterpods show it, whatever the reference leads to now.
	Runs string `json:"runs,omitempty"`
}

// ReferenceReviewStatus has the answers to a review.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ReferenceReviewStatus struct {
	// AsOf is when the review was answered.
	AsOf metav1.Time `json:"asOf,omitempty"`
	// References are the answers, in the order of the questions.
	//
	// +listType=atomic
	References []Answer `json:"references,omitempty"`
}

// State is how far a reference is known.
type State string

// The states of an Answer.
const (
	Found State = "Found" // the image is stored
	// it is known where the tag leads, and that image is not stored
	NotImported State = "NotImported"
	Gone        State = "Gone" // the registry no longer has the tag
	// the tag is known, and no registry has confirmed yet where it leads
	Unseen    State = "Unseen"
	Absent    State = "Absent"    // nothing is known
	Ambiguous State = "Ambiguous" // the reference may mean several things
	Invalid   State = "Invalid"   // the text is not a reference
	Unknown   State = "Unknown"   // the caller may not read it, or it cannot be read
)

// Moved is the state of a row of an impact review whose tag leads to another image, while pods that
// name it run this one.
const Moved State = "Moved"

// The values of Answer.Reason.
const (
	NoDigest       = "NoDigest"       // Absent: no image has the digest, or one that begins so
	SeveralDigests = "SeveralDigests" // Ambiguous: the digests of several images begin so
	// Absent: the image is not for the platform that was asked for, but for those in
	// Meaning.Platforms
	OtherPlatform = "OtherPlatform"
)

// Answer is what is known of a reference.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Answer struct {
	// Question is what was asked.
	Question Question `json:"question"`
	// State is Found, NotImported, Gone, Unseen, Absent, Ambiguous, Invalid or Unknown.
	State State `json:"state"`
	// Reason is a word for programs, where the state leaves open why: NoDigest, SeveralDigests or
	// OtherPlatform.
	Reason string `json:"reason,omitempty"`
	// Message explains the state, unless the image was found.
	Message string `json:"message,omitempty"`
	// Suggestion is a reference that was probably meant, if the text is not one, or what pods run
	// under a tag that is not imported.
	Suggestion string `json:"suggestion,omitempty"`
	// Meaning is what the reference means, as far as that is known.
	Meaning Meaning `json:"meaning,omitempty"`
	// Checked is how it is known where the reference leads.
	Checked Checked `json:"checked,omitempty"`
	// Verdict is the verdict for this very reference. It is absent where the reference has no
	// repository or no image.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Verdicts are the verdicts in each repository that has the image, if the reference names none
	// of them; at most 32.
	//
	// +listType=atomic
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Running is where the image runs.
	Running *Running `json:"running,omitempty"`
	// NeededBy are workloads that need the image, whether they run it or not, as
	// cluster/namespace/resource/name; at most 20.
	//
	// +listType=atomic
	NeededBy []string `json:"neededBy,omitempty"`
	// Previous are the images that the tag led to before, the newest first; at most 10.
	//
	// +listType=atomic
	Previous []Previous `json:"previous,omitempty"`
	// Drift compares what a container runs (Question.Runs) with where its tag led, the oldest
	// comparison first, if the review has DriftSince and the reference has no digest.
	//
	// +listType=atomic
	Drift []TagDrift `json:"drift,omitempty"`
	// Base is the image that this one is built on, if its annotations or labels name it.
	Base *Base `json:"base,omitempty"`
	// Unknowns are the parts of the answer that are not known, or not known as of now.
	//
	// +listType=atomic
	Unknowns []UnknownPart `json:"unknowns,omitempty"`
}

// The values of Base.Outdated and TagDrift.Outdated.
const (
	BaseOutdated = "True"
	BaseCurrent  = "False"
	BaseUnknown  = "Unknown"
)

// The values of Base.By.
const (
	BaseByAnnotation = "annotation"
	BaseByLayers     = "layers"
)

// Base is what an image is built on.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Base struct {
	// Reference is the base's, and Digest the revision of it that the image is built on.
	Reference string `json:"reference,omitempty"`
	Digest    string `json:"digest,omitempty"`
	// By is how the digest is known: annotation (the image names it), or layers (the image begins
	// with the layers of this revision).
	By string `json:"by,omitempty"`
	// Now is the digest that the reference leads to now.
	Now string `json:"now,omitempty"`
	// Outdated is True if the image is built on an older revision of its base than Now, False if it
	// is not, or Unknown.
	Outdated string `json:"outdated"`
	// Until is when the reference ceased to lead to Digest, if that is known.
	Until *metav1.Time `json:"until,omitempty"`
	// Message is why something is not known.
	Message string `json:"message,omitempty"`
}

// Meaning is what a reference means.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Meaning struct {
	// Reference is the whole reference in its canonical form. It is empty if only a digest was
	// given and the image is in several repositories, or in none.
	Reference string `json:"reference,omitempty"`
	// Repository, Tag and Digest are its parts. With a tag, the digest is what the tag leads to.
	Repository string `json:"repository,omitempty"`
	Tag        string `json:"tag,omitempty"`
	Digest     string `json:"digest,omitempty"`
	// Platform is the platform of the image; it is empty for an index.
	Platform string `json:"platform,omitempty"`
	// Platforms are the images that an index lists, or the one that is for another platform than
	// was asked for.
	//
	// +listType=atomic
	Platforms []PlatformImage `json:"platforms,omitempty"`
	// Indexes are the digests of indexes that list the image.
	//
	// +listType=atomic
	Indexes []string `json:"indexes,omitempty"`
	// Repositories are those that the image is known to be in.
	//
	// +listType=atomic
	Repositories []string `json:"repositories,omitempty"`
	// Tags are the references that lead to the image now, at most 20.
	//
	// +listType=atomic
	Tags []string `json:"tags,omitempty"`
	// FormerTags are tags that led to the image before, at most 20.
	//
	// +listType=atomic
	FormerTags []FormerTag `json:"formerTags,omitempty"`
	// Assumed lists what the reference left open, such as the registry or the tag, and how it was
	// filled in.
	//
	// +listType=atomic
	Assumed []string `json:"assumed,omitempty"`
	// Others are what else the reference may mean, at most 10.
	//
	// +listType=atomic
	Others []string `json:"others,omitempty"`
	// KnownTags are tags of the repository, if the tag that was asked for is not known; at most 10.
	//
	// +listType=atomic
	KnownTags []string `json:"knownTags,omitempty"`
	// Size is in bytes, each layer counted once; 0 if it is not known, as for an index.
	Size int64 `json:"size,omitempty"`
	// ArtifactType is set if the object is not an image but an artifact, such as a signature or a
	// chart.
	ArtifactType string `json:"artifactType,omitempty"`
	// ImportedAt is when the image came to be known here.
	ImportedAt *metav1.Time `json:"importedAt,omitempty"`
}

// PlatformImage is an image that an index lists.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PlatformImage struct {
	// Platform is os/architecture[/variant].
	Platform string `json:"platform,omitempty"`
	Digest   string `json:"digest"`
}

// FormerTag is a tag that led to an image before.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type FormerTag struct {
	Reference string `json:"reference"`
	// Since and Until are when the tag was seen to lead to the image, and to something else.
	Since metav1.Time `json:"since"`
	Until metav1.Time `json:"until"`
	// Now is the digest that the tag leads to now; it is empty if the registry no longer has the
	// tag.
	Now string `json:"now,omitempty"`
}

// Registry is whether the registry has what a reference means.
type Registry string

// The values of Checked.Registry.
const (
	Present Registry = "Present" // it had it when it was last asked
	Lost    Registry = "Gone"    // it did not have it any more
	Unasked Registry = "Unknown"
)

// Checked is how it is known where a reference leads.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Checked struct {
	// Registry is Present, Gone or Unknown: whether the registry had it when it was last asked.
	Registry Registry `json:"registry,omitempty"`
	// LastChecked is when the registry last confirmed it.
	LastChecked *metav1.Time `json:"lastChecked,omitempty"`
	// Since is when the tag was first seen to lead there, or when the registry was first seen
	// without it.
	Since *metav1.Time `json:"since,omitempty"`
	// By is who recorded it, and how: by an import, a webhook or a sweep.
	By string `json:"by,omitempty"`
	// Overwritten is the forbidden move of a tag; it is absent if there is none.
	Overwritten *Overwritten `json:"overwritten,omitempty"`
	// Failing is why looks at the tag, or imports of what pods run, have failed since FailingSince.
	Failing      string       `json:"failing,omitempty"`
	FailingSince *metav1.Time `json:"failingSince,omitempty"`
}

// Overwritten is the move of a tag that must not move. It lasts until a user accepts the move, or
// the tag moves back.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Overwritten struct {
	// From is the digest to which the tag led first, or which was accepted last, and To the one to
	// which it leads now.
	From string `json:"from"`
	To   string `json:"to"`
	// Since is when the move was seen, and By is who recorded it.
	Since metav1.Time `json:"since"`
	By    string      `json:"by,omitempty"`
	// Rules are the rules that forbid the move.
	//
	// +listType=atomic
	Rules []string `json:"rules"`
	// Message is all this in a sentence.
	Message string `json:"message"`
}

// Verdict is the verdict for one reference.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Verdict struct {
	// Reference is what was judged: a repository with a tag or a digest.
	Reference string `json:"reference"`
	// Verified is True, ByIndex, False, Unsigned (a policy demands a signature and there is none),
	// NoPolicy (no policy covers the reference, whether it is signed or not), Excepted (an exception
	// of the policy lets the image through) or Unknown.
	Verified string `json:"verified"`
	// Policies are those that cover the reference.
	//
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`
	// Missing are the demands that are not met.
	//
	// +listType=atomic
	Missing []string `json:"missing,omitempty"`
	// Spared are those that are not met and need not be, because an alternative to each is met.
	//
	// +listType=atomic
	Spared []string `json:"spared,omitempty"`
	// Reason and Message explain it.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Signers are whom the trusted signatures are from.
	//
	// +listType=atomic
	Signers []string `json:"signers,omitempty"`
	// Index is the digest of the index through which the image is verified.
	Index string `json:"index,omitempty"`
	// Until is when the exception ends, in RFC 3339, if Verified is Excepted.
	Until string `json:"until,omitempty"`
	// Attested is the verdict on attestations; it is empty if there are none and none is demanded.
	Attested string `json:"attested,omitempty"`
}

// Running is where an image runs.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Running struct {
	// Pods is how many pods run the image, under whatever name. If it is not known where a tag
	// leads, it is how many name the tag.
	Pods int32 `json:"pods"`
	// Complete is false if there may be more.
	Complete bool `json:"complete"`
	// Clusters are where they are, by cluster and namespace. The server's own pods are in the
	// cluster "local".
	//
	// +listType=atomic
	Clusters []RunningIn `json:"clusters,omitempty"`
	// Names are some of them as cluster/namespace/name, in their order: all, if there are not more
	// than 20.
	//
	// +listType=atomic
	Names []string `json:"names,omitempty"`
	// Outdated is how many pods name the tag and run something else than it
	// leads to now.
	Outdated int32 `json:"outdated"`
	// OutdatedImages are what these run.
	//
	// +listType=atomic
	OutdatedImages []RunningImage `json:"outdatedImages,omitempty"`
	// OutdatedUnknown is how many other pods name the tag and may run
	// something else, and OutdatedUnknownReason is why that is not known, for
	// some of them.
	OutdatedUnknown       int32  `json:"outdatedUnknown,omitempty"`
	OutdatedUnknownReason string `json:"outdatedUnknownReason,omitempty"`
	// Selectors is the value of the field "image" of clusterpods that selects these pods.
	//
	// +listType=atomic
	Selectors []string `json:"selectors,omitempty"`
}

// RunningIn counts pods of a namespace.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RunningIn struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Pods      int32  `json:"pods"`
	// Since is when the oldest of them was created, if that is known.
	Since *metav1.Time `json:"since,omitempty"`
}

// RunningImage counts pods that run another image than their tag leads to now.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RunningImage struct {
	Digest string `json:"digest"`
	Pods   int32  `json:"pods"`
}

// Previous is an image that a tag led to before.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Previous struct {
	// Digest is empty for a time in which the registry did not have the tag.
	Digest string `json:"digest,omitempty"`
	// Since is when the tag was first seen to lead there, and By is who recorded it.
	Since metav1.Time `json:"since"`
	By    string      `json:"by,omitempty"`
}

// TagDrift compares what a container runs with where its tag led from a time on, until the next
// such time.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type TagDrift struct {
	Since metav1.Time `json:"since"`
	// Outdated is True if the container ran something else than the tag led to, False if it did not,
	// or Unknown.
	Outdated string `json:"outdated"`
	// Digest is where the tag led; it is empty if it led nowhere, or that is not known.
	Digest string `json:"digest,omitempty"`
	// Message is why it is not known whether the container was outdated.
	Message string `json:"message,omitempty"`
}

// UnknownPart is a part of an answer that is not known, or not known as of now.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type UnknownPart struct {
	// Part is meaning, tags, checked, verdict, running, neededBy or drift.
	Part string `json:"part"`
	// Reason is why, with the age of what is known.
	Reason string `json:"reason"`
}
