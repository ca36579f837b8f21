package clusters

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Each requirement of a selector counts, whichever other one is beside it.
func TestEachRequirementCounts(t *testing.T) {
	t.Parallel()
	p := &ClusterPod{Spec: ClusterPodSpec{Cluster: "prod", Namespace: "team", Name: "app-1", Containers: []ClusterPodContainer{{Image: "registry.example.com/app:1"}}}}
	p.Name = "prod:team:app-1"
	values := map[string]string{nameField: p.Name, clusterField: "prod", namespaceField: "team", podField: "app", imageField: "registry.example.com/app:1"}
	for one, its := range values {
		for other, value := range values {
			for selector, want := range map[string]bool{
				one + "=" + its + "," + other + "=" + value:  true,
				one + "!=none," + other + "=" + value:        true,
				one + "=none," + other + "=" + value:         false,
				one + "!=" + its + "," + other + "=" + value: false,
			} {
				parsed, err := fields.ParseSelector(selector)
				if err != nil {
					t.Fatal(err)
				}
				predicate := podPredicate(labels.Everything(), parsed)
				if got, err := predicate.Matches(p); err != nil || got != want {
					t.Errorf("%s selects it: %v, %v", selector, got, err)
				}
			}
		}
	}
}
