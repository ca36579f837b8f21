package policyapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of OpenShift's configuration. Of this group only these
// kinds are served.
var GroupVersion = schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}

// The kinds as requests name them.
var (
	clusterResource = GroupVersion.WithResource("clusterimagepolicies").GroupResource()
	resource        = GroupVersion.WithResource("imagepolicies").GroupResource()
)

// Install registers ClusterImagePolicy, ImagePolicy and their lists with scheme. The API machinery
// works with the same Go types that are served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &ClusterImagePolicy{}, &ClusterImagePolicyList{}, &ImagePolicy{}, &ImagePolicyList{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme.SetVersionPriority(GroupVersion)
}

// Resources are the resources of both kinds.
var Resources = []schema.GroupResource{clusterResource, resource}
