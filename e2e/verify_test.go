package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// verdict is what `tidewaiter verify -o json` prints.
type verdict struct {
	Digest, Verified, Policy string
	Signers                  []string
	Signatures               []json.RawMessage
}

// verify asks about a reference and checks the exit code.
func verify(t *testing.T, code int, args ...string) (v verdict, stderr string) {
	t.Helper()
	r := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append([]string{"verify", "-o", "json"}, args...), Dir: t.TempDir(), Env: []string{"HOME=" + t.TempDir()}})
	if r.Code != code {
		t.Errorf("verify %v: exit code %d, want %d: %s%s", args, r.Code, code, r.Stdout, r.Stderr)
	}
	if r.Stdout != "" {
		if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil {
			t.Fatalf("%v: %s", err, r.Stdout)
		}
	}
	return v, r.Stderr
}

// Scripts go by the exit code: 0 trusted, 1 not, 2 could not tell. No server takes part.
func TestVerifyExitCodes(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	c := newCosign(t)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	trust := writePolicy(t, c.policyOf("ours", r.Host, "ours", "MatchRepository"))
	all := images.Numbered(t, 4)
	push := func(repository string, i int, keys ...string) (ref string) {
		ref = r.Push(t, repository+":v1", all[i])
		for _, key := range keys {
			c.sign("legacy", key, r.Host+"/"+repository+"@"+images.Digest(t, all[i]).String())
		}
		return ref
	}
	signed, both := push("signed", 0, "ours"), push("both", 1, "theirs", "ours")
	strange, unsigned := push("strange", 2, "theirs"), push("unsigned", 3)
	index := images.MultiArch(t)
	indexRef := r.Push(t, "index:v1", index)
	c.sign("legacy", "ours", r.Host+"/index@"+images.Digest(t, index).String())
	child := r.Host + "/index@" + images.Children(t, index)[0].Digest.String()
	list := images.DockerList(t)
	listRef := r.Push(t, "list:v1", list)
	listChild := r.Host + "/list@" + images.Children(t, list)[0].Digest.String()
	c.sign("legacy", "ours", listChild)
	broken, elsewhere := writePolicy(t, "kind: ClusterImagePolicy\n"), writePolicy(t, c.policyOf("elsewhere", "elsewhere.example.com", "ours", "MatchRepository"))

	for _, tc := range []struct {
		name, ref, policy string
		code              int
		verified          string
		signatures        int
	}{
		{"signed", signed, trust, 0, "True", 1},
		{"by digest", r.Host + "/signed@" + images.Digest(t, all[0]).String(), trust, 0, "True", 1},
		{"good among bad", both, trust, 0, "True", 2},
		{"index", indexRef, trust, 0, "True", 1},
		{"platform of a signed index", child, trust, 0, "ByIndex", 0},
		{"index of a signed platform", listRef, trust, 1, "Unsigned", 0},
		{"signed platform", listChild, trust, 0, "True", 1},
		{"by a stranger", strange, trust, 1, "False", 1},
		{"unsigned", unsigned, trust, 1, "Unsigned", 0},
		{"no policy covers it", signed, elsewhere, 2, "NoPolicy", 1},
		{"neither policy nor server", signed, "", 2, "", 0},
		{"broken policy", signed, broken, 2, "", 0},
		{"absent", r.Host + "/absent:v1", trust, 2, "", 0},
		{"no registry", "127.0.0.1:1/app:v1", trust, 2, "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{tc.ref}
			if tc.policy != "" {
				args = append(args, "--policy", tc.policy)
			}
			v, stderr := verify(t, tc.code, args...)
			if v.Verified != tc.verified || len(v.Signatures) != tc.signatures {
				t.Errorf("verified %q with %d signatures, want %q with %d: %s", v.Verified, len(v.Signatures), tc.verified, tc.signatures, stderr)
			}
		})
	}
}

// Verdicts are the server's: it judges what is posted, overrides what clients claim, and follows
// the policy's file.
func TestVerdictsOfAServer(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	c := newCosign(t)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	ours, theirs := c.policyOf("ours", r.Host, "ours", "MatchRepository"), c.policyOf("theirs", r.Host, "theirs", "MatchRepository")
	file := writePolicy(t, ours)
	s := harness.StartServer(t, "--policy", file)
	image := images.Busybox(t)
	digest := images.Digest(t, image).String()
	ref := r.Push(t, "team/app:v1", image)
	s.Import(t, ref)
	c.sign("legacy", "ours", r.Host+"/team/app@"+digest)
	c.sign("legacy", "theirs", r.Host+"/team/app@"+digest)
	found, _ := verify(t, 0, "--policy", file, ref)
	if len(found.Signatures) != 2 {
		t.Fatalf("%d signatures were found, want 2", len(found.Signatures))
	}
	if !bytes.Contains(found.Signatures[0], []byte("SignatureVerified")) {
		// they come in the order of their hashes
		slices.Reverse(found.Signatures)
	}
	client := restClient(t, s.Config(t))
	post := func(raw json.RawMessage) {
		t.Helper()
		var signature map[string]any
		if err := json.Unmarshal(raw, &signature); err != nil {
			t.Fatal(err)
		}
		signature["apiVersion"], signature["kind"] = "image.openshift.io/v1", "ImageSignature"
		body, err := json.Marshal(signature)
		if err != nil {
			t.Fatal(err)
		}
		if code, text := answer(t, client.Post().AbsPath("/apis/image.openshift.io/v1/imagesignatures").Body(body)); code != http.StatusCreated {
			t.Errorf("POST: %d: %s", code, text)
		}
	}
	column := func(want string) error {
		rows := lines(s.Kubectl(t, "get", "image", digest, "-o", "wide"))
		if got := cells(rows[0], rows[1])["VERDICT"]; got != want {
			return fmt.Errorf("VERDICT is %s, want %s", got, want)
		}
		return nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	selected := func(selector string) string {
		t.Helper()
		return strings.TrimSpace(s.Kubectl(t, "get", "images", "--field-selector", selector, "-o", "jsonpath={.items[*].metadata.name}"))
	}

	must(column("Unsigned"))
	t.Run("posted signatures", func(t *testing.T) {
		post(found.Signatures[1])
		expectVerdicts(t, s, digest, "SigstoreSimpleSigningV1 Trusted=False/NoMatchingKey ForImage=Unknown")
		must(column("False"))
		post(found.Signatures[0])
		expectVerdicts(t, s, digest, "SigstoreSimpleSigningV1 Trusted=False/NoMatchingKey ForImage=Unknown", legacyTrusted)
		must(column("True"))
		if got := selected("signatures.verified=True,signatures.signer=ours"); got != digest {
			t.Errorf("the selector finds %q", got)
		}
	})
	t.Run("a client's own verdict", func(t *testing.T) {
		claim := `[{"op":"replace","path":"/signatures/0/conditions/0/status","value":"Unknown"},{"op":"replace","path":"/signatures/0/conditions/1/status","value":"Unknown"},
			{"op":"replace","path":"/signatures/1/conditions/0/status","value":"Unknown"}]`
		result := s.TryKubectl(t, "patch", "image", digest, "--type", "json", "-p", claim)
		wantContains(t, "the warning", result.Stderr, "computed by the server")
		expectVerdicts(t, s, digest, "SigstoreSimpleSigningV1 Trusted=False/NoMatchingKey ForImage=Unknown", legacyTrusted)
	})
	t.Run("describe", func(t *testing.T) {
		all := signaturesOf(t, s, digest)
		if got := ocStatus(all[0]) + " " + ocStatus(all[1]); got != "Unverified Verified" {
			t.Errorf("oc describe image prints %s", got)
		}
		if all[1].IssuedTo == nil || all[1].IssuedTo.CommonName != "ours" {
			t.Errorf("issued to %v", all[1].IssuedTo)
		}
		wantContains(t, "the message", all[1].Conditions[0].Message, `policy "ours" for `, `: signed by key sha256:`)
	})
	write := func(text string) {
		t.Helper()
		// As a careful administrator does: nobody reads half a file.
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	metric := func(name string) string {
		t.Helper()
		for _, l := range lines(s.Kubectl(t, "get", "--raw", "/metrics")) {
			if value, ok := strings.CutPrefix(l, name+" "); ok {
				return value
			}
		}
		return "absent"
	}
	t.Run("broken file", func(t *testing.T) {
		write("kind: ClusterImagePolicy\nspec: {scope: [a]}\n")
		harness.Eventually(t, func() error {
			if got := metric("tidewaiter_policy_last_reload_successful"); got != "0" {
				return fmt.Errorf("the metric is %s", got)
			}
			if got := s.Kubectl(t, "get", "events", "-A", "--field-selector", "reason=PolicyInvalid", "-o", "jsonpath={.items[*].message}"); !strings.Contains(got, filepath.Base(file)) {
				return fmt.Errorf("the Event says %q", got)
			}
			return nil
		})
		wantContains(t, "the log", s.Logs(), "the old ones stay in force")
		must(column("True"))
	})
	t.Run("another key", func(t *testing.T) {
		write(theirs)
		harness.Eventually(t, func() error {
			if got := metric("tidewaiter_policy_last_reload_successful"); got != "1" {
				return fmt.Errorf("the metric is %s", got)
			}
			if got := verdicts(t, s, digest); got[1] != legacyTrusted || !strings.Contains(got[0], "Trusted=False") {
				return fmt.Errorf("verdicts %v", got)
			}
			return nil
		})
		if got := selected("signatures.signer=theirs"); got != digest {
			t.Errorf("the selector finds %q", got)
		}
		if got := selected("signatures.signer=ours"); got != "" {
			t.Errorf("the selector still finds %q", got)
		}
	})
	t.Run("verify --all", func(t *testing.T) {
		out := harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"verify", "--all", "--kubeconfig", s.Kubeconfig}})
		if out != "1 image: 1 True, 0 ByIndex, 0 False, 0 Unknown, 0 Unsigned, 0 NoPolicy; 0 verdicts changed\n" {
			t.Errorf("it prints %q", out)
		}
	})
}

// ocStatus is what `oc describe image` prints as the status of a signature: by oc's
// pkg/helpers/describe (describeImageSignature) it is Verified if issuedBy is there at all,
// whatever the conditions say.
func ocStatus(s storedSignature) string {
	if s.IssuedBy == nil {
		return "Unverified"
	}
	return "Verified"
}

// On an image that no policy covers, what an administrator saves with `oc adm
// verify-image-signature --save` stays, also when all images are judged again. Once a policy covers
// it, the server judges. The requests are those that oc makes (pkg/cli/admin/verifyimagesignature):
// it asks who its user is, gets the Image, and puts it back with its own conditions.
func TestAdministratorsVerdict(t *testing.T) {
	t.Parallel()
	g := newGPG(t)
	keyring := g.keys("ed25519")
	dir := filepath.Join(t.TempDir(), "data")
	s := harness.StartServerOn(t, dir)
	digest := "sha256:" + strings.Repeat("ab", 32)
	ref := "registry.example.com/team/app"
	output := filepath.Join(g.home, "signature")
	g.sign("ed25519", digest, ref+":v1", output)
	content, err := os.ReadFile(output)
	must(t, err)
	signature := map[string]any{"metadata": map[string]any{"name": digest + "@one"}, "type": "AtomicImageV1", "content": content}
	image := map[string]any{"apiVersion": "image.openshift.io/v1", "kind": "Image", "metadata": map[string]any{"name": digest},
		"dockerImageReference": ref + "@" + digest, "signatures": []any{signature}}
	body, err := json.Marshal(image)
	must(t, err)
	s.KubectlStdin(t, string(body), "create", "-f", "-")
	judgeAll := func() { // and when it returns, the server writes nothing by itself
		t.Helper()
		harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"verify", "--all", "--fail-on", "none", "--data-dir", dir}})
	}
	judgeAll()
	expectVerdicts(t, s, digest, "AtomicImageV1 Trusted=Unknown/NoMatchingPolicy ForImage=Unknown")

	client := restClient(t, s.Config(t))
	code, text := answer(t, client.Get().AbsPath("/apis/user.openshift.io/v1/users/~"))
	var user struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal([]byte(text), &user); err != nil || code != http.StatusOK || user.Metadata.Name == "" {
		t.Fatalf("who am I: %d: %v: %s", code, err, text)
	}
	stored := getImage(t, s, digest)
	signatures, _, err := unstructured.NestedSlice(stored.Object, "signatures")
	must(t, err)
	now := time.Now().UTC().Format(time.RFC3339)
	saved := signatures[0].(map[string]any)
	saved["conditions"] = []any{
		map[string]any{"type": "Trusted", "status": "True", "lastProbeTime": now, "lastTransitionTime": now,
			"reason": "manually verified", "message": fmt.Sprintf("verified by user %q", user.Metadata.Name)},
		map[string]any{"type": "ForImage", "status": "True", "lastProbeTime": now, "lastTransitionTime": now},
	}
	saved["issuedBy"] = map[string]any{"commonName": "199E2F91FD431D51"}
	must(t, unstructured.SetNestedSlice(stored.Object, signatures, "signatures"))
	body, err = json.Marshal(stored.Object)
	must(t, err)
	if code, text := answer(t, client.Put().AbsPath(imagesPath, digest).Body(body)); code != http.StatusOK {
		t.Fatalf("PUT: %d: %s", code, text)
	}

	judgeAll()
	expectVerdicts(t, s, digest, "AtomicImageV1 Trusted=True/manually verified ForImage=True")
	got := signaturesOf(t, s, digest)[0]
	if ocStatus(got) != "Verified" || got.IssuedBy.CommonName != "199E2F91FD431D51" {
		t.Errorf("oc describe image prints %s, issued by %v", ocStatus(got), got.IssuedBy)
	}
	rows := lines(s.Kubectl(t, "get", "image", digest, "-o", "wide"))
	if c := cells(rows[0], rows[1]); c["VERDICT"] != "True" {
		t.Errorf("the table:\n%s", strings.Join(rows, "\n"))
	}
	if code := s.Terminate(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}

	// A policy for somebody else's key: the server's word counts.
	theirs := newGPG(t)
	s = harness.StartServerOn(t, dir, "--policy", writePolicy(t, gpgPolicy("registry.example.com", theirs.keys("rsa2048"))))
	harness.Eventually(t, func() error {
		if got := verdicts(t, s, digest); got[0] != "AtomicImageV1 Trusted=False/NoMatchingKey ForImage=Unknown" {
			return fmt.Errorf("verdicts %v", got)
		}
		return nil
	})
	if got := signaturesOf(t, s, digest)[0]; ocStatus(got) != "Unverified" {
		t.Errorf("oc describe image prints %s", ocStatus(got))
	}
	// Nor does the key that did sign it, once a policy trusts it, need an administrator.
	if code := s.Terminate(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	s = harness.StartServerOn(t, dir, "--policy", writePolicy(t, gpgPolicy("registry.example.com", keyring)))
	harness.Eventually(t, func() error {
		if got := signaturesOf(t, s, digest)[0]; ocStatus(got) != "Verified" || got.Conditions[0].Reason != "SignatureVerified" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}
