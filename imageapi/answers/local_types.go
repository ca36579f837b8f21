package answers

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LocalResource is the resource of LocalReferenceReview.
const LocalResource = "localreferencereviews"

// LocalKind is the kind of LocalReferenceReview.
const LocalKind = "LocalReferenceReview"

// LocalReferenceReview asks what the pods of its namespace run, in all clusters. The status has the
// answer; the review is not stored. Users who may list the pods of the namespace may create it. The
// answer only covers what these pods name and run.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.answers
type LocalReferenceReview struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata has the namespace. The rest of it is ignored: a review is not stored.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the questions.
	Spec LocalReferenceReviewSpec `json:"spec,omitempty"`
	// Status has the answers. The server writes it.
	Status LocalReferenceReviewStatus `json:"status,omitempty"`
}

// LocalReferenceReviewSpec has the questions of a review.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type LocalReferenceReviewSpec struct {
	// References are at most 500 questions. Their namespace must be the review's, and may be left
	// out. Without References, the review asks about every reference that the pods name.
	//
	// +listType=atomic
	References []Question `json:"references,omitempty"`
}

// LocalReferenceReviewStatus has the answers to a review.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type LocalReferenceReviewStatus struct {
	// AsOf is when the review was answered.
	AsOf metav1.Time `json:"asOf,omitempty"`
	// References are the answers, in the order of the questions; without questions, one for each
	// reference and digest that containers name and run, at most 500. What no known pod of the
	// namespace names or runs is Unknown.
	//
	// +listType=atomic
	References []Answer `json:"references,omitempty"`
	// Containers are those that the answers are about, at most 1,000.
	//
	// +listType=atomic
	Containers []LocalContainer `json:"containers,omitempty"`
	// Complete is false if there may be more containers, or answers without questions. The unknowns
	// give the reasons.
	Complete bool `json:"complete"`
	// Unknowns are the parts of what the pods run that are not known, or not known as of now.
	//
	// +listType=atomic
	Unknowns []UnknownPart `json:"unknowns,omitempty"`
}

// LocalContainer is what a container of a pod runs, as clusterpods show it.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type LocalContainer struct {
	// Cluster and Pod are where it is; the server's own pods are in the cluster "local".
	Cluster string `json:"cluster"`
	Pod     string `json:"pod"`
	// Name is the name of the container, or volume/ and the name of an image volume.
	Name string `json:"name"`
	// Image is the reference in the pod's spec, and Digest the digest of the running image.
	Image  string `json:"image"`
	Digest string `json:"digest,omitempty"`
	// Outdated is the digest that the tag leads to now, if the container runs something else.
	Outdated string `json:"outdated,omitempty"`
	// OutdatedUnknown is why it is not known whether the container runs something else than its tag
	// leads to; it is empty if that is known.
	OutdatedUnknown string `json:"outdatedUnknown,omitempty"`
	// Verified is the verdict for the reference that the container names, by the policies for the
	// namespace. Reason and Message explain it.
	Verified string `json:"verified"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	// Since is when the pod was created, if that is known.
	Since *metav1.Time `json:"since,omitempty"`
}
