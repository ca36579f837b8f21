package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "github.com/openshift/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// grants is an Access over bindings: cluster-wide ones where the namespace is empty.
func grants(t *testing.T, bindings ...rbacv1.RoleBinding) *Access {
	t.Helper()
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	v1 := f.Rbac().V1()
	add := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range Roles() {
		add(v1.ClusterRoles().Informer().GetIndexer().Add(&r))
	}
	for _, b := range bindings {
		if b.Namespace == "" {
			add(v1.ClusterRoleBindings().Informer().GetIndexer().Add(&rbacv1.ClusterRoleBinding{ObjectMeta: b.ObjectMeta, RoleRef: b.RoleRef, Subjects: b.Subjects}))
		} else {
			add(v1.RoleBindings().Informer().GetIndexer().Add(&b))
		}
	}
	return &Access{Informers: f, rbac: true, Authorizer: rbac.New(&rbac.RoleGetter{Lister: v1.Roles().Lister()}, &rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()}, &rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()})}
}

func bound(namespace, name, role string, subjects ...rbacv1.Subject) rbacv1.RoleBinding {
	return rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: subjects,
	}
}

func subject(kind, name string) rbacv1.Subject { return rbacv1.Subject{Kind: kind, Name: name} }

// ask has ann make a review, in a namespace if it is local.
func ask(a *Access, namespace string, review runtime.Object) (*authorizationv1.ResourceAccessReviewResponse, error) {
	resource := "resourceaccessreviews"
	if namespace != "" {
		resource = "localresourceaccessreviews"
	}
	ctx := request.WithUser(request.WithNamespace(context.Background(), namespace), &user.DefaultInfo{Name: "ann"})
	answer, err := a.Storage()[resource].(rest.Creater).Create(ctx, review, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return answer.(*authorizationv1.ResourceAccessReviewResponse), nil
}

// Who can do something is everybody whose roles say so, here and in all namespaces. What is not
// known is told.
func TestWhoCan(t *testing.T) {
	t.Parallel()
	a := grants(t,
		bound("", "viewers", "tidewaiter:image-viewer", subject("Group", "team"), subject("User", "bob"), subject("User", "bob")),
		bound("", "gone", "no-such-role", subject("User", "eve")),
		bound("shop", "editors", "registry-editor", subject("User", "carol"), subject("ServiceAccount", "builder"), rbacv1.Subject{Kind: "ServiceAccount", Namespace: "ci", Name: "robot"}),
		bound("other", "editors", "registry-editor", subject("User", "dave")),
		bound("", "metrics", "tidewaiter:metrics", subject("User", "prometheus")),
		bound("", "ann", "cluster-admin", subject("User", "ann")),
	)
	streams := authorizationv1.Action{Verb: "get", Group: "image.openshift.io", Resource: "imagestreams"}
	for _, c := range []struct {
		namespace string
		action    authorizationv1.Action
		users     string
		groups    string
	}{
		{"shop", streams, "ann bob carol system:serviceaccount:ci:robot system:serviceaccount:shop:builder", "system:masters team"},
		{"", streams, "ann bob", "system:masters team"},
		{"", authorizationv1.Action{Namespace: "other", Verb: "get", Group: "image.openshift.io", Resource: "imagestreams"}, "ann bob dave", "system:masters team"},
		{"shop", authorizationv1.Action{Verb: "update", Group: "image.openshift.io", Resource: "imagestreams/layers"}, "ann carol system:serviceaccount:ci:robot system:serviceaccount:shop:builder", "system:masters"},
		// as oc policy who-can get imagestreams/layers asks
		{"shop", authorizationv1.Action{Verb: "update", Resource: "imagestreams/layers"}, "ann carol system:serviceaccount:ci:robot system:serviceaccount:shop:builder", "system:masters"},
		// and as it asks for imagestreams.image.openshift.io/layers
		{"shop", authorizationv1.Action{Verb: "update", Resource: "imagestreams.image.openshift.io/layers"}, "ann carol system:serviceaccount:ci:robot system:serviceaccount:shop:builder", "system:masters"},
		{"shop", authorizationv1.Action{Verb: "update", Resource: "pods"}, "ann", "system:masters"},
		{"", authorizationv1.Action{Verb: "get", IsNonResourceURL: true, Path: "/metrics"}, "ann prometheus", "system:masters"},
	} {
		var review runtime.Object = &authorizationv1.ResourceAccessReview{Action: c.action}
		if c.namespace != "" {
			review = &authorizationv1.LocalResourceAccessReview{Action: c.action}
		}
		got, err := ask(a, c.namespace, review)
		if err != nil {
			t.Errorf("%+v: %v", c.action, err)
			continue
		}
		if users, groups := strings.Join(got.UsersSlice, " "), strings.Join(got.GroupsSlice, " "); users != c.users || groups != c.groups {
			t.Errorf("%s %+v:\n%s; %s, want\n%s; %s", c.namespace, c.action, users, groups, c.users, c.groups)
		}
		if !strings.Contains(got.EvaluationError, `"no-such-role" not found`) {
			t.Errorf("%+v: a role that is gone: %q", c.action, got.EvaluationError)
		}
		if want := max(c.namespace, c.action.Namespace); got.Namespace != want {
			t.Errorf("the answer is about %q, want %q", got.Namespace, want)
		}
	}

	// Others than roles decide, too.
	a.others = []string{"Webhook"}
	if got, err := ask(a, "", &authorizationv1.ResourceAccessReview{Action: streams}); err != nil || !strings.Contains(got.EvaluationError, "Webhook may allow others") {
		t.Errorf("with a webhook: %+v, %v", got, err)
	}
	got, err := ask(&Access{Authorizer: a.Authorizer, others: []string{"AlwaysAllow"}}, "shop", &authorizationv1.LocalResourceAccessReview{Action: streams})
	if err != nil || len(got.UsersSlice) != 0 || !slices.Equal(got.GroupsSlice, []string{user.SystemPrivilegedGroup}) || got.EvaluationError == "" {
		t.Errorf("without roles: %+v, %v", got, err)
	}
}

// Reviews that ask nothing, or about another namespace, are refused.
func TestWhoCanRefuses(t *testing.T) {
	t.Parallel()
	a := grants(t, bound("", "ann", "cluster-admin", subject("User", "ann")))
	for name, review := range map[string]*authorizationv1.LocalResourceAccessReview{
		"verb":      {Action: authorizationv1.Action{Resource: "pods"}},
		"resource":  {Action: authorizationv1.Action{Verb: "get"}},
		"path":      {Action: authorizationv1.Action{Verb: "get", IsNonResourceURL: true}},
		"namespace": {Action: authorizationv1.Action{Verb: "get", Resource: "pods", Namespace: "other"}},
		"metadata":  {Action: authorizationv1.Action{Verb: "get", Resource: "pods"}, ObjectMeta: metav1.ObjectMeta{Name: "x"}},
	} {
		if _, err := ask(a, "shop", review); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever may make reviews of everything, and not those of a namespace, learns nothing of bindings
// there.
func TestWhoCanOfOthers(t *testing.T) {
	t.Parallel()
	a := grants(t, bound("shop", "ann", "registry-admin", subject("User", "ann")), bound("other", "dave", "registry-admin", subject("User", "dave")))
	about := func(namespace string) error {
		_, err := ask(a, "", &authorizationv1.ResourceAccessReview{Action: authorizationv1.Action{Namespace: namespace, Verb: "get", Group: "image.openshift.io", Resource: "imagestreams"}})
		return err
	}
	if err := about("shop"); err != nil {
		t.Errorf("of an own namespace: %v", err)
	}
	for _, namespace := range []string{"other", ""} {
		if err := about(namespace); !apierrors.IsForbidden(err) {
			t.Errorf("of %q: %v", namespace, err)
		}
	}
}

// Many bindings of many subjects, which the administrator of a namespace can write, are gone
// through once, and a review whose client has left ends. What is told of missing roles is bounded.
func TestWhoCanOfManyBindings(t *testing.T) {
	t.Parallel()
	bindings := []rbacv1.RoleBinding{bound("", "ann", "cluster-admin", subject("User", "ann"))}
	for i := range 50 {
		many := bound("shop", fmt.Sprint("many-", i), "registry-viewer")
		for j := range 1000 {
			many.Subjects = append(many.Subjects, subject("User", fmt.Sprint("user-", i, "-", j)))
		}
		bindings = append(bindings, many, bound("shop", fmt.Sprint("gone-", i), fmt.Sprint("gone-", i)))
	}
	a := grants(t, bindings...)
	review := &authorizationv1.LocalResourceAccessReview{Action: authorizationv1.Action{Verb: "get", Group: "image.openshift.io", Resource: "imagestreams"}}
	got, err := ask(a, "shop", review)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.UsersSlice) != 50*1000+1 {
		t.Errorf("%d users, want %d", len(got.UsersSlice), 50*1000+1)
	}
	if !strings.HasSuffix(got.EvaluationError, "and 40 more") || len(got.EvaluationError) > 2000 {
		t.Errorf("told is %q", got.EvaluationError)
	}
	ctx, stop := context.WithCancel(request.WithNamespace(t.Context(), "shop"))
	stop()
	if _, err := a.Storage()["localresourceaccessreviews"].(rest.Creater).Create(ctx, review, nil, nil); err == nil {
		t.Error("a review whose client has left goes on")
	}
}
