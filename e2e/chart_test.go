package e2e

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// everyOption has all options of the chart that are off by default.
const everyOption = `
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: pull}]
replicas: 3
etcd: {servers: [https://etcd-0.etcd:2379, https://etcd-1.etcd:2379], prefix: /other, secretName: etcd-client}
pki: {secretName: tidewaiter-pki}
config: {sweep: {repositories: [registry.example.com/team/app], every: 6h}}
extraArgs: [--max-requests-inflight=800]
secrets: [hook]
tls: {secretName: tidewaiter-tls}
persistence: {storageClassName: fast}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: infra, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: infra, operator: Exists}]}]}}}
priorityClassName: system-cluster-critical
podAnnotations: {example.com/a: b}
podLabels: {example.com/c: d}
rbac: {pullSecrets: [elsewhere, "*"]}
networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8}}], egress: [{ports: [{port: 443}]}]}
admission: {enabled: true, failurePolicy: Ignore, timeoutSeconds: 5, exemptNamespaces: [kube-system, network]}
serviceMonitor: {enabled: true, labels: {release: prometheus}, authorization: {credentials: {name: metrics, key: token}}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboards: {enabled: true}
`

// helm is the command that reads the chart, without a cluster.
func helm(t *testing.T, args ...string) harness.Command {
	t.Helper()
	home := t.TempDir()
	return harness.Command{Path: harness.Tool(t, "helm"), Args: args, Env: []string{"HOME=" + home, "KUBECONFIG=", "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}}
}

// valuesFile is a file of values for the chart.
func valuesFile(t *testing.T, values string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(file, []byte(values), 0o600))
	return file
}

// The chart passes helm's own checks, makes what deploy/kustomize has, and refuses values that it
// does not know.
func TestChart(t *testing.T) {
	t.Parallel()
	chart := deployed(t, "chart")
	harness.MustRun(t, helm(t, "lint", "--strict", chart))
	harness.MustRun(t, helm(t, "lint", "--strict", chart, "--values", valuesFile(t, everyOption)))

	var base []byte
	for _, file := range []string{"tidewaiter.yaml", "admission/webhook.yaml"} {
		text, err := os.ReadFile(filepath.Join(deployed(t, "kustomize"), file))
		must(t, err)
		base = append(append(base, "---\n"...), text...)
	}
	fromChart, fromBase := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart, "--namespace", "tidewaiter", "--set", "admission.enabled=true"))), documents(t, string(base))
	if _, ok := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart)))["ValidatingWebhookConfiguration/tidewaiter"]; ok {
		t.Error("pods are asked about without being told to")
	}
	for _, key := range slices.Sorted(maps.Keys(fromChart)) {
		if fromChart[key] != fromBase[key] {
			t.Errorf("%s is of the chart\n%s\nand in deploy/kustomize\n%s", key, fromChart[key], fromBase[key])
		}
		delete(fromBase, key)
	}
	if len(fromBase) > 0 {
		t.Errorf("deploy/kustomize has what the chart lacks: %v", slices.Sorted(maps.Keys(fromBase)))
	}

	for _, values := range []string{"rbac: {pullsecrets: []}", "replicas: 0", "etcd: {servers: [etcd:2379]}", "rbac: {pullSecrets: true}", "rbac: {pullSecrets: [Team]}", "image: {digest: latest}", "apiGroups: [apps]", "secrets: hook", "prometheusRule: {enabled: sometimes}", "admission: {failurePolicy: Maybe}"} {
		if got := harness.Run(t, helm(t, "template", "tidewaiter", chart, "--values", valuesFile(t, values))); got.Code == 0 || !strings.Contains(got.Stderr, "schema") {
			t.Errorf("values %q: code %d, %s", values, got.Code, got.Stderr)
		}
	}
	if got := harness.Run(t, helm(t, "template", "tidewaiter", chart, "--values", valuesFile(t, "apiGroups: [image.openshift.io]\nadmission: {enabled: true}"))); got.Code == 0 || !strings.Contains(got.Stderr, "admission.enabled needs tidewaiter.dev") {
		t.Errorf("admission by a group that is not served: code %d, %s", got.Code, got.Stderr)
	}
	for values, want := range map[string]string{"[]": "", "[team]": "RoleBinding", `["*"]`: "ClusterRoleBinding"} {
		made := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart, "--namespace", "tidewaiter", "--values", valuesFile(t, "rbac: {pullSecrets: "+values+"}"))))
		for _, kind := range []string{"RoleBinding", "ClusterRoleBinding"} {
			if binding, ok := made[kind+"/tidewaiter-pull"]; ok != (kind == want) || kind == "RoleBinding" && ok && !strings.Contains(binding, `"namespace":"team"`) {
				t.Errorf("pullSecrets: %s: %s %s", values, kind, binding)
			}
		}
	}
	for values, want := range map[string]string{"{replicas: 3, pki: {secretName: pki}}": "etcd.servers", `{replicas: 2, etcd: {servers: ["http://etcd:2379"]}}`: "pki.secretName"} {
		if got := harness.Run(t, helm(t, "template", "tidewaiter", chart, "--values", valuesFile(t, values))); got.Code == 0 || !strings.Contains(got.Stderr, want) {
			t.Errorf("values %s: code %d, %s", values, got.Code, got.Stderr)
		}
	}
	three := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart, "--namespace", "tidewaiter", "--values", valuesFile(t,
		`{replicas: 3, etcd: {servers: ["https://a:2379", "https://b:2379"], secretName: etcd-client}, pki: {secretName: tidewaiter-pki}}`))))
	wantContains(t, "the StatefulSet of three", three["StatefulSet/tidewaiter"], `"replicas":3`, `"--etcd-servers=https://a:2379,https://b:2379"`, `"--etcd-certfile=/etc/tidewaiter/etcd/tls.crt"`,
		`"--pki-dir=/etc/tidewaiter/pki"`, `"secretName":"etcd-client"`, `"secretName":"tidewaiter-pki"`, `"podAntiAffinity"`, `"topologyKey":"kubernetes.io/hostname"`)
	trial := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart, "--namespace", "tidewaiter", "--set", "replicas=3,etcd.trial.enabled=true,pki.secretName=tidewaiter-pki")))
	wantContains(t, "the StatefulSet of a trial", trial["StatefulSet/tidewaiter"], `"--etcd-servers=http://tidewaiter-etcd-0.tidewaiter-etcd.tidewaiter.svc:2379,http://tidewaiter-etcd-1.tidewaiter-etcd.tidewaiter.svc:2379,http://tidewaiter-etcd-2.`)
	wantContains(t, "the NetworkPolicy of a trial", trial["NetworkPolicy/tidewaiter-etcd"], `"app.kubernetes.io/name":"tidewaiter"`)
	if got := harness.Run(t, helm(t, "template", "tidewaiter", chart, "--set", "etcd.trial.enabled=true,etcd.secretName=etcd-client")); got.Code == 0 || !strings.Contains(got.Stderr, "does not go with") {
		t.Errorf("a trial with certificates: code %d, %s", got.Code, got.Stderr)
	}
	wantContains(t, "the budget of three", three["PodDisruptionBudget/tidewaiter"], `"maxUnavailable":1`)
	without := documents(t, harness.MustRun(t, helm(t, "template", "tidewaiter", chart, "--namespace", "tidewaiter", "--values",
		valuesFile(t, "apiGroups: []\nrbac: {aggregate: false}\nnetworkPolicy: {enabled: false}"))))
	for key, object := range without {
		kind, _, _ := strings.Cut(key, "/")
		if kind == "APIService" || kind == "NetworkPolicy" || strings.Contains(object, `to-view":"true"`) || strings.Contains(object, `"apiservices"`) {
			t.Errorf("without it there is %s: %s", key, object)
		}
	}
}

// documents are the objects of a file, as JSON, by kind and name.
func documents(t *testing.T, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
		u := &unstructured.Unstructured{}
		err := d.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		if len(u.Object) == 0 {
			continue
		}
		raw, err := u.MarshalJSON()
		must(t, err)
		out[u.GetKind()+"/"+u.GetName()] = string(raw)
	}
}

// dryRun has a real kube-apiserver check every object that can be installed, before any of them is.
func dryRun(t *testing.T, c *harness.Cluster) {
	t.Helper()
	check := func(documents string) { t.Helper(); c.Apply(t, documents, "--server-side", "--dry-run=server") }
	for _, kind := range []string{"servicemonitors", "prometheusrules"} {
		c.Kubectl(t, "create", "-f", filepath.Join(harness.ModuleDir(t), ".tools", "crds", kind+".yaml"))
		c.Kubectl(t, "wait", "--for=condition=Established", "crd/"+kind+".monitoring.coreos.com")
	}
	c.Kubectl(t, "create", "namespace", "elsewhere")
	check(harness.MustRun(t, helm(t, "template", "other", deployed(t, "chart"), "--namespace", "elsewhere", "--values", valuesFile(t, everyOption))))
	check(harness.MustRun(t, helm(t, "template", "other", deployed(t, "chart"), "--namespace", "elsewhere", "--set", "serviceMonitor.enabled=true")))
	check(harness.MustRun(t, helm(t, "template", "other", deployed(t, "chart"), "--namespace", "elsewhere", "--set", "replicas=3,etcd.trial.enabled=true,pki.secretName=tidewaiter-pki")))
	c.Kubectl(t, "create", "namespace", "tidewaiter")
	check(c.Kubectl(t, "kustomize", deployed(t, "kustomize")))
}
