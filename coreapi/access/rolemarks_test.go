package access

import (
	"slices"
	"testing"

	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/tidewaiter/tidewaiter/coreapi/access/roles"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

// The roles are marked as Kubernetes marks its own, so that its reconciliation takes them, and use
// its lists of verbs.
func TestRolesAreLikeKubernetes(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, r := range slices.Concat(roles.OpenShift(), roles.Tidewaiter()) {
		for key, value := range bootstrappolicy.Label {
			if r.Labels[key] != value {
				t.Errorf("%s lacks the label %s", r.Name, key)
			}
		}
		for key, value := range bootstrappolicy.Annotation {
			if r.Annotations[key] != value {
				t.Errorf("%s lacks the annotation %s", r.Name, key)
			}
		}
		for _, rule := range r.Rules {
			for name, verbs := range map[string][]string{"read": bootstrappolicy.Read, "read and write": bootstrappolicy.ReadWrite, "read and update": bootstrappolicy.ReadUpdate} {
				if slices.Equal(slices.Sorted(slices.Values(rule.Verbs)), slices.Sorted(slices.Values(verbs))) {
					used[name] = true
				}
			}
			if slices.Contains(rule.Resources, "clusters") && !slices.Contains(rule.APIGroups, clusters.GroupVersion.Group) {
				t.Errorf("%s has the clusters of %s", r.Name, rule.APIGroups)
			}
		}
	}
	if len(used) != 3 {
		t.Errorf("of Kubernetes' lists of verbs only %v are used", used)
	}
}
