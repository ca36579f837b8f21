package clusters

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cluster is a cluster whose pods are followed. The server writes a Cluster for each entry of the
// configuration.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.clusters
type Cluster struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the values of the configuration.
	Spec ClusterSpec `json:"spec"`
	// Status is what is known about the cluster.
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterSpec has the configuration's values for a cluster.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterSpec struct {
	// Server is the URL of the cluster's API.
	Server string `json:"server,omitempty"`
	// ExcludedNamespaces are those whose pods are not followed.
	//
	// +listType=set
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
}

// ClusterStatus is what is known about a cluster.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterStatus struct {
	// Conditions are of the types Synced (all pods have been read once, so an image that no pod is
	// known to use is not used), Reachable (what is shown is as of now) and Credential (what the
	// server shows the cluster is valid; EndsSoon is its reason in the last 14 days).
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastSeen is when the cluster last showed its pods as they are stored here, to the minute
	// while it is reachable.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Pods is how many of its pods are stored here.
	Pods int32 `json:"pods"`
	// Records are the times for which the ImageRuns of the cluster are complete. It is absent until
	// recording begins.
	Records *ClusterRecords `json:"records,omitempty"`
}

// ClusterRecords are the times for which the ImageRuns of a cluster are complete: from Since to
// Until, except for the gaps.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterRecords struct {
	// Since is the time from which on records are whole: when recording began, or when the newest
	// of the records ended that were deleted to make room.
	Since metav1.Time `json:"since"`
	// Until is the time up to which everything that was seen is recorded, to the minute.
	Until metav1.Time `json:"until"`
	// Unseen are the times in which the server did not see the cluster, or did not run; at most
	// 200. If there are more, the two that are nearest to each other become one.
	//
	// +listType=atomic
	Unseen []Gap `json:"unseen,omitempty"`
}

// Gap is a time in which a cluster could not be seen, so that it is unknown what ran.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Gap struct {
	From metav1.Time `json:"from"`
	// Until is absent while the cluster still cannot be seen.
	Until *metav1.Time `json:"until,omitempty"`
}

// The conditions of a Cluster.
const (
	ConditionSynced    = "Synced"
	ConditionReachable = "Reachable"
	// ConditionCredential is absent until the cluster was connected to once.
	ConditionCredential = "Credential"
)

// ClusterList is a list of clusters.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.clusters
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the clusters.
	Items []Cluster `json:"items"`
}

// ClusterPod is a pod of a cluster that is followed, with what its containers run. Its name is
// CLUSTER:NAMESPACE:POD. The server writes it.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.clusters
type ClusterPod struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata. The creation is that of this object.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the pod as its cluster last showed it.
	Spec ClusterPodSpec `json:"spec"`
}

// ClusterPodSpec is a pod as its cluster last showed it.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterPodSpec struct {
	// Cluster is the name of the cluster in the configuration.
	Cluster string `json:"cluster"`
	// Namespace, Name and UID are the pod's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// NodeName is the node that it is bound to.
	NodeName string `json:"nodeName,omitempty"`
	// Platform is the node's platform as os/architecture; it is empty if it is not known.
	Platform string `json:"platform,omitempty"`
	// ServiceAccountName is the service account that it runs as.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Since is when the pod was created.
	Since metav1.Time `json:"since,omitempty"`
	// Workload is the topmost owner of the pod as KIND/NAME, such as Deployment/app. A pod without
	// one, or that its node makes, is its own: Pod/NAME.
	Workload string `json:"workload,omitempty"`
	// Finished is when the last container of a pod ended that does not start again.
	Finished *metav1.Time `json:"finished,omitempty"`
	// Containers are its init containers, containers and ephemeral containers, and the volumes that
	// are images, at most 100.
	//
	// +listType=atomic
	Containers []ClusterPodContainer `json:"containers"`
}

// ClusterPodContainer is what a container runs.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterPodContainer struct {
	// Name is the name of the container, or volume/ and the name of an image volume.
	Name string `json:"name"`
	// Image is the reference as the pod's spec has it.
	Image string `json:"image"`
	// ImageID is the ID of the running image as the node's runtime reports it; it is empty until the
	// container has started.
	ImageID string `json:"imageID,omitempty"`
	// Started is when the container first ran, as the node reports it; it is absent until then.
	Started *metav1.Time `json:"started,omitempty"`
	// Waiting is why the container does not run, such as ErrImagePull.
	Waiting string `json:"waiting,omitempty"`
	// Message is the cluster's message about that, if the image is at fault.
	Message string `json:"message,omitempty"`

	// Digest is the digest of the running image, or else the digest in the reference. It and the
	// fields below are not stored, but computed when the pod is read.
	Digest string `json:"digest,omitempty"`
	// Verified is the verdict for the reference that the container names, by the policies that count
	// for the pod's namespace; it is Unknown where the image is not known to be there.
	Verified string `json:"verified,omitempty"`
	// Reason and VerdictMessage explain the verdict.
	Reason         string `json:"reason,omitempty"`
	VerdictMessage string `json:"verdictMessage,omitempty"`
	// NotImported is why an image that is not known could not be imported; it is empty before that
	// was tried.
	NotImported string `json:"notImported,omitempty"`
	// Outdated is the digest that the tag leads to now, if the container names a tag and runs
	// something else.
	Outdated string `json:"outdated,omitempty"`
	// OutdatedUnknown is why it is not known whether the container runs something else than its tag
	// leads to; it is empty if that is known, or the container names no tag.
	OutdatedUnknown string `json:"outdatedUnknown,omitempty"`
}

// ClusterPodList is a list of pods.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.coreapi.clusters
type ClusterPodList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the pods.
	Items []ClusterPod `json:"items"`
}
