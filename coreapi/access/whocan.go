package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "github.com/openshift/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/tidewaiter/tidewaiter/coreapi/access/roles"
)

// Install registers OpenShift's reviews of which users have a right, as internal and as v1 types.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: authorizationv1.GroupName, Version: runtime.APIVersionInternal}, authorizationv1.GroupVersion} {
		scheme.AddKnownTypes(gv, &authorizationv1.ResourceAccessReview{}, &authorizationv1.LocalResourceAccessReview{}, &authorizationv1.ResourceAccessReviewResponse{})
	}
	metav1.AddToGroupVersion(scheme, authorizationv1.GroupVersion)
	return scheme.SetVersionPriority(authorizationv1.GroupVersion)
}

// Storage returns the served resources of authorization.openshift.io/v1: the reviews of which users
// have a right, for `oc adm policy who-can`. Nothing is stored.
func (a *Access) Storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"resourceaccessreviews":      &reviews{access: a},
		"localresourceaccessreviews": &reviews{access: a, local: true},
	}
}

// reviews finds the users who have a right: in a namespace if the review is local, else anywhere.
type reviews struct {
	access *Access
	local  bool
}

var (
	_ rest.Creater         = &reviews{}
	_ rest.StorageMetadata = &reviews{}
)

func (r *reviews) New() runtime.Object {
	if r.local {
		return &authorizationv1.LocalResourceAccessReview{}
	}
	return &authorizationv1.ResourceAccessReview{}
}

func (r *reviews) Destroy() {}

func (r *reviews) NamespaceScoped() bool { return r.local }

func (r *reviews) GetSingularName() string {
	if r.local {
		return "localresourceaccessreview"
	}
	return "resourceaccessreview"
}

func (r *reviews) ProducesMIMETypes(string) []string { return nil }

func (r *reviews) ProducesObject(string) any { return authorizationv1.ResourceAccessReviewResponse{} }

// Create answers a review. Even callers who may create reviews of all namespaces get an answer
// about a namespace only if they may create one there.
func (r *reviews) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	var action authorizationv1.Action
	var meta metav1.ObjectMeta
	switch review := obj.(type) {
	case *authorizationv1.LocalResourceAccessReview:
		action, meta = review.Action, review.ObjectMeta
	case *authorizationv1.ResourceAccessReview:
		action, meta = review.Action, review.ObjectMeta
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a review, got a %T", obj))
	}
	namespace := request.NamespaceValue(ctx)
	if errs := check(action, meta, namespace); len(errs) > 0 {
		return nil, apierrors.NewInvalid(obj.GetObjectKind().GroupVersionKind().GroupKind(), "", errs)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if r.local {
		action.Namespace = namespace
	} else if err := r.access.mayAsk(ctx, action.Namespace); err != nil {
		return nil, err
	}
	return r.access.whoCan(ctx, action)
}

// check returns what is wrong with a review that is made in namespace.
func check(action authorizationv1.Action, meta metav1.ObjectMeta, namespace string) (errs field.ErrorList) {
	if action.Verb == "" {
		errs = append(errs, field.Required(field.NewPath("verb"), ""))
	}
	switch {
	case action.IsNonResourceURL && action.Path == "":
		errs = append(errs, field.Required(field.NewPath("path"), "a review with isNonResourceURL needs a path"))
	case !action.IsNonResourceURL && action.Resource == "":
		errs = append(errs, field.Required(field.NewPath("resource"), ""))
	}
	if namespace != "" && action.Namespace != "" && action.Namespace != namespace {
		errs = append(errs, field.Invalid(field.NewPath("namespace"), action.Namespace, "must be empty or "+namespace))
	}
	meta.Namespace, meta.ManagedFields = "", nil
	if !equality.Semantic.DeepEqual(meta, metav1.ObjectMeta{}) {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), meta, "must be empty"))
	}
	return errs
}

// mayAsk returns an error unless the caller may create reviews about namespace, or about all if it
// is empty.
func (a *Access) mayAsk(ctx context.Context, namespace string) error {
	caller, ok := request.UserFrom(ctx)
	if !ok {
		return apierrors.NewUnauthorized("the request has no user")
	}
	local := authorizationv1.Resource("localresourceaccessreviews")
	decision, reason, err := a.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: caller, Verb: "create", Namespace: namespace, APIGroup: local.Group, APIVersion: authorizationv1.GroupVersion.Version,
		Resource: local.Resource, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	where := "in all namespaces"
	if namespace != "" {
		where = fmt.Sprintf("in the namespace %q", namespace)
	}
	return apierrors.NewForbidden(local, "", errors.Join(fmt.Errorf("user %q may not create them %s %s", caller.GetName(), where, reason), err))
}

// whoCan returns the subjects of the bindings that allow action, as rbac.SubjectAccessEvaluator
// does, which compares each of them with all others.
func (a *Access) whoCan(ctx context.Context, action authorizationv1.Action) (runtime.Object, error) {
	resource, subresource, _ := strings.Cut(action.Resource, "/")
	group := cmp.Or(action.Group, roles.LegacyGroup(action.Resource))
	if name := schema.ParseGroupResource(resource); group == "" && name.Group != "" {
		resource, group = name.Resource, name.Group // imagestreams.image.openshift.io/layers, as written for oc
	}
	attributes := authorizer.AttributesRecord{
		Verb: action.Verb, Namespace: action.Namespace, APIGroup: group, APIVersion: action.Version, Resource: resource, Subresource: subresource,
		Name: action.ResourceName, ResourceRequest: !action.IsNonResourceURL, Path: action.Path,
	}
	users, groups := sets.New[string](), sets.New(user.SystemPrivilegedGroup)
	var unknown unknowns
	if len(a.others) > 0 {
		unknown.add(fmt.Errorf("%s may allow others, but does not say whom", strings.Join(a.others, ", ")))
	}
	if a.rbac {
		rules, bindings, clusterBindings := a.roles()
		add := func(ref rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) error {
			granted, err := rules.GetRoleReferenceRules(ctx, ref, namespace)
			if err != nil {
				unknown.add(err)
			}
			if rbac.RulesAllow(attributes, granted...) {
				insert(users, groups, namespace, subjects)
			}
			return ctx.Err()
		}
		all, err := clusterBindings.ListClusterRoleBindings(ctx)
		if err != nil {
			return nil, err
		}
		for _, b := range all {
			if err := add(b.RoleRef, "", b.Subjects); err != nil {
				return nil, err
			}
		}
		if action.Namespace != "" {
			local, err := bindings.ListRoleBindings(ctx, action.Namespace)
			if err != nil {
				return nil, err
			}
			for _, b := range local {
				if err := add(b.RoleRef, b.Namespace, b.Subjects); err != nil {
					return nil, err
				}
			}
		}
	}
	return &authorizationv1.ResourceAccessReviewResponse{
		Namespace: action.Namespace, UsersSlice: slices.Sorted(maps.Keys(users)), GroupsSlice: slices.Sorted(maps.Keys(groups)), EvaluationError: unknown.String(),
	}, nil
}

// roles reads roles and bindings from the informers.
func (a *Access) roles() (*validation.DefaultRuleResolver, validation.RoleBindingLister, validation.ClusterRoleBindingLister) {
	v1 := a.Informers.Rbac().V1()
	bindings, clusterBindings := &rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()}, &rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()}
	return validation.NewDefaultRuleResolver(
		&rbac.RoleGetter{Lister: v1.Roles().Lister()}, bindings, &rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()}, clusterBindings), bindings, clusterBindings
}

// insert adds the subjects of a binding in namespace to users and groups.
func insert(users, groups sets.Set[string], namespace string, subjects []rbacv1.Subject) {
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users.Insert(s.Name)
		case rbacv1.GroupKind:
			groups.Insert(s.Name)
		case rbacv1.ServiceAccountKind:
			s.Namespace = cmp.Or(s.Namespace, namespace)
			if s.Namespace != "" {
				users.Insert(serviceaccount.MakeUsername(s.Namespace, s.Name))
			}
		}
	}
}

// maxUnknowns is how many are named; the others are counted.
const maxUnknowns = 10

// unknowns are the reasons why an answer may be incomplete.
type unknowns struct {
	reasons []string
	more    int
}

func (d *unknowns) add(err error) {
	switch text := err.Error(); {
	case slices.Contains(d.reasons, text):
	case len(d.reasons) < maxUnknowns:
		d.reasons = append(d.reasons, text)
	default:
		d.more++
	}
}

func (d *unknowns) String() string {
	text := strings.Join(d.reasons, "; ")
	if d.more > 0 {
		text += fmt.Sprintf("; and %d more", d.more)
	}
	return text
}
