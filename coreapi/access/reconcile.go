package access

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
// A client repeats requests for seconds after 429, so ctx is checked
// between roles.
func reconcile(ctx context.Context, client kubernetes.Interface) error {
	var errs []error
	run := func(kind, name string, do func() error) {
		if ctx.Err() == nil {
			errs = append(errs, named(kind, name, do))
		}
	}
	for _, role := range Roles() {
		run("clusterrole", role.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{
				Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
				Client:  reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
				Confirm: true,
			}).Run()
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
