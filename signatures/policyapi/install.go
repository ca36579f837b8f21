package policyapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of OpenShift's configuration, of which this kind is served and nothing else.
var GroupVersion = schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}

// resource is the kind as requests name it.
var resource = GroupVersion.WithResource("clusterimagepolicies").GroupResource()

// Install registers ClusterImagePolicy and its list with scheme. The API machinery works with the same Go types that are
// served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &ClusterImagePolicy{}, &ClusterImagePolicyList{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme.SetVersionPriority(GroupVersion)
}
