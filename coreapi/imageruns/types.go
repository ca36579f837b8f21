package imageruns

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

// ImageRun is a stretch of time in which a workload of a cluster ran an image in a container. It is
// in the namespace of the pods. The server writes it.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.imageruns
type ImageRun struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata. The creation is that of this object.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what ran, and since when.
	Spec ImageRunSpec `json:"spec"`
	// Status is what is known about it.
	Status ImageRunStatus `json:"status"`
}

// ImageRunSpec is what ran, and since when.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImageRunSpec struct {
	// Cluster is the name of the cluster in the configuration; local for the server's own pods.
	Cluster string `json:"cluster"`
	// Workload is the topmost owner of the pods as KIND/NAME, such as Deployment/app. A pod without
	// one is its own: Pod/NAME.
	Workload string `json:"workload"`
	// Container is the name of the container, or volume/ and the name of an image volume.
	Container string `json:"container"`
	// Image is the reference as the pods' specs have it.
	Image string `json:"image"`
	// ImageID is the ID of the image that ran, as the node's runtime reported it.
	ImageID string `json:"imageID"`
	// Digest is the digest of the image that ran. It is empty if the runtime reported another ID, and
	// no known image has that ID. A digest that the runtime reported with the repository may be a
	// config's: it stays until an image with that config is known.
	Digest string `json:"digest,omitempty"`
	// Platform is the nodes' platform as os/architecture; it is empty if it is not known.
	Platform string `json:"platform,omitempty"`
	// From is when the first container started, by the cluster's clock if the cluster reports it.
	From metav1.Time `json:"from"`
}

// ImageRunStatus is what is known about a stretch.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ImageRunStatus struct {
	// Until is when the last pod was gone or had finished; it is absent while one runs. If that
	// happened while the cluster could not be seen, it is the end of that time, which is in Unseen.
	Until *metav1.Time `json:"until,omitempty"`
	// MostPods is how many pods ran it at once at most, to the minute while it grows.
	MostPods int32 `json:"mostPods"`
	// Admission is how it was admitted, if the cluster asked this server's admission when it began:
	// Allowed, Warned, Audited, or UnknownAllowed where it was not known whether it meets the
	// policies. It is NeverAsked if the cluster did not ask about this image, and Unknown if it is
	// not known whether it did.
	Admission string `json:"admission,omitempty"`
	// AdmissionMessage is what was found then, or why that is not known.
	AdmissionMessage string `json:"admissionMessage,omitempty"`
	// Verdicts are the verdict for the reference at the beginning, and each that followed, the
	// oldest first. At most 16 are kept: the first and the newest ones.
	//
	// +listType=atomic
	Verdicts []RunVerdict `json:"verdicts,omitempty"`
	// VerdictsDropped is how many verdicts after the first one are no longer kept.
	VerdictsDropped int32 `json:"verdictsDropped,omitempty"`
	// Unseen are the times in which the cluster could not be seen: it is unknown whether it ran
	// then. While the stretch lasts, they are not stored but found when it is read.
	//
	// +listType=atomic
	Unseen []clusters.Gap `json:"unseen,omitempty"`
}

// How what ran was admitted.
const (
	AdmissionAllowed        = "Allowed"
	AdmissionWarned         = "Warned"
	AdmissionAudited        = "Audited"
	AdmissionUnknownAllowed = "UnknownAllowed"
	AdmissionNeverAsked     = "NeverAsked"
	AdmissionUnknown        = "Unknown"
)

// RunVerdict is the verdict for what ran, as it was known at a time.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RunVerdict struct {
	// Since is when it was found.
	Since metav1.Time `json:"since"`
	// Verified is the verdict, with the same values as in clusterpods.
	Verified string `json:"verified"`
	// Reason and Message explain it.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Policies are those that covered the reference.
	//
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`
	// PolicyVersions has a version of each of Policies, in their order. A version changes with
	// everything that verdicts of the policy depend on.
	//
	// +listType=atomic
	PolicyVersions []string `json:"policyVersions,omitempty"`
	// Signers are the identities that signed.
	//
	// +listType=atomic
	Signers []string `json:"signers,omitempty"`
	// ExceptionUntil is when the exception ends that the verdict is due to.
	ExceptionUntil string `json:"exceptionUntil,omitempty"`
	// Cause is why this verdict followed the one before it. It is absent for the first verdict, and
	// if an older server recorded it.
	Cause string `json:"cause,omitempty"`
}

// ImageRunList is a list of stretches.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.imageruns
type ImageRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the stretches.
	Items []ImageRun `json:"items"`
}
