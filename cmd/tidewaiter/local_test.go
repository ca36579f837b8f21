package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// Who may see the pods of one namespace asks what these run, and is told nothing of others, by the
// API and by the verbs that everybody else uses.
func TestLocalReferenceReview(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	admin := newClientset(t, config)
	for namespace, runs := range map[string][2]string{"team": {l.a.Host + "/team/app:v1", "new"}, "shop": {l.b.Host + "/team/lone:v2", "lone"}} {
		pod := newPod("web-of-" + namespace)
		pod.Namespace, pod.Spec.Containers = namespace, []corev1.Container{{Name: "main", Image: runs[0]}}
		pod, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		repository, _, _ := strings.Cut(runs[0], ":v")
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: runs[0], ImageID: repository + "@" + l.digests[runs[1]]}}
		if _, err := admin.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bare := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{answers.GroupVersion.Group}, Resources: []string{answers.LocalResource}, Verbs: []string{"create"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), bare, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for user, role := range map[string]string{"viewer": "view", "editor": "edit", "owner": "admin", "bare": "bare"} {
		bind(t, admin, user, role, "team")
	}
	bind(t, admin, "images", "tidewaiter:image-viewer", "")
	ask := func(user, namespace, spec string) (*answers.LocalReferenceReview, string, error) {
		raw, err := newReviewer(t, as(config, user)).client.Post().AbsPath("/apis/"+answers.GroupVersion.String()+"/namespaces/"+namespace+"/"+answers.LocalResource).
			SetHeader("Content-Type", "application/json").Body([]byte(`{"apiVersion":"tidewaiter.dev/v1","kind":"LocalReferenceReview","spec":` + spec + `}`)).DoRaw(t.Context())
		review := &answers.LocalReferenceReview{}
		if err == nil {
			err = json.Unmarshal(raw, review)
		}
		return review, string(raw), err
	}
	for _, user := range []string{"viewer", "editor", "owner"} {
		soon(t, user+" may ask", func() bool { _, _, err := ask(user, "team", `{}`); return err == nil })
		got, raw, err := ask(user, "team", `{}`)
		s := &got.Status
		if err != nil || len(s.References) != 1 || s.References[0].Meaning.Digest != l.digests["new"] || s.References[0].Verdict == nil || s.References[0].Running.Pods != 1 || len(s.Containers) != 1 || s.Containers[0].Pod != "web-of-team" || s.Containers[0].Name != "main" {
			t.Errorf("%s is told %s, %v", user, raw, err)
		}
		for _, secret := range []string{"shop", "lone", l.b.Host} {
			if strings.Contains(raw, secret) {
				t.Errorf("%s is told of %s: %s", user, secret, raw)
			}
		}
		if _, _, err := ask(user, "shop", `{}`); !apierrors.IsForbidden(err) {
			t.Errorf("%s is told what other namespaces run: %v", user, err)
		}
		if got, raw, err := ask(user, "team", `{"references":[{"reference":"`+l.b.Host+`/team/lone:v2"}]}`); err != nil || got.Status.References[0].State != answers.Unknown || strings.Contains(raw, l.digests["lone"]) {
			t.Errorf("%s is told of what others run: %s, %v", user, raw, err)
		}
		if _, raw, err := ask(user, "team", `{"references":[{"reference":"a","namespace":"shop"}]}`); !apierrors.IsInvalid(err) {
			t.Errorf("%s asks as another namespace: %s, %v", user, raw, err)
		}
	}
	// The right to ask is not the right to see pods, nor is that to see images.
	soon(t, "bare may ask", func() bool {
		_, raw, err := ask("bare", "team", `{}`)
		return apierrors.IsForbidden(err) && strings.Contains(raw, `cannot list resource \"pods\"`)
	})
	if _, _, err := ask("images", "team", `{}`); !apierrors.IsForbidden(err) {
		t.Errorf("who may see images alone is told what runs: %v", err)
	}
	verbsOfViewer(t, l)
}

// verbsOfViewer runs the verbs as somebody who has the role view in the namespace team alone.
func verbsOfViewer(t *testing.T, l *looking) {
	rules, err := clientcmd.LoadFromFile(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range rules.AuthInfos {
		info.Impersonate, info.ImpersonateGroups = "viewer", []string{"system:authenticated"}
	}
	l.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*rules, l.kubeconfig); err != nil {
		t.Fatal(err)
	}
	// The report says what the viewer may see, and what not.
	var report string
	soon(t, "what ran is recorded", func() bool {
		now := time.Now()
		_, report, _ = tidewaiter(t, "report", "-n", "team", "--from", now.Add(-time.Hour).Format(time.RFC3339), "--until", now.Format(time.RFC3339), "-o", "json", "--kubeconfig", l.kubeconfig)
		return strings.Contains(report, "web-of-team")
	})
	for text, want := range map[string]bool{
		"shop": false, "lone": false, "for which times records are whole is not known": true, "which policies of the cluster the server has is not known": true,
		"SBOMs may not be read": true, "which tags moved may not be read": true, `"sbom": "Unknown"`: true,
	} {
		if strings.Contains(report, text) != want {
			t.Errorf("is %q in the report? Want %t: %s", text, want, report)
		}
	}
	app, lone, short := l.a.Host+"/team/app:v1", l.b.Host+"/team/lone:v2", l.digests["new"][len("sha256:"):][:12]
	note := "Note: you may not ask about all images: this is about what the pods of namespace team name and run\n"
	for _, tt := range []struct {
		args   []string
		code   int
		stdout []string
		stderr string
	}{
		{[]string{"pods", app, "-n", "team"}, cli.ExitOK, []string{"local:team:web-of-team", "main", app, short, "NoPolicy"}, note},
		{[]string{"pods", "team/app", "-n", "team"}, cli.ExitOK, []string{"web-of-team"}, note},
		{[]string{"pods", short, "-n", "team", "-o", "name"}, cli.ExitOK, []string{"pod/web-of-team\n"}, note},
		{[]string{"pods", "--outdated", "-n", "team"}, cli.ExitOK, nil, "No resources found in team namespace."},
		{[]string{"pods", lone, "-n", "team"}, cli.ExitNone, nil, "no known pod of the namespace team names or runs it"},
		{[]string{"pods", app, "-n", "shop"}, cli.ExitNone, nil, "forbidden"},
		{[]string{"pods", app}, cli.ExitNone, nil, "forbidden"},
		{[]string{"get", "app:v1", "-n", "team"}, cli.ExitOK, []string{short, "v1", "NoPolicy", "1"}, note},
		{[]string{"get", lone, "-n", "team"}, cli.ExitNone, nil, "no known pod of the namespace team names or runs it"},
		{[]string{"verify", app, "-n", "team"}, exitUndeclared, []string{app, "no policy covers it"}, note},
		{[]string{"images", "-n", "team"}, cli.ExitOK, []string{app, short, "NoPolicy 1 "}, note},
		{[]string{"images", "--cluster", "local", "-n", "team"}, cli.ExitOK, []string{app, short, "NoPolicy 1 "}, note},
		{[]string{"images", "-n", "shop"}, cli.ExitNone, nil, "forbidden"},
		{[]string{"verify", "--all", "-n", "team"}, 2, nil, "leave out --all"},
	} {
		stdout, stderr, code := l.run(tt.args...)
		for _, want := range tt.stdout {
			if !strings.Contains(strings.Join(strings.Fields(stdout), " ")+" "+stdout, want) {
				t.Errorf("%q lacks %q:\n%s", tt.args, want, stdout)
			}
		}
		if code != tt.code || !strings.Contains(stderr, tt.stderr) || strings.Contains(stdout+stderr, l.digests["lone"]) {
			t.Errorf("%q: exit code %d, want %d and %q: %s%s", tt.args, code, tt.code, tt.stderr, stdout, stderr)
		}
	}
}
