package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// rollouts is a kind that nobody but its controller knows, as Argo's.
const rollouts = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"rollouts.argoproj.io"},"spec":{"group":"argoproj.io",
"names":{"kind":"Rollout","plural":"rollouts"},"scope":"Namespaced","versions":[{"name":"v1alpha1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// workloadKind is a kind that needs an image, and as what it is made.
type workloadKind struct {
	gv, kind string
	path     []string       // to the pod template
	object   map[string]any // without it
}

// workloadKinds run no pod.
func workloadKinds() []workloadKind {
	labels := map[string]any{"app": "app"}
	spec := func(spec map[string]any) map[string]any { return map[string]any{"spec": spec} }
	selects := map[string]any{"matchLabels": labels}
	return []workloadKind{
		{"apps/v1", "Deployment", []string{"spec", "template"}, spec(map[string]any{"replicas": 0, "selector": selects})},
		{"apps/v1", "ReplicaSet", []string{"spec", "template"}, spec(map[string]any{"replicas": 0, "selector": selects})},
		{"apps/v1", "StatefulSet", []string{"spec", "template"}, spec(map[string]any{"replicas": 0, "serviceName": "app", "selector": selects})},
		{"apps/v1", "DaemonSet", []string{"spec", "template"}, spec(map[string]any{"selector": selects})},
		{"apps/v1", "ControllerRevision", []string{"data", "spec", "template"}, map[string]any{"revision": 1}},
		{"v1", "ReplicationController", []string{"spec", "template"}, spec(map[string]any{"replicas": 0})},
		{"batch/v1", "Job", []string{"spec", "template"}, spec(map[string]any{"suspend": true})},
		{"batch/v1", "CronJob", []string{"spec", "jobTemplate", "spec", "template"}, spec(map[string]any{"schedule": "0 0 1 1 *"})},
		{"argoproj.io/v1alpha1", "Rollout", []string{"spec", "template"}, spec(map[string]any{"replicas": 0})},
	}
}

// needing is an object of the kind that needs an image.
func (k workloadKind) needing(t testing.TB, image string) string {
	t.Helper()
	pod := map[string]any{"containers": []any{map[string]any{"name": "main", "image": image}}}
	if k.gv == "batch/v1" {
		pod["restartPolicy"] = "Never"
	}
	object := k.object
	object["apiVersion"], object["kind"], object["metadata"] = k.gv, k.kind, map[string]any{"name": "app"}
	in := object
	for _, name := range k.path[:len(k.path)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			in[name] = next
		}
		in = next
	}
	in["template"] = map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "app"}}, "spec": pod}
	text, err := json.Marshal(object)
	must(t, err)
	return string(text)
}

// What makes pods in a cluster that is followed, and runs none, needs its images: neither
// tidewaiter prune nor oc deletes them, in the API or in the registry. What nothing needs goes.
// While workloads may not be listed, or the cluster hangs, nothing goes. The cluster is
// kube-apiserver, and the credential has the rights that docs/tasks/cluster.md gives it.
func TestPruningKeepsWhatWorkloadsNeed(t *testing.T) {
	t.Parallel()
	cluster := harness.StartAPIServer(t)
	cluster.Apply(t, rollouts)
	role := func(args ...string) {
		t.Helper()
		harness.Eventually(t, func() error { // until the cluster serves the kinds
			if got := cluster.TryKubectl(t, "admin", append([]string{"create", "clusterrole"}, args...)...); got.Code != 0 {
				return fmt.Errorf("%s", got.Stderr)
			}
			return nil
		})
		cluster.Kubectl(t, "create", "clusterrolebinding", args[0], "--clusterrole="+args[0], "--user=viewer")
	}
	for _, line := range lines(documentedBlock(t, "create clusterrole tidewaiter-follower --verb")) {
		if _, args, found := strings.Cut(line, "create clusterrole "); found {
			role(strings.Fields(args)...)
		}
	}
	role("rollouts", "--verb=list,watch", "--resource=rollouts.argoproj.io")

	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `importRunning: false
streams: {registry: %q}
clusters:
- {name: prod, kubeconfig: %s, importRunning: false}
workloads:
- {group: argoproj.io, resource: rollouts, path: spec.template}
`, streamRegistry, cluster.Kubeconfig(t, "follower", "viewer")), 0o600))
	s := harness.StartServer(t, "--config", config)
	s.Kubectl(t, "create", "namespace", "team")
	s.Kubectl(t, "create", "clusterrolebinding", "pruner", "--clusterrole=system:image-pruner", "--user=pruner")
	admin := streamCaller{restClient(t, s.Config(t))}
	admin.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app"}})

	kinds := workloadKinds()
	// then one that nothing needs, and one that the tag leads to now
	imgs := images.Numbered(t, len(kinds)+2)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	for i, kind := range kinds {
		cluster.Apply(t, kind.needing(t, "apps.example.com/team/app@"+digest(i)))
	}
	for i := range imgs {
		admin.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, mapping(t, "app", "v1", imgs[i]))
	}
	unneeded := digest(len(kinds))

	prune := func(args ...string) map[string]string {
		t.Helper()
		got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append([]string{"prune", "--kubeconfig", s.Kubeconfig, "--keep-younger-than=0s", "--keep-tag-revisions=0", "--kept", "-o", "json"}, args...)})
		var report struct {
			Images []struct{ Image, Decision, Reason string }
		}
		if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
			t.Fatalf("%v: %s%s", err, got.Stdout, got.Stderr)
		}
		decided := map[string]string{}
		for _, d := range report.Images {
			decided[d.Image] = strings.TrimSpace(d.Decision + " " + d.Reason)
		}
		return decided
	}
	awaitKnown := func() {
		t.Helper()
		harness.Eventually(t, func() error {
			decided := prune()
			for i, kind := range kinds {
				if decided[digest(i)] != "keep needed" {
					return fmt.Errorf("%s: %q", kind.kind, decided[digest(i)])
				}
			}
			if decided[unneeded] != "mark" {
				return fmt.Errorf("what nothing needs: %q", decided[unneeded])
			}
			return nil
		})
	}
	awaitKnown()
	if used := s.Kubectl(t, "get", "images", "--field-selector", "used=true", "-o", "name"); strings.TrimSpace(used) != "" {
		t.Errorf("though no pod runs, used are %s", used)
	}

	stops := func(says string) {
		t.Helper()
		eventuallyFails(t, s, says, "get", "rc", "-A")
		p := &ocPruner{client: restClient(t, as(s.Config(t), "pruner"))}
		if err := p.prune(t); err == nil || len(p.links)+len(p.manifests)+len(p.blobs)+len(p.deleted) > 0 {
			t.Errorf("oc stops with %v, and has deleted %+v", err, p)
		}
	}
	// A right that is taken is noticed when a watch is opened again, as after a restart of the
	// cluster's API.
	cluster.Kubectl(t, "delete", "clusterrolebinding", "rollouts")
	cluster.Restart(t)
	stops("the rollouts.argoproj.io of cluster prod are not known")
	if decided := prune(); decided[unneeded] != "keep workloads" || decided[digest(0)] != "keep needed" {
		t.Errorf("without the right: %v", decided)
	}
	if decided := prune("--without-workloads"); decided[unneeded] != "mark" || decided[digest(0)] != "keep needed" {
		t.Errorf("without workloads: %v", decided)
	}
	cluster.Kubectl(t, "create", "clusterrolebinding", "rollouts", "--clusterrole=rollouts", "--user=viewer")
	awaitKnown()

	// A cluster that hangs closes no connection.
	apiserver := cluster.Processes()[0]
	apiserver.Signal(t, syscall.SIGSTOP)
	stops("the pods of cluster prod are those of")
	apiserver.Signal(t, syscall.SIGCONT)
	awaitKnown()
	p := &ocPruner{client: restClient(t, as(s.Config(t), "pruner"))}
	must(t, p.prune(t))
	if want := []string{"team/app@" + unneeded}; !slices.Equal(p.manifests, want) || !slices.Equal(p.deleted, []string{unneeded}) || len(p.errs) > 0 {
		t.Errorf("oc deletes %v and %v, want %v: %v", p.manifests, p.deleted, want, p.errs)
	}
	for i, kind := range kinds {
		if got := s.TryKubectl(t, "get", "image", digest(i)); got.Code != 0 {
			t.Errorf("the image of a %s is gone: %s", kind.kind, got.Stderr)
		}
	}
}

// eventuallyFails waits until kubectl, asked with args, fails and says why.
func eventuallyFails(t *testing.T, s *harness.Server, says string, args ...string) {
	t.Helper()
	harness.Eventually(t, func() error {
		if got := s.TryKubectl(t, args...); got.Code == 0 || !strings.Contains(got.Stderr, says) {
			return fmt.Errorf("%d %s%s", got.Code, got.Stdout, got.Stderr)
		}
		return nil
	})
}

// documentedBlock is the block of docs/start/kubectl.md, docs/tasks/cluster.md or
// docs/start/openshift.md in which a text is.
func documentedBlock(t testing.TB, part string) string {
	t.Helper()
	for _, name := range []string{"start/kubectl.md", "tasks/cluster.md", "start/openshift.md", "tasks/scale.md"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(harness.ModuleDir(t)), "docs", name))
		must(t, err)
		before, after, found := strings.Cut(string(text), part)
		start := strings.LastIndex(before, "```shell\n")
		if found && start >= 0 {
			block, _, _ := strings.Cut(before[start+len("```shell\n"):]+part+after, "```")
			return block
		}
	}
	t.Fatalf("no document has a block with %q", part)
	return ""
}
