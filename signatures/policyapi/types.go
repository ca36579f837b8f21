package policyapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// ClusterImagePolicy defines who must have signed the images of its scopes.
//
// It is OpenShift's kind (github.com/openshift/api config/v1) with additional fields, which
// policies in files have, too. OpenShift's objects are valid here, and OpenShift's client can read
// these.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.signatures.policyapi
type ClusterImagePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the policy and the images it is for.
	Spec policy.DocumentSpec `json:"spec"`
	// Status is what the server finds about the policy. Only the server writes it.
	Status PolicyStatus `json:"status,omitempty"`
}

// ImagePolicy defines the same for the pods of its namespace, for images that no ClusterImagePolicy
// covers.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.signatures.policyapi
type ImagePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the policy and the images it is for.
	Spec policy.DocumentSpec `json:"spec"`
	// Status is what the server finds about the policy. Only the server writes it.
	Status PolicyStatus `json:"status,omitempty"`
}

// ImagePolicyList is a list of policies.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.signatures.policyapi
type ImagePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the policies, at most 1000.
	Items []ImagePolicy `json:"items"`
}

// PolicyStatus is what the server finds about a policy.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PolicyStatus struct {
	// Conditions are of the types Applied, CoversImages, Exceptions and Satisfiable.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Covers is what the policy covered at the last count; it is absent before the first.
	Covers *Coverage `json:"covers,omitempty"`
}

// Coverage counts what a policy covers. The condition CoversImages has the same in words.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Coverage struct {
	// Images are the stored images that the policy covers, and Repositories the repositories that have
	// them.
	Images       int64 `json:"images"`
	Repositories int64 `json:"repositories"`
	// Unmet are the images that meet neither the policy nor an alternative to it.
	Unmet int64 `json:"unmet"`
	// Spared are the images that do not meet the policy but an alternative to it.
	Spared int64 `json:"spared,omitempty"`
	// AsOf is when the count began.
	AsOf metav1.Time `json:"asOf"`
}

// ClusterImagePolicyList is a list of policies.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.signatures.policyapi
type ClusterImagePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the policies, at most 1000.
	Items []ClusterImagePolicy `json:"items"`
}

// object is a policy of either kind.
type object interface {
	runtime.Object
	metav1.Object
	spec() *policy.DocumentSpec
	status() *PolicyStatus
}

func (p *ClusterImagePolicy) spec() *policy.DocumentSpec { return &p.Spec }
func (p *ClusterImagePolicy) status() *PolicyStatus      { return &p.Status }
func (p *ImagePolicy) spec() *policy.DocumentSpec        { return &p.Spec }
func (p *ImagePolicy) status() *PolicyStatus             { return &p.Status }

func keyOf(o object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
