package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// reconcile creates the bootstrap roles and bindings that do not exist, and adds what
// others lack, with kube-apiserver's own code. Additions of an administrator stay. A role
// with the annotation rbac.authorization.kubernetes.io/autoupdate: "false" stays as it
// is.
//
// kube-apiserver's own hook waits for a second before it begins, and ends the
// process when it has not succeeded in half a minute.
//
// Roles that aggregate others come last, with the rules that the others have in storage: they are
// complete at once, and kube-apiserver's controller has nothing to add to them.
//
// A client repeats requests for seconds after 429, so ctx is checked
// between roles.
func reconcile(ctx context.Context, client kubernetes.Interface) error {
	var errs []error
	run := func(kind, name string, do func() error) {
		if ctx.Err() == nil {
			errs = append(errs, named(kind, name, do))
		}
	}
	var stored []reconciliation.RuleOwner
	for _, role := range aggregatedLast(Roles()) {
		run("clusterrole", role.Name, func() error {
			role.Rules = append(role.Rules, aggregated(role.AggregationRule, stored)...)
			result, err := (&reconciliation.ReconcileRoleOptions{
				Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
				Client:  reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
				Confirm: true,
			}).Run()
			if err == nil && !result.Protected { // else the result is not what is stored
				stored = append(stored, result.Role)
			}
			return err
		})
	}
	for _, binding := range bootstrapBindings() {
		run("clusterrolebinding", binding.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{
				RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding},
				Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
				Confirm:     true,
			}).Run()
			return err
		})
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// aggregatedLast returns the roles in an order in which each follows those that it aggregates.
func aggregatedLast(roles []rbacv1.ClusterRole) []rbacv1.ClusterRole {
	order := []string{"view", "edit", "admin"} // what is not in it is -1
	slices.SortStableFunc(roles, func(a, b rbacv1.ClusterRole) int {
		return slices.Index(order, a.Name) - slices.Index(order, b.Name)
	})
	return roles
}

// aggregated returns the rules of the roles that a rule of aggregation selects, in the order in
// which kube-apiserver's controller has them.
func aggregated(rule *rbacv1.AggregationRule, roles []reconciliation.RuleOwner) []rbacv1.PolicyRule {
	if rule == nil {
		return nil
	}
	roles = slices.SortedFunc(slices.Values(roles), func(a, b reconciliation.RuleOwner) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	var rules []rbacv1.PolicyRule
	for _, selector := range rule.ClusterRoleSelectors {
		selects, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil {
			continue // the controller logs it
		}
		for _, role := range roles {
			if !selects.Matches(labels.Set(role.GetLabels())) {
				continue
			}
			for _, r := range role.GetRules() {
				if !slices.ContainsFunc(rules, func(had rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(had, r) }) {
					rules = append(rules, r)
				}
			}
		}
	}
	return rules
}

// named calls do, which may meet another writer, and adds to its error what it is about.
func named(kind, name string, do func() error) error {
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, do)
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return nil
}
