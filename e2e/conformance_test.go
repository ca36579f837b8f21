//go:build nightly

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// conformanceSpecs are Kubernetes' own end-to-end specs that run here: those
// about the kinds served, that need neither a node nor another kind.
// docs/reference/coreapi.md says what the others need.
var conformanceSpecs = []string{
	"[sig-api-machinery] Discovery should validate PreferredVersion for each APIGroup [Conformance]",
	"[sig-api-machinery] Garbage collector should not be blocked by dependency circle [Conformance]",
	"[sig-api-machinery] Namespaces should apply a finalizer to a Namespace [Conformance] [Serial]",
	"[sig-api-machinery] Namespaces should apply an update to a Namespace [Conformance] [Serial]",
	"[sig-api-machinery] Namespaces should apply changes to a namespace status [Conformance] [Serial]",
	"[sig-api-machinery] Namespaces should patch a Namespace [Conformance] [Serial]",
	"[sig-api-machinery] Namespaces should ensure that all pods are removed when a namespace is deleted [Conformance] [Serial]",
	"[sig-api-machinery] Namespaces should ensure that all services are removed when a namespace is deleted [Conformance] [Serial]",
	"[sig-api-machinery] server version should find the server version [Conformance]",
	"[sig-cli] Kubectl client Kubectl api-versions should check if v1 is in available api versions [Conformance]",
	"[sig-cli] Kubectl client Kubectl cluster-info should check if Kubernetes control plane services is included in cluster-info [Conformance]",
	"[sig-cli] Kubectl client Kubectl version should check is all data is printed [Conformance]",
	"[sig-cli] Kubectl client Proxy server should support --unix-socket=/path [Conformance]",
	"[sig-cli] Kubectl client Proxy server should support proxy with --port 0 [Conformance]",
	"[sig-instrumentation] Events API should delete a collection of events [Conformance]",
	"[sig-instrumentation] Events API should ensure that an event can be fetched, patched, deleted, and listed [Conformance]",
	"[sig-instrumentation] Events should delete a collection of events [Conformance]",
	"[sig-instrumentation] Events should manage the lifecycle of an event [Conformance]",
	"[sig-network] Services should complete a service status lifecycle [Conformance]",
	"[sig-network] Services should delete a collection of services [Conformance]",
	"[sig-network] Services should find a service from listing all namespaces [Conformance]",
	"[sig-node] Lease lease API should be available [Conformance]",
	"[sig-api-machinery] Servers with support for Table transformation should return a 406 for a backend which does not implement metadata [Conformance]",
	"[sig-auth] ServiceAccounts should create a serviceAccountToken and ensure a successful TokenReview [Conformance]",
	"[sig-auth] ServiceAccounts should run through the lifecycle of a ServiceAccount [Conformance]",
	"[sig-auth] ServiceAccounts should update a ServiceAccount [Conformance]",
	"[sig-auth] SubjectReview should support SubjectReview API operations [Conformance]",
	// These are not part of conformance, and about the same kinds.
	"[sig-api-machinery] OpenAPIV3 should round trip OpenAPI V3 for all built-in group versions",
	"[sig-api-machinery] Server request timeout default timeout should be used if the specified timeout in the request URL is 0s",
	"[sig-api-machinery] Server request timeout should return HTTP status code 400 if the user specifies an invalid timeout in the request URL",
	"[sig-api-machinery] Server request timeout the request should be served with a default timeout if the specified timeout in the request URL exceeds maximum allowed",
	"[sig-api-machinery] ServerSideApply should create an applied object if it does not already exist",
	"[sig-api-machinery] ServerSideApply should work for subresources",
	"[sig-api-machinery] Servers with support for Table transformation should return pod details",
	"[sig-auth] SelfSubjectReview should support SelfSubjectReview API operations",
	"[sig-auth] SelfSubjectReview testing SSR in different API groups authentication/v1",
	"[sig-instrumentation] MetricsGrabber should grab all metrics from API server.",
	"[sig-instrumentation] MetricsGrabber should grab all metrics slis from API server.",
	"[sig-network] Services should check NodePort out-of-range",
	"[sig-network] Services should prevent NodePort collisions",
}

// specReport is what the specs' runner, Ginkgo, reports of one.
type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	Failure                 struct{ Message string }
}

// TestConformance runs the specs with Kubernetes' own program, as it is.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	// A kube-apiserver makes this Service, of itself; the program reads the
	// cluster's IP family from it.
	s.Kubectl(t, "create", "service", "clusterip", "kubernetes", "--tcp=443")
	playKubelet(t, s, "nsdeletetest")

	focus := make([]string, len(conformanceSpecs))
	for i, name := range conformanceSpecs {
		focus[i] = regexp.QuoteMeta(name) + "$"
	}
	report := filepath.Join(t.TempDir(), "report.json")
	result := harness.Run(t, harness.Command{
		Path: harness.Tool(t, "e2e.test"),
		Args: []string{
			"--kubeconfig", s.Kubeconfig, "--kubectl-path", harness.Tool(t, "kubectl"), "--provider=skeleton",
			// There are no nodes to wait for, no pods of the system, and beside the service
			// accounts no ConfigMaps kube-root-ca.crt.
			"--num-nodes=1", "--allowed-not-ready-nodes=-1", "--minStartupPods=0", "--e2e-verify-service-account=false",
			"--dump-logs-on-failure=false", "--disable-log-dump",
			"--ginkgo.focus", strings.Join(focus, "|"), "--ginkgo.json-report", report, "--ginkgo.no-color", "--ginkgo.succinct",
		},
		Dir: t.TempDir(),
		Env: []string{"KUBECONFIG=", "HOME=" + t.TempDir()},
	})
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, result.Stdout, result.Stderr)
	}
	var suites []struct{ SpecReports []specReport }
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	ran := map[string]specReport{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			switch {
			case spec.State == "skipped":
			case spec.LeafNodeType == "It":
				ran[name] = spec
				if !slices.Contains(conformanceSpecs, name) {
					t.Errorf("%q ran and is not in the table", name)
				}
			case spec.State != "passed": // what comes before and after all specs
				t.Errorf("%s: %s: %s", spec.LeafNodeType, spec.State, spec.Failure.Message)
			}
		}
	}
	for _, name := range conformanceSpecs {
		t.Run(name, func(t *testing.T) {
			if spec := ran[name]; spec.State != "passed" {
				t.Errorf("%q: %s", spec.State, spec.Failure.Message)
			}
		})
	}
	if result.Code != 0 {
		t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
}

// playKubelet says of each new pod in the namespaces that begin with a prefix that it runs.
func playKubelet(t *testing.T, s *harness.Server, prefix string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		pod := obj.(*corev1.Pod).DeepCopy()
		if !strings.HasPrefix(pod.Namespace, prefix) {
			return
		}
		pod.Status.Phase = corev1.PodRunning
		if _, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Errorf("pod %s/%s: %v", pod.Namespace, pod.Name, err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait) // the test's context is done by then
}
