package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What runs in a cluster that is followed is imported, and kubectl shows where it runs, also after
// the cluster is gone, and then says how old that is. What cannot be had is listed with the reason.
func TestWhereImagesRun(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	busybox := images.Busybox(t)
	ref := r.Push(t, "team/app:1", busybox)
	digest := images.Digest(t, busybox).String()

	cluster := harness.StartServer(t)
	cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app-1"},"spec":{"containers":[{"name":"main","image":%q}]}}`, ref), "create", "-n", "payments", "-f", "-")
	cluster.Kubectl(t, "patch", "pod", "app-1", "-n", "payments", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status":{"containerStatuses":[{"name":"main","image":"x","imageID":"%s/team/app@%s","ready":true,"restartCount":0}]}}`, r.Host, digest))

	cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app-2"},"spec":{"containers":[{"name":"main","image":"%s/team/gone:1"}]}}`, r.Host), "create", "-n", "payments", "-f", "-")
	cluster.Kubectl(t, "patch", "pod", "app-2", "-n", "payments", "--subresource=status", "--type=merge", "-p",
		`{"status":{"containerStatuses":[{"name":"main","image":"x","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ErrImagePull","message":"manifest unknown"}}}]}}`)

	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- name: prod\n  kubeconfig: %s\n", cluster.Kubeconfig), 0o600))
	s := harness.StartServer(t, "--config", config)
	has := func(what string, want []string, args ...string) {
		t.Helper()
		eventuallyShows(t, s, what, want, args...)
	}
	has("the cluster", []string{"prod", "True"}, "get", "clusters")
	has("the pod", []string{"prod:payments:app-1", "main", ref, digest[:19], "NoPolicy"}, "get", "clusterpods", "--field-selector", "image="+ref)
	has("what cannot be had", []string{"prod:payments:app-2", "ErrImagePull", "not found"}, "get", "clusterpods", "--field-selector", "image="+r.Host+"/team/gone")
	has("the same for programs", []string{`"verified":"NoPolicy"`, `"digest":"` + digest + `"`, `"notImported":"`}, "get", "--raw", "/apis/tidewaiter.dev/v1/clusterpods?fieldSelector=spec.cluster=prod")
	has("the image", []string{digest}, "get", "images", "-o", "wide", "--field-selector", "used-by=prod/payments")
	if got := s.TryKubectl(t, "delete", "clusterpods", "--all"); got.Code == 0 {
		t.Error("kubectl deleted pods of a cluster")
	}

	cluster.Kill(t)
	has("the state of a cluster that is gone", []string{"False, Unreachable"}, "get", "clusters")
	has("a list by use", []string{digest, "Warning: the pods of cluster prod are those of"}, "get", "images", "-o", "wide", "--field-selector", "used=true")
	if s.Terminate(t) != 0 {
		t.Error("the server did not stop cleanly while a cluster is away")
	}
}

// eventuallyShows waits until kubectl, asked with args, prints all that is wanted; what names it in
// errors.
func eventuallyShows(t *testing.T, s *harness.Server, what string, want []string, args ...string) {
	t.Helper()
	harness.Eventually(t, func() error {
		got := s.TryKubectl(t, args...)
		for _, w := range want {
			if got.Code != 0 || !strings.Contains(got.Stdout+got.Stderr, w) {
				return fmt.Errorf("%s lacks %q: %s%s", what, w, got.Stdout, got.Stderr)
			}
		}
		return nil
	})
}
