package access

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
)

// What is written of a role that aggregates others has all their rules, in the order of
// kube-apiserver's controller, which then writes nothing. What an administrator took from a role,
// and protected, comes back in none.
func TestAggregatedRolesAreWrittenWhole(t *testing.T) {
	t.Parallel()
	client := fake.NewSimpleClientset()
	roles := client.RbacV1().ClusterRoles()
	check := func() {
		t.Helper()
		if err := reconcile(t.Context(), client); err != nil {
			t.Fatal(err)
		}
		all, err := roles.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(all.Items, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
		for _, r := range all.Items {
			if r.AggregationRule == nil {
				continue
			}
			var want []rbacv1.PolicyRule
			for _, part := range all.Items {
				if !labels.SelectorFromSet(r.AggregationRule.ClusterRoleSelectors[0].MatchLabels).Matches(labels.Set(part.Labels)) {
					continue
				}
				for _, rule := range part.Rules {
					if !slices.ContainsFunc(want, func(had rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(had, rule) }) {
						want = append(want, rule)
					}
				}
			}
			if len(want) == 0 || !equality.Semantic.DeepEqual(r.Rules, want) {
				t.Errorf("%s has\n%v, want\n%v", r.Name, r.Rules, want)
			}
		}
	}
	check()

	part, err := roles.Get(t.Context(), "system:aggregate-to-view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	part.Rules, part.Annotations[rbacv1.AutoUpdateAnnotationKey] = nil, "false"
	if _, err := roles.Update(t.Context(), part, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"view", "edit", "admin"} {
		if err := roles.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check()
}
