package policyapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// ClusterImagePolicy says who must have signed the images of its scopes.
//
// It is OpenShift's kind (github.com/openshift/api config/v1) with the fields of ours that files have, too: what is an
// object there is one here, and the client for that kind reads these.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
type ClusterImagePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the standard object's metadata.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the policy and the images it is for.
	Spec policy.DocumentSpec `json:"spec"`
	// Status is what the server finds about the policy. Nobody else writes it.
	Status ClusterImagePolicyStatus `json:"status,omitempty"`
}

// ClusterImagePolicyStatus is what the server finds about a policy.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ClusterImagePolicyStatus struct {
	// Conditions are of the types Applied, CoversImages and Satisfiable.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterImagePolicyList is a list of policies.
//
// +k8s:deepcopy-gen=true
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:openapi-gen=true
type ClusterImagePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the policies, at most 1000.
	Items []ClusterImagePolicy `json:"items"`
}

const modelPrefix = "com.github.tidewaiter.tidewaiter.signatures.policyapi."

// OpenAPIModelName is the name of the type in OpenAPI documents.
func (ClusterImagePolicy) OpenAPIModelName() string { return modelPrefix + "ClusterImagePolicy" }

// OpenAPIModelName is the name of the type in OpenAPI documents.
func (ClusterImagePolicyList) OpenAPIModelName() string {
	return modelPrefix + "ClusterImagePolicyList"
}
