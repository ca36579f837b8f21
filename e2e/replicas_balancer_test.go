package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// TestReplicasBehindABalancer: three servers of which each request gets another one are as one
// server.
func TestReplicasBehindABalancer(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	r := startReplicas(t, 3, "--pod-logs-dir", logs)
	s := r.Balanced(t)
	t.Run("endpoints", func(t *testing.T) { walkEndpoints(t, s, logs) })
	t.Run("informer", func(t *testing.T) { informerSeesEveryImport(t, s, 80) })
}

// TestSuitesBehindABalancer: so they are to tests of one server, when a namespace ends, and to
// those that ask before a pod is made. It has servers of its own, so that nobody waits for one long
// test at the end.
func TestSuitesBehindABalancer(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3)
	s := r.Balanced(t)
	t.Run("suites", func(t *testing.T) { runSuites(t, s) })
	t.Run("namespace", func(t *testing.T) {
		for i := range 3 {
			name := fmt.Sprintf("ends-%d", i)
			s.Kubectl(t, "create", "namespace", name)
			s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","namespace":%q}}`, name), "create", "-f", "-")
			s.Kubectl(t, "delete", "namespace", name, "--timeout=60s")
			if got := s.TryKubectl(t, "get", "leases", "-n", name, "-o", "name"); strings.Contains(got.Stdout, "lease") {
				t.Errorf("after the end of its namespace there is %s", got.Stdout)
			}
		}
	})
	t.Run("admission", func(t *testing.T) { r.testAdmission(t, s) })
}

// suites are tests that any server with nothing in it passes, of what is easily wrong where each
// request gets another server.
var suites = []string{
	"TestKubectlWatch", "TestKubectlWritesAndPatches", "TestKubectlDeleteCollection", "TestListsAreSnapshots", "TestWatchFromResourceVersion", "TestRowsWithKubectlRaw", "TestImportAgain", "TestAskingForUse",
}

// runSuites runs suites against a server, each in another process of this program.
func runSuites(t *testing.T, s *harness.Server) {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	for _, suite := range suites {
		got := harness.Run(t, harness.Command{Path: program, Args: []string{"-test.run", "^" + suite + "$", "-test.v", "-attach", s.DataDir, "-tidewaiter", harness.Binary(t)}})
		if got.Code != 0 || !strings.Contains(got.Stdout, "--- PASS: "+suite+" ") {
			t.Errorf("%s: code %d\n%s%s", suite, got.Code, got.Stdout, got.Stderr)
		}
	}
}

// testAdmission: a policy that was written at one server, or deleted, decides about pods at the
// next question to another. What is not known is imported, whoever is asked.
func (r *replicas) testAdmission(t *testing.T, s *harness.Server) {
	from := registry.Start(t, registry.Distribution)
	pushed := images.Numbered(t, 6)
	signer := newCosign(t)
	signer.key("release", "p256")
	public, err := os.ReadFile(signer.dir + "/release.pub")
	must(t, err)
	ask := func(server int, image string) (allowed bool, message string) {
		t.Helper()
		allowed, message, err := r.admits(t, server, image)
		must(t, err)
		return allowed, message
	}
	for i, image := range pushed {
		at, next, last := i%3, (i+1)%3, (i+2)%3
		name := fmt.Sprintf("admitted-%d", i)
		ref := from.Push(t, name+":1", image)
		if i%2 == 0 {
			s.Import(t, ref)
		}
		policy := fmt.Sprintf(`{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":%q},"spec":{"scopes":["%s/%s"],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":%q}}}}}`,
			name, from.Host, name, base64.StdEncoding.EncodeToString(public))
		r.Servers[at].KubectlStdin(t, policy, "create", "-f", "-")
		if allowed, message := ask(next, ref); allowed || !strings.Contains(message, name) || !strings.Contains(message, "Unsigned") {
			t.Errorf("a pod with %s is admitted (%v) at server %d, after server %d was given a policy: %s", ref, allowed, next, at, message)
		}
		r.Servers[at].Kubectl(t, "delete", "clusterimagepolicy", name)
		if allowed, message := ask(last, ref); !allowed {
			t.Errorf("a pod with %s is refused at server %d, after server %d has deleted the policy: %s", ref, last, at, message)
		}
	}
}

// admits asks a server as a cluster does whether a pod may run an image.
func (r *replicas) admits(t *testing.T, server int, image string) (allowed bool, message string, err error) {
	t.Helper()
	review := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},
		"resource":{"group":"","version":"v1","resource":"pods"},"namespace":"default","operation":"CREATE",
		"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image)
	raw, err := r.clients[server].CoreV1().RESTClient().Post().AbsPath("/apis/tidewaiter.dev/v1/admissionreviews").SetHeader("Content-Type", "application/json").Body([]byte(review)).DoRaw(t.Context())
	if err != nil {
		return false, "", err
	}
	var answer struct {
		Response struct {
			Allowed bool
			Status  struct{ Message string }
		}
	}
	err = json.Unmarshal(raw, &answer)
	return answer.Response.Allowed, answer.Response.Status.Message, err
}
