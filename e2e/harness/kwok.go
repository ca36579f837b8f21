package harness

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
)

// RunsAnnotation is what containers of a pod run, as a kubelet's runtime writes imageID. Where a
// pod has none, the image cannot be pulled.
const RunsAnnotation = "e2e.tidewaiter.dev/runs"

// kubelets is the configuration of KWOK: what the kubelet of a node does with a node and with a
// pod.
const kubelets = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector: {matchExpressions: [{key: .status.phase, operator: NotIn, values: [Running]}]}
  next:
    statusTemplate: |
      phase: Running
      nodeInfo: {architecture: {{ index .metadata.labels "kubernetes.io/arch" }}, operatingSystem: linux, bootID: "", containerRuntimeVersion: kwok, kernelVersion: kwok, kubeProxyVersion: "", kubeletVersion: kwok, machineID: "", osImage: "", systemUUID: ""}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: DoesNotExist}, {key: .status.containerStatuses, operator: DoesNotExist}]}
  next:
    statusTemplate: |
      {{ $runs := "" }}
      {{ with .metadata.annotations }}{{ $runs = or (index . "` + RunsAnnotation + `") "" }}{{ end }}
      phase: {{ if $runs }}Running{{ else }}Pending{{ end }}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        imageID: {{ $runs | Quote }}
        restartCount: 0
        {{ if $runs }}
        ready: true
        state: {running: {startedAt: {{ Now | Quote }}}}
        {{ else }}
        ready: false
        state: {waiting: {reason: ErrImagePull, message: manifest unknown}}
        {{ end }}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}]}
  next: {delete: true}
`

// StartNodes gives the cluster nodes of these names, one in two for arm64, with kubelets played by
// KWOK.
func (c *Cluster) StartNodes(t testing.TB, names ...string) {
	t.Helper()
	nodes := ""
	for i, name := range names {
		nodes += fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"kubernetes.io/arch":%q}}}`+"\n", name, []string{"amd64", "arm64"}[i%2])
	}
	c.Apply(t, strings.ReplaceAll(nodes, "\n", "\n---\n"))
	kwok := Start(t, Command{Path: Tool(t, "kwok"), Args: []string{"--kubeconfig", c.Kubeconfig(t, "kwok", "admin"), "--config", c.write(t, "kwok.yaml", kubelets), "--manage-all-nodes", "--node-lease-duration-seconds", "0"},
		Env: []string{"HOME=" + c.home, "KWOK_WORKDIR=" + filepath.Join(c.dir, "kwok")}})
	Eventually(t, func() error {
		if !kwok.Running() {
			t.Fatalf("kwok ended: %s%s", kwok.Stdout, kwok.Stderr)
		}
		if phases := c.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].status.phase}"); strings.Count(phases, "Running") != len(names) {
			return fmt.Errorf("the nodes are %q", phases)
		}
		return nil
	})
}

// Client is a client of the cluster with its administrator's credential and no limit of its own.
func (c *Cluster) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Stop kills kube-apiserver as kill -9 does.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.apiserver.Signal(t, syscall.SIGKILL)
	c.apiserver.Wait(t)
}

// Resume starts kube-apiserver after [Cluster.Stop].
func (c *Cluster) Resume(t testing.TB) {
	t.Helper()
	c.start(t)
}
