package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// as is config, asking for somebody else.
func as(config *restclient.Config, user string) *restclient.Config {
	c := restclient.CopyConfig(config)
	c.Impersonate = restclient.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return c
}

// soon waits until condition holds.
func soon(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !within(time.Minute, condition) {
		t.Fatalf("waited in vain: %s", what)
	}
}

// within waits until condition holds, and reports whether it does within a time. The longer it
// waits, the less often it looks: what many tests wait for is not kept from happening by their
// questions.
func within(patience time.Duration, condition func() bool) bool {
	for began := time.Now(); !condition(); {
		waited := time.Since(began)
		if waited > patience {
			return false
		}
		time.Sleep(min(max(waited/8, 5*time.Millisecond), 250*time.Millisecond))
	}
	return true
}

// bind gives a user a cluster role, everywhere or in a namespace, and waits until the
// server goes by it.
func bind(t testing.TB, admin kubernetes.Interface, name, role, namespace string) {
	t.Helper()
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}
	meta := metav1.ObjectMeta{GenerateName: "test-"}
	var err error
	if namespace == "" {
		_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	} else {
		_, err = admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := admin.RbacV1().ClusterRoles().Get(t.Context(), role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, name+" has "+role, func() bool {
		for _, rule := range r.Rules {
			spec := authorizationv1.SubjectAccessReviewSpec{User: name}
			if len(rule.NonResourceURLs) > 0 {
				spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: rule.NonResourceURLs[0], Verb: rule.Verbs[0]}
			} else {
				spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: namespace, Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: rule.Verbs[0]}
			}
			got, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !got.Status.Allowed {
				return false
			}
		}
		return true
	})
}

// kubectl delete all --all -n NAMESPACE deletes what is in the category all: image streams there,
// and nothing that is of the whole server, nor the tags of registries.
func TestAttackDeleteAll(t *testing.T) {
	t.Parallel()
	_, all, err := kubernetes.NewForConfigOrDie(serveOn(t, t.TempDir(), listen(t))).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, group := range all {
		for _, r := range group.APIResources {
			if !slices.Contains(r.Categories, "all") {
				continue
			}
			if !r.Namespaced {
				t.Errorf("%s of %s is of the whole server", r.Name, group.GroupVersion)
			}
			if strings.HasPrefix(group.GroupVersion, "image.openshift.io/") {
				names = append(names, r.Name)
			}
		}
	}
	if !slices.Equal(names, []string{"imagestreams"}) {
		t.Errorf("of images all is %v", names)
	}
}

// Bootstrap roles are there from the start. What they lack comes back with the next
// start, what an administrator added stays, and so does a role that is to be left alone.
func TestBootstrapRoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx := t.Context()
	first := func(t *testing.T) {
		client := kubernetes.NewForConfigOrDie(serveOn(t, dir, listen(t)))
		roles := client.RbacV1().ClusterRoles()
		for _, want := range access.Roles() {
			if _, err := roles.Get(ctx, want.Name, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		}
		soon(t, "images are in view, edit and admin", func() bool {
			for _, name := range []string{"view", "edit", "admin"} {
				r, err := roles.Get(ctx, name, metav1.GetOptions{})
				if err != nil || !slices.ContainsFunc(r.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "images") }) {
					return false
				}
			}
			return true
		})
		change := func(name string, edit func(*rbacv1.ClusterRole)) {
			r, err := roles.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			edit(r)
			if _, err := roles.Update(ctx, r, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		added := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/added"}}
		change("tidewaiter:importer", func(r *rbacv1.ClusterRole) { r.Rules = []rbacv1.PolicyRule{added} })
		change("tidewaiter:metrics", func(r *rbacv1.ClusterRole) {
			r.Rules, r.Annotations[rbacv1.AutoUpdateAnnotationKey] = nil, "false"
		})
		if err := roles.Delete(ctx, "system:image-signer", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("first", first)
	t.Run("second", func(t *testing.T) {
		roles := kubernetes.NewForConfigOrDie(serveOn(t, dir, listen(t))).RbacV1().ClusterRoles()
		for name, want := range map[string][]string{"tidewaiter:importer": {"/added", "/tidewaiter/imports", "clusterimagepolicies", "events", "imagepackages", "imagepolicies", "imagerecords", "images", "imagesignatures", "imagetags", "imagetags/status"}, "tidewaiter:metrics": nil, "system:image-signer": {"images", "imagesignatures", "imagestreams/layers"}} {
			r, err := roles.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, rule := range r.Rules {
				got = append(append(got, rule.Resources...), rule.NonResourceURLs...)
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, want) {
				t.Errorf("%s is about %q, want %q", name, got, want)
			}
		}
	})
}

// Whoever writes roles and bindings grants no more than they have.
func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	config := serve(t)
	admin := kubernetes.NewForConfigOrDie(config)
	bind(t, admin, "lead", "admin", "team")
	lead := kubernetes.NewForConfigOrDie(as(config, "lead"))

	binding := func(role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "mine-"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "member"}}}
	}
	ctx := t.Context()
	// The role admin is put together of others after the start, and has all of view's rules last.
	soon(t, "a lead can grant view", func() bool {
		_, err := lead.RbacV1().RoleBindings("team").Create(ctx, binding("view"), metav1.CreateOptions{})
		return err == nil
	})
	_, clusterAdmin := lead.RbacV1().RoleBindings("team").Create(ctx, binding("cluster-admin"), metav1.CreateOptions{})
	_, elsewhere := lead.RbacV1().RoleBindings("other").Create(ctx, binding("view"), metav1.CreateOptions{})
	_, role := lead.RbacV1().Roles("team").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"create"}, APIGroups: []string{"image.openshift.io"}, Resources: []string{"images"}}}}, metav1.CreateOptions{})
	_, everywhere := lead.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}}, metav1.CreateOptions{})
	for what, err := range map[string]error{"cluster-admin in the namespace": clusterAdmin, "view elsewhere": elsewhere, "a role for images": role, "view everywhere": everywhere} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
}

// Roles and bindings go with their namespace, and none comes into one that goes.
func TestRolesGoWithTheirNamespace(t *testing.T) {
	t.Parallel()
	admin := kubernetes.NewForConfigOrDie(serve(t))
	ctx := t.Context()
	bind(t, admin, "member", "system:image-puller", "gone")
	if _, err := admin.RbacV1().Roles("gone").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().Namespaces().Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("the binding made no namespace: %v", err)
	}
	if _, err := admin.RbacV1().Roles("gone").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a role in a namespace that goes: %v, want 403", err)
	}
	soon(t, "the namespace is gone", func() bool {
		_, err := admin.CoreV1().Namespaces().Get(ctx, "gone", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	roles, err := admin.RbacV1().Roles("gone").List(ctx, metav1.ListOptions{})
	if err != nil || len(roles.Items) != 0 {
		t.Errorf("%d roles are left, %v", len(roles.Items), err)
	}
	bindings, err := admin.RbacV1().RoleBindings("gone").List(ctx, metav1.ListOptions{})
	if err != nil || len(bindings.Items) != 0 {
		t.Errorf("%d bindings are left, %v", len(bindings.Items), err)
	}
}

// A role or a binding that cannot be read grants nothing, and locks out nobody who has
// another. It is named in the log, and can be deleted.
func TestDamagedRolesLockNobodyOut(t *testing.T) {
	t.Parallel()
	const group = "/rbac.authorization.k8s.io/"
	keys := []string{group + "clusterroles/wrecked-a", group + "clusterrolebindings/wrecked-b", group + "roles/team/wrecked-c", group + "rolebindings/team/wrecked-d", "/core/serviceaccounts/team/wrecked-e"}
	s := runProcess(t, damaged(t, keys...))
	client := kubernetes.NewForConfigOrDie(s.Config)
	bind(t, client, "viewer", "view", "")
	bind(t, client, "editor", "edit", "team")
	// The roles view and edit are put together after the start.
	soon(t, "a viewer sees pods", func() bool {
		_, err := kubernetes.NewForConfigOrDie(as(s.Config, "viewer")).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	soon(t, "an editor of the namespace sees its pods", func() bool {
		_, err := kubernetes.NewForConfigOrDie(as(s.Config, "editor")).CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	soon(t, "a namespace has its service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	log, err := os.ReadFile(s.cmd.Stderr.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if name := path.Base(key); !strings.Contains(string(log), name) {
			t.Errorf("the log does not name %s", name)
		}
	}
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	for _, err := range []error{
		client.RbacV1().ClusterRoles().Delete(t.Context(), "wrecked-a", unsafe), client.RbacV1().ClusterRoleBindings().Delete(t.Context(), "wrecked-b", unsafe),
		client.RbacV1().Roles("team").Delete(t.Context(), "wrecked-c", unsafe), client.RbacV1().RoleBindings("team").Delete(t.Context(), "wrecked-d", unsafe),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	// What RBAC reads with goes on after a deletion that it cannot be told of.
	bind(t, client, "late", "view", "")
}

// The server's own paths are granted by roles, each by its own.
func TestOwnPathsAreGrantedByRoles(t *testing.T) {
	t.Parallel()
	config := serve(t)
	administrator := kubernetes.NewForConfigOrDie(config)
	grants := map[string][]string{
		"nobody":                    nil,
		"tidewaiter:metrics":        {"GET /metrics", "GET " + server.HealthPath + "/importing"},
		"tidewaiter:queue-viewer":   {"GET " + admin.SpoolPath},
		"tidewaiter:queue-operator": {"GET " + admin.SpoolPath, "POST " + admin.SpoolPath},
		"tidewaiter:verifier":       {"GET " + admin.VerificationPath, "POST " + admin.VerificationPath},
	}
	always := []string{"GET /version", "GET /apis", "GET /openapi/v3", "GET " + admin.UserPath}
	never := []string{"GET /debug/pprof/", "GET /logs", "PUT " + admin.SpoolPath}
	asked := append(always[:len(always):len(always)], never...)
	for _, paths := range grants {
		asked = append(asked, paths...)
	}
	for role, paths := range grants {
		if paths != nil {
			bind(t, administrator, role, role, "")
		}
		client, err := restclient.HTTPClientFor(as(config, role))
		if err != nil {
			t.Fatal(err)
		}
		for _, question := range asked {
			method, path, _ := strings.Cut(question, " ")
			request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path+"?do=drop", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			granted := slices.Contains(paths, question) || slices.Contains(always, question)
			if ok := response.StatusCode == http.StatusOK; ok != granted || !ok && response.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s answered %d", role, question, response.StatusCode)
			}
		}
	}
}

// accessOptions are what command line flags say.
func accessOptions(t *testing.T, args ...string) *access.Options {
	t.Helper()
	o, f := access.NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// A webhook decides, by the flags and by a file, what it is asked about; system:masters
// is not asked about.
func TestAuthorizationByWebhook(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if slices.Contains(review.Spec.Groups, "system:masters") {
			t.Errorf("asked about %s", review.Spec.User)
		}
		review.Status.Allowed = review.Spec.User == "friend" && review.Spec.ResourceAttributes != nil && review.Spec.ResourceAttributes.Resource == "pods"
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig := write("hook.kubeconfig", `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "h", "cluster": {"server": "`+hook.URL+`"}}], "contexts": [{"name": "c", "context": {"cluster": "h", "user": "u"}}], "users": [{"name": "u", "user": {}}]}`)
	file := write("authorization.yaml", `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": [
		{"type": "RBAC", "name": "rbac"},
		{"type": "Webhook", "name": "team", "webhook": {"timeout": "10s", "failurePolicy": "Deny", "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
			"connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": "`+kubeconfig+`"}}}]}`)
	for name, args := range map[string][]string{
		"flags": {"--authorization-mode=RBAC,Webhook", "--authorization-webhook-version=v1", "--authorization-webhook-config-file=" + kubeconfig},
		"file":  {"--authorization-config=" + file},
	} {
		t.Run(name, func(t *testing.T) {
			config := serveWith(t, server.Options{DataDir: t.TempDir(), Access: accessOptions(t, args...)}, listen(t))
			for user, want := range map[string]bool{"friend": true, "stranger": false} {
				client := kubernetes.NewForConfigOrDie(as(config, user))
				if _, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
					t.Errorf("%s lists pods: %v", user, err)
				}
				if _, err := client.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
					t.Errorf("%s lists services: %v, want 403", user, err)
				}
				if _, err := client.Discovery().ServerVersion(); err != nil {
					t.Errorf("roles are not asked: %v", err)
				}
			}
		})
	}
}

// What cannot be is refused before anything is opened, and says what there is.
func TestServeRefusesAuthorization(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(`{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": [{"type": "Node", "name": "node"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"Node is not supported":                    {"--authorization-mode=Node,RBAC"},
		"authorization mode Node is not supported": {"--authorization-config=" + file},
		`"Nobody" is not a valid mode`:             {"--authorization-mode=Nobody"},
		"authorization config file not passed":     {"--authorization-mode=Webhook"},
		"more than once":                           {"--authorization-mode=RBAC,RBAC"},
		"can not be specified":                     {"--authorization-mode=RBAC", "--authorization-config=" + file},
		"without mode Webhook":                     {"--authorization-webhook-config-file=x"},
		"no such file":                             {"--authorization-config=" + file + "x"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		root := newRootCommand()
		var out servertest.LogBuffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"serve", "--data-dir", dir, "--secure-port", "0"}, args...))
		err := root.ExecuteContext(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q: the data directory was made", args)
		}
	}
}

// BenchmarkDecisions is what it costs to decide whether somebody may read an image: an
// administrator, and a viewer among the bindings of fifty people.
func BenchmarkDecisions(b *testing.B) {
	s, err := server.Open(b.Context(), server.Options{DataDir: b.TempDir()}, listen(b))
	if err != nil {
		b.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(runServer(b, s))
	for i := range 50 {
		bind(b, client, fmt.Sprintf("viewer-%d", i), "tidewaiter:image-viewer", "")
	}
	for name, who := range map[string]user.Info{
		"administrator": &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
		"viewer":        &user.DefaultInfo{Name: "viewer-49", Groups: []string{user.AllAuthenticated}},
	} {
		b.Run(name, func(b *testing.B) {
			question := authorizer.AttributesRecord{User: who, Verb: "get", APIGroup: "image.openshift.io", APIVersion: "v1", Resource: "images", Name: "a", ResourceRequest: true}
			b.ReportAllocs()
			for b.Loop() {
				if got, _, err := s.Access.Authorizer.Authorize(b.Context(), question); got != authorizer.DecisionAllow {
					b.Fatal(got, err)
				}
			}
		})
	}
}
