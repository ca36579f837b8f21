package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What a tag leads to, what a pod here or in a cluster uses, and that of which it is unknown is
// deleted by nobody who does not say so.
func TestDeletingImages(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 5)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	run := func(s *harness.Server, namespace, pod, digest string) {
		t.Helper()
		s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"main","image":"%s/team/other:1"}]}}`, pod, r.Host), "create", "-n", namespace, "-f", "-")
		s.Kubectl(t, "patch", "pod", pod, "-n", namespace, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
			`{"status":{"containerStatuses":[{"name":"main","image":"x","imageID":"%s/team/app@%s","ready":true,"restartCount":0}]}}`, r.Host, digest))
	}
	cluster := harness.StartServer(t)
	run(cluster, "payments", "app-1", digest(2))
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "importRunning: false\nclusters:\n- {name: prod, kubeconfig: %s, importRunning: false}\n", cluster.Kubeconfig), 0o600))
	s := harness.StartServer(t, "--config", config)
	for i := range imgs { // the last has the tag
		r.Push(t, "team/app:v1", imgs[i])
		s.Import(t, "--kubeconfig", s.Kubeconfig, r.Host+"/team/app:v1")
	}
	run(s, "shop", "web", digest(1))
	harness.Eventually(t, func() error {
		if got := s.Kubectl(t, "get", "images", "--field-selector", "used=true", "-o", "name"); !strings.Contains(got, digest(1)) || !strings.Contains(got, digest(2)) {
			return fmt.Errorf("used are %s", got)
		}
		return nil
	})

	tag := "tag default/" + strings.ReplaceAll(r.Host, ":", "_") + "--team--app:v1 leads to it"
	refused := func(why string, args ...string) {
		t.Helper()
		got := s.TryKubectl(t, append([]string{"delete"}, args...)...)
		if got.Code == 0 || !strings.Contains(got.Stderr, why) {
			t.Errorf("kubectl delete %q: %d %s, want %s", args, got.Code, got.Stderr, why)
		}
	}
	refused(tag, "image", digest(4))
	refused(tag, "image", digest(4), "--dry-run=server")
	refused("pod local/shop/web uses it", "image", digest(1))
	refused("pod prod/payments/app-1 uses it", "image", digest(2))
	s.Kubectl(t, "delete", "image", digest(0))

	// A collection: what may go goes, and the rest is named.
	refused("3 images are kept, and the others that are selected would be deleted: sha256:", "--raw", imagesPath+"?dryRun=All")
	refused("3 images are kept, and the others that were selected are deleted: sha256:", "--raw", imagesPath)
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	must(t, json.Unmarshal([]byte(s.Kubectl(t, "get", "images", "-o", "json")), &list))
	if len(list.Items) != 3 {
		t.Errorf("left are %v", list)
	}

	// A tag that is gone keeps nothing; what is unknown is not gone.
	s.Kubectl(t, "delete", "imagetags", "--all")
	cluster.Kill(t)
	harness.Eventually(t, func() error {
		if got := s.TryKubectl(t, "delete", "image", digest(4), "--dry-run=server"); !strings.Contains(got.Stderr, "it is unknown whether pods use it: the pods of cluster prod are those of") {
			return fmt.Errorf("%d %s%s", got.Code, got.Stdout, got.Stderr)
		}
		return nil
	})
	s.Kubectl(t, "annotate", "image", digest(2), digest(4), "--overwrite", "tidewaiter.dev/allow-delete=unknown")
	s.Kubectl(t, "delete", "image", digest(4))
	// it is not known that it is gone
	refused("pod prod/payments/app-1 uses it", "image", digest(2))
	s.Kubectl(t, "annotate", "image", digest(2), "--overwrite", "tidewaiter.dev/allow-delete=unknown,used")
	s.Kubectl(t, "delete", "image", digest(2))
}

// Pruning marks what no tag has led to lately, and deletes it when the grace period is over;
// kubectl undoes it for one image.
func TestPruning(t *testing.T) {
	t.Parallel()
	s, r := harness.StartServer(t), registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 4)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	for i := range imgs {
		r.Push(t, "team/app:v1", imgs[i])
		s.Import(t, r.Host+"/team/app:v1")
	}
	prune := func(args ...string) string {
		t.Helper()
		c := harness.ImportCommand(t)
		c.Args = append([]string{"prune", "--kubeconfig", s.Kubeconfig, "--keep-younger-than=0s", "--keep-tag-revisions=2", "--grace=0s"}, args...)
		return harness.MustRun(t, c)
	}
	left := func() int { return strings.Count(s.Kubectl(t, "get", "images", "-o", "name"), "sha256:") }
	short := func(i int) string { return digest(i)[:len("sha256:")+12] }

	wantContains(t, "a dry run", prune("--kept"), short(0), short(1), "nothing needs it ("+r.Host+"/team/app)", "one of the last 2 images of default/", "keep revision: 2, mark: 2")
	if got := s.Kubectl(t, "get", "images", "-o", "yaml"); left() != 4 || strings.Contains(got, "prune-after") {
		t.Errorf("after a dry run: %s", got)
	}
	wantContains(t, "the first run", prune("--confirm"), "mark: 2")
	s.Kubectl(t, "annotate", "image", digest(1), "tidewaiter.dev/prune-after-")
	wantContains(t, "the second run", prune("--confirm"), "delete: 1, keep revision: 2, mark: 1")
	if got := s.Kubectl(t, "get", "images", "-o", "name"); left() != 3 || strings.Contains(got, digest(0)) {
		t.Errorf("left are %s", got)
	}
	wantContains(t, "undone", prune("--undo", "--confirm"), "keep undone: 2, unmark: 1")
	s.Import(t, r.Host+"/team/app@"+digest(0)) // the registry still has it
	if left() != 4 {
		t.Error("what was pruned is not back")
	}
}
