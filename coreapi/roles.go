package coreapi

import (
	"fmt"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// roles are the resources of rbac.authorization.k8s.io. Kubernetes' provider keeps the
// stores to itself; here the stores are needed, for namespaces.
type roles struct {
	storage    map[string]rest.Storage
	namespaced []*genericregistry.Store
}

// newRoles returns storages with which users cannot extend their own rights. The writer of a role
// or a binding must have the rights that it grants, which is read from the storage itself, or be
// allowed by a, as in Kubernetes (the verbs escalate and bind).
func newRoles(g generic.RESTOptionsGetter, a authorizer.UnconditionalAuthorizer) (*roles, error) {
	rs, err := rolestore.NewREST(g)
	if err != nil {
		return nil, fmt.Errorf("roles: %w", err)
	}
	bindings, err := rolebindingstore.NewREST(g)
	if err != nil {
		return nil, fmt.Errorf("role bindings: %w", err)
	}
	clusterRoles, err := clusterrolestore.NewREST(g)
	if err != nil {
		return nil, fmt.Errorf("cluster roles: %w", err)
	}
	clusterBindings, err := clusterrolebindingstore.NewREST(g)
	if err != nil {
		return nil, fmt.Errorf("cluster role bindings: %w", err)
	}
	rules := validation.NewDefaultRuleResolver(
		role.AuthorizerAdapter{Registry: role.NewRegistry(rs)},
		rolebinding.AuthorizerAdapter{Registry: rolebinding.NewRegistry(bindings)},
		clusterrole.AuthorizerAdapter{Registry: clusterrole.NewRegistry(clusterRoles)},
		clusterrolebinding.AuthorizerAdapter{Registry: clusterrolebinding.NewRegistry(clusterBindings)},
	)
	return &roles{
		storage: map[string]rest.Storage{
			"roles":               unreadableRoles{rolepolicy.NewStorage(rs, a, rules), rs},
			"rolebindings":        unreadableRoleBindings{rolebindingpolicy.NewStorage(bindings, a, rules), bindings},
			"clusterroles":        unreadableClusterRoles{clusterrolepolicy.NewStorage(clusterRoles, a, rules), clusterRoles},
			"clusterrolebindings": unreadableClusterRoleBindings{clusterrolebindingpolicy.NewStorage(clusterBindings, a, rules), clusterBindings},
		},
		namespaced: []*genericregistry.Store{rs.Store, bindings.Store},
	}, nil
}

// Kubernetes' storages of roles and bindings lose the method that deletes unreadable
// objects. These have it.
type (
	unreadableRoles struct {
		*rolepolicy.Storage
		rest.CorruptObjectDeleterProvider
	}
	unreadableRoleBindings struct {
		*rolebindingpolicy.Storage
		rest.CorruptObjectDeleterProvider
	}
	unreadableClusterRoles struct {
		*clusterrolepolicy.Storage
		rest.CorruptObjectDeleterProvider
	}
	unreadableClusterRoleBindings struct {
		*clusterrolebindingpolicy.Storage
		rest.CorruptObjectDeleterProvider
	}
)

// accessReviews are the resources of authorization.k8s.io: questions that are not stored.
func accessReviews(a authorizer.UnconditionalAuthorizer, rules authorizer.RuleResolver) map[string]rest.Storage {
	return map[string]rest.Storage{
		"subjectaccessreviews":      subjectaccessreview.NewREST(a, legacyscheme.Scheme),
		"selfsubjectaccessreviews":  selfsubjectaccessreview.NewREST(a, legacyscheme.Scheme),
		"localsubjectaccessreviews": localsubjectaccessreview.NewREST(a, legacyscheme.Scheme),
		"selfsubjectrulesreviews":   selfsubjectrulesreview.NewREST(rules),
	}
}
