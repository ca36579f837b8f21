package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// Every image that pods run is imported, of this server or of another cluster:
// by the digest in a pod's status, whatever its spec says, else by the spec.
func TestImportFromPods(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	busybox, multi := images.Busybox(t), images.MultiArch(t)
	r.Push(t, "library/busybox:1", busybox)
	runs, waits := images.Digest(t, busybox).String(), images.Digest(t, multi).String()
	family := []string{waits}
	for _, child := range images.Children(t, multi) {
		family = append(family, child.Digest.String())
	}
	tag := r.Push(t, "team/multi:1", multi)

	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	// or it would do so by itself
	must(t, os.WriteFile(config, []byte("importRunning: false\n"), 0o600))
	cluster := harness.StartServer(t, "--config", config)
	cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"runs"},"spec":{"containers":[{"name":"c","image":"%s/library/busybox:gone"}]}}`, r.Host), "create", "-n", "team", "-f", "-")
	cluster.Kubectl(t, "patch", "pod", "runs", "-n", "team", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status":{"containerStatuses":[{"name":"c","image":"x","imageID":"%s/library/busybox@%s","ready":true,"restartCount":0}]}}`, r.Host, runs))
	cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"waits"},"spec":{"initContainers":[{"name":"i","image":%[1]q}],"containers":[{"name":"c","image":%[1]q}]}}`, tag), "create", "-f", "-")

	holds := func(s *harness.Server, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := imageNames(t, s); !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q", got, want)
		}
	}
	other := harness.SharedServer(t)
	other.Import(t, "--from-pods", "-n", "team", "--source-kubeconfig", cluster.Kubeconfig)
	holds(other, runs)
	other.Import(t, "--from-pods", "-A", "--source-kubeconfig", cluster.Kubeconfig)
	holds(other, append([]string{runs}, family...)...)
	holds(cluster)
	cluster.Import(t, "--from-pods") // of the namespace default
	holds(cluster, family...)
	if got := selected(t, cluster, "used=true"); !slices.Equal(got, []string{waits}) {
		t.Errorf("used are %q, want %q", got, waits)
	}

	for code, all := range map[int][][]string{2: {{"-A", tag}, {"--from-pods", "--all-tags"}}, 3: {{"--from-pods", "-n", "empty"}}} {
		for _, args := range all {
			if got := cluster.TryImport(t, args...); got.Code != code || got.Stderr == "" {
				t.Errorf("import %q: exit code %d, %q", args, got.Code, got.Stderr)
			}
		}
	}
}
