package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// docs/tasks/keyless.md, to its end: at no step is an image refused that was trusted and is signed
// as the step says, the page shows what is printed, and what depends on the key is found and then
// no longer trusted.
func TestKeylessTask(t *testing.T) {
	t.Parallel()
	const cosignSign = "https://sigstore.dev/cosign/sign/v1"
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	h.Config = serveWith(t, server.Options{DataDir: data, Isolated: true}, listen(t))
	var err error
	if h.images, err = imageclient.New(h.Config); err != nil {
		t.Fatal(err)
	}
	kubeconfig := server.KubeconfigPath(data)
	raw, err := os.ReadFile("../../docs/tasks/keyless.md")
	if err != nil {
		t.Fatal(err)
	}
	key, d := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewDeployment(t)
	host := h.registry.Host
	text := strings.NewReplacer("registry.example.com", host, "https://token.actions.githubusercontent.com", signaturestest.Issuer).Replace(regexp.MustCompile(`(?m)^   `).ReplaceAllString(string(raw), ""))
	block := func(part string) string {
		t.Helper()
		for _, found := range regexp.MustCompile("(?ms)^```[a-z]+\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], part) {
				return found[1]
			}
		}
		t.Fatalf("the page has no block with %q", part)
		return ""
	}
	both := block("kind: ClusterImagePolicy")
	for name, content := range map[string][]byte{"cosign.pub": key.PEM, "trusted_root.json": d.TrustedRoot(t, nil), "release.yaml": []byte(both)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// the objects that the page gives to kubectl
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", strings.Replace(block("kubectl apply"), "kubectl apply --server-side -f -", "cat", 1))
	shell.Dir = dir
	objects, err := shell.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, objects)
	}
	ofKey, ofKeyless, ok := strings.Cut(string(objects), "---\n")
	if !ok {
		t.Fatalf("these are not two policies:\n%s", objects)
	}
	warned, notes := withWarnings(h.Config)
	of := policiesOf(t, warned)
	apply := func(document string) {
		t.Helper()
		if _, err := of.apply(document); err != nil {
			t.Fatal(err)
		}
	}
	const alone = "  alternatives: release               # added\n"
	if !strings.Contains(ofKey, alone) {
		t.Fatalf("the policy of the key is another one now:\n%s", ofKey)
	}
	apply(strings.Replace(ofKey, alone, "", 1))

	subject := regexp.MustCompile(`signedURI: (\S+)`).FindStringSubmatch(both)[1]
	stored := func(content []byte, digest string) imagev1.ImageSignature {
		return imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeBundle, Content: content}
	}
	byKey := func(digest string) imagev1.ImageSignature {
		return stored(signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, cosignSign))), digest)
	}
	byIdentity := func(subject, digest string) imagev1.ImageSignature {
		leaf, leafKey := d.Identity(t, subject, nil)
		return stored(signaturestest.Marshal(t, d.KeylessBundle(t, leaf, leafKey, signaturestest.Statement(digest, cosignSign), time.Now())), digest)
	}
	digests := map[string]string{}
	push := func(tag string) string {
		digests[tag] = pushed(t, h.registry, "team/app:"+tag, fmt.Sprintf(`{"os":"linux","architecture":"amd64","config":{"Labels":{"n":%q}}}`, tag), func(raw string) string { return raw })
		return digests[tag]
	}
	client, err := restclient.HTTPClientFor(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	// trusted are the images that every door trusts; of the others none does
	trusted := func(step string, all ...string) {
		t.Helper()
		for tag, digest := range digests {
			want := "False"
			for _, one := range all {
				if one == tag {
					want = "True"
				}
			}
			h.want(step+": "+tag, digest, want, map[string]string{"team/app": want})
			if got := askAdmission(t, client, h.Config.Host+admission.Path+"?timeout=5s", review(host+"/team/app@"+digest)); got.Allowed != (want == "True") {
				t.Errorf("%s: admission of %s says %+v", step, tag, got)
			}
		}
	}
	run := func(args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := tidewaiter(t, append(args, "--kubeconfig", kubeconfig)...)
		return code, stdout + stderr
	}
	// shown are the lines of a block after its command
	shown := func(command string) (lines []string) {
		t.Helper()
		_, said, _ := strings.Cut(block("$ "+command), "\n")
		for line := range strings.Lines(said) {
			if line = strings.TrimSpace(line); line != "…" && !strings.HasPrefix(line, "asking ") {
				lines = append(lines, line)
			}
		}
		return lines
	}

	h.bring("team/app", push("v1"), byKey(digests["v1"]))
	h.importTag("team/app:v1")
	trusted("with the key", "v1")
	code, said := run("policy", "preview", "-f", filepath.Join(dir, "release.yaml"))
	for _, line := range shown("tidewaiter policy preview -f release.yaml") {
		if code != 0 || !strings.Contains(said, line) {
			t.Errorf("the preview ends with %d and says\n%swant %s", code, said, line)
		}
	}
	misspelt := filepath.Join(dir, "misspelt.yaml")
	if err := os.WriteFile(misspelt, []byte(strings.Replace(both, "  alternatives: release\n", "  alternatives: relaese\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said := run("policy", "preview", "-f", misspelt); !strings.Contains(said, "True → False") || !strings.Contains(said, `is the group of the policy keyless misspelt?`) {
		t.Errorf("the preview of a misspelt group says\n%s", said)
	}

	apply(ofKey)
	said = fmt.Sprint(notes.all)
	if want := `images must meet this policy: no other one of the alternatives "release" has the scope ` + host + "/team"; !strings.Contains(said, want) {
		t.Errorf("the warnings are %s, want %s", said, want)
	}
	before := len(notes.all)
	trusted("the key alone in its group", "v1")
	if apply(ofKeyless); len(notes.all) != before {
		t.Errorf("the second policy of a group is warned of: %v", notes.all)
	}
	trusted("with both", "v1")
	h.bring("team/app", push("v2"), byKey(digests["v2"]), byIdentity(subject, digests["v2"]))
	h.importTag("team/app:v2")
	h.bring("team/app", push("v3"), byIdentity(subject, digests["v3"]))
	h.importTag("team/app:v3")
	trusted("signed with both", "v1", "v2", "v3")
	h.bring("team/app", push("v4"), byIdentity(strings.Replace(subject, "acme", "other", 1), digests["v4"]))
	h.importTag("team/app:v4")
	trusted("signed by a stranger", "v1", "v2", "v3")
	if code, said := run("describe", host+"/team/app:v1"); code != 0 || !strings.Contains(said, "key (not keyless)") {
		t.Errorf("describe says\n%s", said)
	}
	if _, said := run("describe", host+"/team/app:v2"); !strings.Contains(said, "key,keyless ") {
		t.Errorf("describe of what both signed says\n%s", said)
	}
	for _, name := range []string{"key", "keyless"} {
		const want = "4 images in 1 repository; 1 does not meet it; 1 meets only an alternative"
		of.await(name, want, func(o *unstructured.Unstructured) bool {
			return o != nil && strings.Contains(fmt.Sprint(o.Object["status"]), want)
		})
	}

	code, said = run("impact", "--revoke-key", filepath.Join(dir, "cosign.pub"))
	for _, line := range shown("tidewaiter impact --revoke-key cosign.pub") {
		if line = strings.Replace(line, "revoking cosign.pub", "", 1); code != 0 || !strings.Contains(said, line) {
			t.Errorf("impact ends with %d and says\n%swant %s", code, said, line)
		}
	}
	for tag, depends := range map[string]bool{"v1": true, "v2": false, "v3": false} {
		if strings.Contains(said, "app:"+tag) != depends || strings.Contains(said, digests[tag][7:19]) && !depends {
			t.Errorf("impact says of %s\n%s", tag, said)
		}
	}
	if _, said := run("impact", "--remove-policy", "keyless"); !strings.Contains(said, "app:v3") || strings.Contains(said, "app:v1") || strings.Contains(said, "app:v2") {
		t.Errorf("what depends on the identity is\n%s", said)
	}
	if !strings.Contains(block("kubectl delete"), "clusterimagepolicy key\n") {
		t.Error("the page deletes something else")
	}
	if err := of.Delete(t.Context(), "key", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	trusted("without the key", "v2", "v3")
}
