package access

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/tidewaiter/tidewaiter/coreapi/access/roles"
)

// kubernetesRoles are the bootstrap roles of Kubernetes that make sense here. The others
// are of programs that do not run here and need resources that are not served: nodes, the
// scheduler, the controller manager and its controllers, DNS, the aggregator, volumes,
// certificate signing.
var kubernetesRoles = sets.New(
	"cluster-admin", "admin", "edit", "view",
	"system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
	"system:discovery", "system:basic-user", "system:public-info-viewer",
	"system:monitoring", "system:auth-delegator", "system:service-account-issuer-discovery",
)

// Roles are the bootstrap roles: Kubernetes' own, OpenShift's for images, and Tidewaiter's.
func Roles() []rbacv1.ClusterRole {
	var all []rbacv1.ClusterRole
	for _, r := range bootstrappolicy.ClusterRoles() {
		if kubernetesRoles.Has(r.Name) {
			all = append(all, r)
		}
	}
	return append(append(all, roles.OpenShift()...), roles.Tidewaiter()...)
}

// bootstrapBindings are the bootstrap bindings.
func bootstrapBindings() []rbacv1.ClusterRoleBinding {
	var bindings []rbacv1.ClusterRoleBinding
	for _, b := range bootstrappolicy.ClusterRoleBindings() {
		if kubernetesRoles.Has(b.RoleRef.Name) {
			bindings = append(bindings, b)
		}
	}
	return append(bindings, rbacv1.ClusterRoleBinding{
		ObjectMeta: roles.Bootstrapped("basic-users", ""),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "basic-user"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.AllAuthenticated}},
	})
}
