package clusters

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of Tidewaiter's own kinds.
var GroupVersion = schema.GroupVersion{Group: "tidewaiter.dev", Version: "v1"}

// The kinds as requests name them.
var (
	clustersResource = GroupVersion.WithResource("clusters").GroupResource()
	podsResource     = GroupVersion.WithResource("clusterpods").GroupResource()
)

// Install registers Cluster, ClusterPod and their lists with scheme. The API machinery works with
// the Go types that are served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &Cluster{}, &ClusterList{}, &ClusterPod{}, &ClusterPodList{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	if err := scheme.AddFieldLabelConversionFunc(GroupVersion.WithKind("ClusterPod"), podFieldLabel); err != nil {
		return err
	}
	return scheme.SetVersionPriority(GroupVersion)
}
