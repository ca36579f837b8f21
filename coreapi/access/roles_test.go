package access

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// OpenShift's roles of a registry let a user of a namespace read, write, or say who may, each more
// than the one before it. None of them says what a registry has.
func TestRolesOfARegistry(t *testing.T) {
	t.Parallel()
	names := []string{"registry-viewer", "registry-editor", "registry-admin"}
	rules := map[string]func(verb, group, resource, subresource string) bool{}
	for _, r := range Roles() {
		rules[r.Name] = func(verb, group, resource, subresource string) bool {
			return rbac.RulesAllow(authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: verb, Namespace: "team", APIGroup: group, Resource: resource, Subresource: subresource, ResourceRequest: true}, r.Rules...)
		}
	}
	for _, c := range []struct {
		verb, group, resource, subresource string
		first                              int // in names
	}{
		{"list", "image.openshift.io", "imagestreams", "", 0},
		{"get", "image.openshift.io", "imagestreamtags", "", 0},
		{"get", "image.openshift.io", "imagestreamimages", "", 0},
		{"get", "image.openshift.io", "imagestreams", "layers", 0},
		{"get", "", "namespaces", "", 0},
		{"update", "image.openshift.io", "imagestreams", "layers", 1},
		{"create", "image.openshift.io", "imagestreams", "", 1},
		{"delete", "image.openshift.io", "imagestreamtags", "", 1},
		{"create", "image.openshift.io", "imagestreamimports", "", 1},
		{"create", "rbac.authorization.k8s.io", "rolebindings", "", 2},
		{"create", "authorization.k8s.io", "localsubjectaccessreviews", "", 2},
		{"create", "image.openshift.io", "imagestreammappings", "", 3},
		{"delete", "image.openshift.io", "images", "", 3},
		{"escalate", "rbac.authorization.k8s.io", "roles", "", 3},
	} {
		for i, name := range names {
			if rules[name] == nil {
				t.Fatalf("there is no role %s", name)
			}
			if got := rules[name](c.verb, c.group, c.resource, c.subresource); got != (i >= c.first) {
				t.Errorf("%s may %s %s/%s: %v", name, c.verb, c.resource, c.subresource, got)
			}
		}
	}
}
