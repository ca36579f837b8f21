package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// podOf is a pod that runs an image.
func podOf(t *testing.T, namespace, name, image, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".json")
	must(t, os.WriteFile(file, []byte(podText(namespace, name, image, more)), 0o600))
	return file
}

func podText(namespace, name, image, more string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q%s},"spec":{"containers":[{"name":"main","image":%q}]}}`, name, namespace, more, image)
}

// admissionWebhook has kube-apiserver ask.
func admissionWebhook(t *testing.T) string {
	return filepath.Join(deployed(t, "kustomize"), "admission", "webhook.yaml")
}

// testAdmission has kube-apiserver ask about pods: what is signed runs, what is not is refused,
// warned of or audited. It leaves the webhook behind for testAdmissionAway.
func (s *inCluster) testAdmission(t *testing.T, r *registry.Registry) {
	c := s.cluster
	signer := newCosign(t)
	signer.key("release", "p256")
	public, err := os.ReadFile(filepath.Join(signer.dir, "release.pub"))
	must(t, err)
	busybox := images.Busybox(t)
	good := r.Push(t, "admitted/good:1", busybox)
	signer.sign("legacy", "release", good)
	bad, trial, quiet := r.Push(t, "admitted/bad:1", busybox), r.Push(t, "trial/app:1", busybox), r.Push(t, "quiet/app:1", busybox)
	for name, annotations := range map[string]string{"admitted": "{}", "trial": `{"tidewaiter.dev/admission":"warn"}`, "quiet": `{"tidewaiter.dev/admission":"audit"}`} {
		c.Apply(t, fmt.Sprintf(`{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":%q,"annotations":%s},"spec":{"scopes":["%s/%s"],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":%q}},"signedIdentity":{"matchPolicy":"MatchRepository"}}}}`,
			name, annotations, r.Host, name, base64.StdEncoding.EncodeToString(public)))
	}
	c.Kubectl(t, "create", "namespace", "guarded")
	c.Kubectl(t, "create", "namespace", "exempt")
	c.Kubectl(t, "label", "namespace", "exempt", "tidewaiter.dev/admission=exempt")
	webhook := admissionWebhook(t)
	c.Kubectl(t, "apply", "--server-side", "--dry-run=server", "-f", webhook)
	c.Kubectl(t, "apply", "-f", webhook)

	// From when kube-apiserver has seen it on. A dry run imports nothing.
	s.eventually(t, "admin", 1, []string{`admission webhook "pods.tidewaiter.dev" denied the request: image ` + bad, `is not known to meet policy "admitted"`, "not been imported"}, "create", "--dry-run=server", "-f", podOf(t, "guarded", "bad", bad, ""))
	s.eventually(t, "admin", 1, []string{"denied the request", bad, `policy "admitted"`, "Unsigned"}, "create", "-f", podOf(t, "guarded", "bad", bad, ""))
	s.eventually(t, "admin", 0, []string{"pod/good created"}, "create", "-f", podOf(t, "guarded", "good", good, ""))
	s.eventually(t, "admin", 0, []string{"pod/trial created", "Warning: image " + trial, `policy "trial"`}, "create", "-f", podOf(t, "guarded", "trial", trial, ""))
	quietly := c.TryKubectl(t, "admin", "create", "-f", podOf(t, "guarded", "quiet", quiet, ""))
	if quietly.Code != 0 || strings.Contains(quietly.Stderr, "Warning") {
		t.Errorf("what is audited is answered %d %s%s", quietly.Code, quietly.Stdout, quietly.Stderr)
	}
	s.eventually(t, "admin", 1, []string{"denied the request", "is not known to meet", "could not be imported", "not found"}, "create", "-f", podOf(t, "guarded", "gone", r.Host+"/admitted/gone:1", ""))
	s.eventually(t, "admin", 1, []string{"denied the request", bad}, "set", "image", "pod/good", "main="+bad, "-n", "guarded")
	s.eventually(t, "admin", 1, []string{"denied the request", bad}, "debug", "pod/good", "-n", "guarded", "--image", bad, "--container", "debugger", "--attach=false")
	c.Kubectl(t, "label", "pod", "good", "-n", "guarded", "a=b")
	s.testForetold(t, r, signer, good, bad)
	// Its own namespace, and one that an administrator leaves out.
	s.eventually(t, "admin", 0, []string{"pod/own created"}, "create", "-f", podOf(t, "tidewaiter", "own", bad, ""))
	s.eventually(t, "admin", 0, []string{"pod/left created"}, "create", "-f", podOf(t, "exempt", "left", bad, ""))
	wantContains(t, "metrics", s.Kubectl(t, "get", "--raw", "/metrics"), `tidewaiter_admission_reviews_total{decision="denied"}`, `tidewaiter_admission_reviews_total{decision="warned"}`, `tidewaiter_admission_reviews_total{decision="audited"}`)
}

// testForetold asks beside kube-apiserver what an act would change, does it, and has admission say
// the same: a key is revoked, and one image is let through by an exception while another is refused
// in the same pod.
func (s *inCluster) testForetold(t *testing.T, r *registry.Registry, signer *cosign, good, bad string) {
	c := s.cluster
	run := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append(args, "--kubeconfig", c.Kubeconfig(t, "admin", "admin")), Dir: signer.dir})
	}
	foretold := func(code int, want string, args ...string) {
		t.Helper()
		if got := run(args...); got.Code != code || !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), want) {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", args, got.Code, code, want, got.Stdout, got.Stderr)
		}
	}
	signer.key("other", "p256")
	policy := func(key, more string) string {
		return strings.Replace(signer.keysPolicy("admitted", r.Host+"/admitted", key), "DigestOnly", "MatchRepository", 1) + more
	}
	foretold(3, "True False (denied) Judged", "impact", "--revoke-key", "release.pub")
	c.Apply(t, policy("other", ""))
	s.eventually(t, "admin", 1, []string{"denied the request", good}, "create", "--dry-run=server", "-f", podOf(t, "guarded", "again", good, ""))

	worse := r.Push(t, "admitted/worse:1", images.Numbered(t, 1)[0])
	s.eventually(t, "admin", 1, []string{"denied the request", worse, "Unsigned"}, "create", "-f", podOf(t, "guarded", "worse", worse, ""))
	exception := policy("release", fmt.Sprintf("  exceptions:\n  - {images: [%q], until: %q, by: ann@example.com, reason: a drill}\n", bad, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	must(t, os.WriteFile(filepath.Join(signer.dir, "exception.yaml"), []byte(exception), 0o600))
	foretold(3, "Unsigned Excepted Judged <none> "+bad, "policy", "preview", "-f", "exception.yaml")
	c.Apply(t, exception)
	s.eventually(t, "admin", 0, []string{"pod/excepted created"}, "create", "-f", podOf(t, "guarded", "excepted", bad, ""))
	both := strings.Replace(podText("guarded", "both", bad, ""), `}]}}`, fmt.Sprintf(`},{"name":"worse","image":%q}]}}`, worse), 1)
	file := filepath.Join(t.TempDir(), "both.json")
	must(t, os.WriteFile(file, []byte(both), 0o600))
	s.eventually(t, "admin", 1, []string{"denied the request: image " + worse}, "create", "-f", file)
	c.Kubectl(t, "delete", "pod", "excepted", "-n", "guarded", "--force")
	c.Apply(t, policy("release", ""))
	s.eventually(t, "admin", 1, []string{"denied the request", bad}, "create", "--dry-run=server", "-f", podOf(t, "guarded", "ended", bad, ""))
}

// testAdmissionAway looks, while the server is away, at what starts nevertheless, and takes away
// what testAdmission made.
func (s *inCluster) testAdmissionAway(t *testing.T, r *registry.Registry) {
	c, good, bad := s.cluster, r.Host+"/admitted/good:1", r.Host+"/admitted/bad:1"
	s.eventually(t, "admin", 1, []string{`failed calling webhook "pods.tidewaiter.dev"`}, "create", "-f", podOf(t, "guarded", "away", good, ""))
	s.eventually(t, "admin", 0, []string{"pod/again created"}, "create", "-f", podOf(t, "tidewaiter", "again", bad, ""))
	mirror := podOf(t, "guarded", "static", bad, `,"annotations":{"kubernetes.io/config.mirror":"x"}`)
	if got := c.TryKubectl(t, "admin", "create", "-f", mirror, "--as", "system:node:one", "--as-group", "system:nodes"); strings.Contains(got.Stderr, "webhook") {
		t.Errorf("a static pod is locked out: %s", got.Stderr)
	}
	// what does not change the spec
	c.Kubectl(t, "label", "pod", "good", "-n", "guarded", "a=c", "--overwrite")
	c.Kubectl(t, "delete", "-f", admissionWebhook(t))
	for _, namespace := range []string{"guarded", "exempt", "tidewaiter"} {
		c.Kubectl(t, "delete", "pods", "--all", "-n", namespace, "--force")
	}
}
