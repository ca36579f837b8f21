package main

import (
	"strings"
	"testing"

	authorizationv1 "github.com/openshift/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// `oc adm policy who-can` is answered, whoever administers a namespace may ask about it, and nobody
// else may.
func TestWhoCanIsServed(t *testing.T) {
	t.Parallel()
	config := serveIn(t, t.TempDir())
	admin := newClientset(t, config)
	if _, err := admin.RbacV1().RoleBindings("shop").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "admins"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := func(name string) *kubernetes.Clientset {
		c := restclient.CopyConfig(config)
		c.Impersonate.UserName = name
		return newClientset(t, c)
	}
	ask := func(who *kubernetes.Clientset, path string) (string, error) {
		answer, err := who.RESTClient().Post().AbsPath("/apis/authorization.openshift.io/v1"+path).SetHeader("Content-Type", "application/json").
			Body([]byte(`{"verb":"list","resource":"pods","namespace":"","resourceAPIGroup":"","resourceAPIVersion":"","resourceName":"","path":"","isNonResourceURL":false,"content":null}`)).DoRaw(t.Context())
		return string(answer), err
	}
	local := "/namespaces/shop/localresourceaccessreviews"
	servertest.Eventually(t, "the role admin, which is put together of others", func() bool {
		if _, err := ask(as("ann"), local); err != nil {
			return false
		}
		answer, err := ask(admin, local)
		return err == nil && strings.Contains(answer, `"ann"`)
	})
	for _, c := range []struct {
		who  string
		path string
		may  bool
	}{
		{"ann", local, true}, {"ann", "/resourceaccessreviews", false}, {"ann", "/namespaces/other/localresourceaccessreviews", false}, {"ben", local, false},
	} {
		answer, err := ask(as(c.who), c.path)
		if c.may != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s at %s: %s %v", c.who, c.path, answer, err)
		}
	}
	for _, path := range []string{local, "/resourceaccessreviews"} {
		answer, err := ask(admin, path)
		if err != nil || !strings.Contains(answer, `"kind":"ResourceAccessReviewResponse"`) || !strings.Contains(answer, `"system:masters"`) ||
			strings.Contains(answer, `"ann"`) != (path == local) {
			t.Errorf("%s: %s %v", path, answer, err)
		}
	}

	served, err := admin.Discovery().ServerResourcesForGroupVersion(authorizationv1.GroupVersion.String())
	if err != nil || len(served.APIResources) != 2 {
		t.Errorf("served are %v, %v", served, err)
	}
	described, err := admin.RESTClient().Get().AbsPath("/openapi/v3/apis/authorization.openshift.io/v1").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(described), "com.github.openshift.api.authorization.v1.ResourceAccessReviewResponse") {
		t.Errorf("described is %.300s %v", described, err)
	}
}
