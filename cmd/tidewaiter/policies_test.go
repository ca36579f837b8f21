package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/config"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// policies is a client for the policies of a server.
type policies struct {
	dynamic.ResourceInterface
	t testing.TB
}

func policiesOf(t testing.TB, config *restclient.Config) policies {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return policies{c.Resource(policyapi.GroupVersion.WithResource("clusterimagepolicies")), t}
}

// object is a document as an object.
func object(t testing.TB, document string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func (p policies) create(document string) *unstructured.Unstructured {
	p.t.Helper()
	o, err := p.Create(p.t.Context(), object(p.t, document), metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

// apply is kubectl apply --server-side.
func (p policies) apply(document string) (*unstructured.Unstructured, error) {
	p.t.Helper()
	o := object(p.t, document)
	body, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.Patch(p.t.Context(), o.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "test"})
}

// await waits until a policy is as is says, which may be that it is gone, as nil.
func (p policies) await(name, what string, is func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	p.t.Helper()
	var o *unstructured.Unstructured
	if !within(time.Minute, func() bool {
		var err error
		o, err = p.Get(p.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			o, err = nil, nil
		}
		if err != nil {
			p.t.Fatal(err)
		}
		return is(o)
	}) {
		p.t.Fatalf("policy %s is not %s: %v", name, what, o)
	}
	return o
}

// condition is "<status> <reason>: <message>" of a policy, "" if it has none of that type.
// It leaves out when images were counted.
func condition(o *unstructured.Unstructured, kind string) string {
	if o == nil {
		return ""
	}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c := c.(map[string]any); c["type"] == kind {
			message, _, _ := strings.Cut(fmt.Sprint(c["message"]), ", as of ")
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], message)
		}
	}
	return ""
}

// keyPolicy trusts a key for everything below registry.example.com.
func keyPolicy(name string, key *signaturestest.Key) string {
	return signaturestest.Document(name, `["registry.example.com"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
}

// A policy is in force as soon as the write is answered, and stored verdicts follow within seconds,
// whether it comes, changes or goes. Its status says what it covers.
func TestVerdictsFollowPolicyObjects(t *testing.T) {
	t.Parallel()
	const n = 300
	dir := t.TempDir()
	names, trust := seedSigned(t, dir, n)
	s := runProcess(t, dir)
	client := policiesOf(t, s.Config)
	images, err := imageclient.New(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile(trust)
	if err != nil {
		t.Fatal(err)
	}
	s.awaitVerdicts(t, n, verdicts.NoPolicy)
	client.create(string(document))
	// An image that is written now is judged by it now, whatever the sweep has come to.
	image, err := images.Get(t.Context(), names[n-1], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again := image.DeepCopy()
	again.Annotations = map[string]string{"tidewaiter.dev/signature-policy": "again"}
	if again, err = images.Update(t.Context(), again, metav1.UpdateOptions{}); err == nil {
		if v, _, _ := signatures.Summary(again); v != verdicts.VerifiedTrue {
			t.Errorf("an image that was written after the policy is %s", v)
		}
	} else if !apierrors.IsConflict(err) { // the sweep was there first
		t.Error(err)
	}
	s.awaitVerdicts(t, n, verdicts.VerifiedTrue)
	client.await("signed", "covering all", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionCoversImages) == "True ImagesFound: 300 images in 1 repository"
	})

	if _, err := client.apply(keyPolicy("signed", signaturestest.NewKey(t, signaturestest.P256))); !apierrors.IsConflict(err) {
		t.Errorf("another manager's fields are applied: %v", err)
	}
	other := object(t, keyPolicy("signed", signaturestest.NewKey(t, signaturestest.P256)))
	patch, err := json.Marshal(map[string]any{"spec": other.Object["spec"]})
	if err != nil {
		t.Fatal(err)
	}
	o, err := client.Patch(t.Context(), "signed", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil || o.GetGeneration() != 2 {
		t.Fatalf("generation %d, %v", o.GetGeneration(), err)
	}
	s.awaitVerdicts(t, n, verdicts.VerifiedFalse)
	if err := client.Delete(t.Context(), "signed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitVerdicts(t, n, verdicts.NoPolicy)

	// It is in force from the first moment of the next server, too.
	client.create(string(document))
	s.awaitVerdicts(t, n, verdicts.VerifiedTrue)
	s.kill()
	s = runProcess(t, dir)
	if p := s.swept(t, func(p reverify.Progress) bool { return !p.Running }); p.Changed != 0 || p.Verified[verdicts.VerifiedTrue] != n {
		t.Errorf("after a restart: %+v", p)
	}
}

// awaitVerdicts waits until all of n images have a verdict.
func (p *process) awaitVerdicts(t testing.TB, n int64, verdict string) {
	t.Helper()
	client := progressClient(t, p.Config)
	servertest.Eventually(t, fmt.Sprintf("%d images that are %s", n, verdict), func() bool {
		progress, err := askVerification(t.Context(), client.Get())
		if err != nil {
			t.Fatal(err)
		}
		return !progress.Running && progress.Verified[verdict] == n
	})
}

// BenchmarkPolicyChange is the time from a change of a policy that is an object to the last of
// 1,000 stored verdicts, all of which change, and what of a processor the server took for it.
func BenchmarkPolicyChange(b *testing.B) {
	const n = 1000
	dir := b.TempDir()
	_, trust := seedSigned(b, dir, n)
	document, err := os.ReadFile(trust)
	if err != nil {
		b.Fatal(err)
	}
	s := runProcess(b, dir)
	client := policiesOf(b, s.Config)
	s.awaitVerdicts(b, n, verdicts.NoPolicy)
	cpu := s.metric(b, "process_cpu_seconds_total")
	changes := 0
	for b.Loop() {
		client.create(string(document))
		s.awaitVerdicts(b, n, verdicts.VerifiedTrue)
		if err := client.Delete(b.Context(), "signed", metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		s.awaitVerdicts(b, n, verdicts.NoPolicy)
		changes += 2
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(b.Elapsed().Seconds()/float64(changes), "s/change")
	b.ReportMetric((s.metric(b, "process_cpu_seconds_total")-cpu)/float64(changes), "cpu-s/change")
}

// What package policy refuses is answered with the field that is wrong; nothing of it is stored.
func TestPolicyObjectsAreValidated(t *testing.T) {
	t.Parallel()
	client := policiesOf(t, serve(t))
	key := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	const scope = `["registry.example.com"]`
	for _, tt := range []struct{ what, document, field, message string }{
		{"no scopes", signaturestest.Document("wrong", "[]", key, ""), "spec.scopes", "is required"},
		{"a scope", signaturestest.Document("wrong", `["registry.example.com", "a*.example.com"]`, key, ""), "spec.scopes[1]", "a wildcard is only allowed"},
		{"a member too much", signaturestest.Document("wrong", scope, strings.Replace(key, "}}", "}, pki: {pkiCertificateSubject: {email: a@b}}}", 1), ""), "spec.policy.rootOfTrust.pki", "forbidden"},
		{"a key", signaturestest.Document("wrong", scope, "{policyType: PublicKey, publicKey: {keyData: "+signaturestest.B64([]byte("junk"))+"}}", ""), "spec.policy.rootOfTrust.publicKey.keyData", "is not a public key"},
		{"an identity", signaturestest.Document("wrong", scope, key, "{matchPolicy: ExactRepository}"), "spec.policy.signedIdentity.exactRepository", "is required"},
		{"a name", signaturestest.Document("Wrong", scope, key, ""), "metadata.name", "RFC 1123"},
		{"a file", signaturestest.Document("wrong", scope, "{policyType: PublicKey, publicKey: {keyPath: /etc/passwd}}", ""), "spec.policy.rootOfTrust.publicKey.keyPath", "does not read a file"},
	} {
		_, err := client.Create(t.Context(), object(t, tt.document), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), ": "+tt.field+": ") || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	for _, field := range []string{"keyData", "rekorKeyData"} {
		broken := object(t, signaturestest.Document("wrong", scope, key, ""))
		if err := unstructured.SetNestedField(broken.Object, "-----BEGIN PUBLIC KEY-----", "spec", "policy", "rootOfTrust", "publicKey", field); err != nil {
			t.Fatal(err)
		}
		want := "spec.policy.rootOfTrust.publicKey." + field + ": is not base64"
		if _, err := client.Create(t.Context(), broken, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a field that is not base64: %v", err)
		}
	}
	// The same by every way to write: the field, and no error of the server.
	client.create(signaturestest.Document("written", scope, key, ""))
	const rubbish = "-----BEGIN PUBLIC KEY-----"
	for patchType, patch := range map[types.PatchType]string{
		types.ApplyPatchType:          strings.Replace(signaturestest.Document("written", scope, "{policyType: PublicKey, publicKey: {keyData: "+rubbish+"}}", ""), "---\n", "", 1),
		types.MergePatchType:          `{"spec":{"policy":{"rootOfTrust":{"publicKey":{"keyData":"` + rubbish + `"}}}}}`,
		types.StrategicMergePatchType: `{"spec":{"policy":{"rootOfTrust":{"publicKey":{"keyData":"` + rubbish + `"}}}}}`,
		types.JSONPatchType:           `[{"op":"replace","path":"/spec/policy/rootOfTrust/publicKey/keyData","value":"` + rubbish + `"}]`,
	} {
		force := true
		options := metav1.PatchOptions{}
		if patchType == types.ApplyPatchType {
			options = metav1.PatchOptions{FieldManager: "test", Force: &force}
		}
		_, err := client.Patch(t.Context(), "written", patchType, []byte(patch), options)
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code/100 != 4 || !strings.Contains(err.Error(), "spec.policy.rootOfTrust.publicKey.keyData: ") || !strings.Contains(err.Error(), "is not base64") {
			t.Errorf("%s of what is not base64: %v", patchType, err)
		} else if status.Status().Code != 422 && status.Status().Code != 400 {
			t.Errorf("%s of what is not base64 is answered %d", patchType, status.Status().Code)
		}
	}
	if err := client.Delete(t.Context(), "written", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	misspelt := object(t, signaturestest.Document("wrong", scope, key, ""))
	if err := unstructured.SetNestedField(misspelt.Object, "x", "spec", "policy", "rootOfTrust", "publicKey", "rekorKeydata"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), misspelt, metav1.CreateOptions{FieldValidation: "Strict"}); err == nil || !strings.Contains(err.Error(), `unknown field "spec.policy.rootOfTrust.publicKey.rekorKeydata"`) {
		t.Errorf("a field that there is not: %v", err)
	}
	client.create(signaturestest.Document("right", scope, key, ""))
	if _, err := client.Patch(t.Context(), "right", types.MergePatchType, []byte(`{"spec":{"scopes":["*.*"]}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), ": spec.scopes[0]: ") {
		t.Errorf("an update: %v", err)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d policies, %v", len(list.Items), err)
	}
}

// A bound that would have no effect is refused at every way in, with what to write: its name is
// misspelt, it has no value, or it is a label.
func TestBoundsWithoutEffectAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serving := serveWith(t, server.Options{DataDir: filepath.Join(dir, "data"), Isolated: true}, listen(t))
	client, reviews := policiesOf(t, serving), newReviewer(t, serving)
	document := signaturestest.Document("bound", `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
	client.create(document)
	for i, tt := range []struct{ kind, key, value, want string }{
		{"annotations", "tidewaiter.dev/max-tag-age", "", "is empty: write a duration such as 10m, or leave the annotation out"},
		{"annotations", "tidewaiter.dev/immutable-tags", "", "is empty: write patterns of tags, such as v*, *-release, or leave the annotation out"},
		{"annotations", "tidewaiter.dev/admission", "", "is empty: write enforce, warn or audit, or leave the annotation out"},
		{"annotations", "max-tag-age", "10m", "did you mean tidewaiter.dev/max-tag-age?"},
		{"annotations", "www.tidewaiter.dev/max-tag-age", "10m", "did you mean tidewaiter.dev/max-tag-age?"},
		{"annotations", "tidewaiter.dev/max-tag-ag", "10m", "did you mean tidewaiter.dev/max-tag-age?"},
		{"labels", "tidewaiter.dev/immutable-tags", "all", "has no meaning as a label: write tidewaiter.dev/immutable-tags under metadata.annotations"},
	} {
		want := "metadata." + tt.kind + "." + tt.key + ": "
		refused := func(way string, said string) {
			t.Helper()
			if !strings.Contains(said, want) || !strings.Contains(said, tt.want) {
				t.Errorf("%s of %s %s: %q, want %q", way, tt.kind, tt.key, said, want+tt.want)
			}
		}
		bound := strings.Replace(document, "metadata: {", fmt.Sprintf("metadata: {%s: {%q: %q}, ", tt.kind, tt.key, tt.value), 1)
		for way, write := range map[string]func() error{
			"creation": func() error {
				_, err := client.Create(t.Context(), object(t, strings.Replace(bound, "name: bound", "name: other", 1)), metav1.CreateOptions{})
				return err
			},
			"apply": func() error {
				_, err := client.apply(bound)
				return err
			},
			"a patch": func() error {
				_, err := client.Patch(t.Context(), "bound", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{%q:{%q:%q}}}`, tt.kind, tt.key, tt.value), metav1.PatchOptions{})
				return err
			},
		} {
			if err := write(); !apierrors.IsInvalid(err) {
				t.Errorf("%s of %s %s: %v", way, tt.kind, tt.key, err)
			} else {
				refused(way, err.Error())
			}
		}
		file := filepath.Join(dir, fmt.Sprint(i), "bound.yaml")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(bound), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, said := tidewaiter(t, "policy", "preview", "-f", file, "--kubeconfig", server.KubeconfigPath(filepath.Join(dir, "data")))
		refused("a preview", said)
		_, _, said = tidewaiter(t, "serve", "--data-dir", filepath.Join(dir, "never"), "--secure-port", "0", "--policy", file)
		refused("a file", said)
		raw, err := yaml.YAMLToJSON([]byte(strings.TrimPrefix(bound, "---\n")))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := reviews.client.Post().AbsPath("/apis/tidewaiter.dev/v1/impactreviews").SetHeader("Content-Type", "application/json").
			Body(fmt.Appendf(nil, `{"apiVersion":"tidewaiter.dev/v1","kind":"ImpactReview","spec":{"applyPolicies":[%s]}}`, raw)).Do(t.Context()).Raw()
		if err == nil {
			t.Errorf("a review of %s %s is answered", tt.kind, tt.key)
		}
		refused("a review", string(answer))
	}
}

// kubectl apply sends a strategic merge patch of what has changed, the list of keys among it.
func TestKeysOfPoliciesAreApplied(t *testing.T) {
	t.Parallel()
	client := policiesOf(t, serve(t))
	one, two := signaturestest.B64(signaturestest.NewKey(t, signaturestest.P256).PEM), signaturestest.B64(signaturestest.NewKey(t, signaturestest.P256).PEM)
	client.create(signaturestest.Document("keys", `["registry.example.com"]`, "{policyType: PublicKey, publicKey: {keyDatas: ["+one+"]}}", ""))
	patch := `{"spec":{"policy":{"rootOfTrust":{"publicKey":{"keyDatas":["` + one + `","` + two + `"]}}}}}`
	o, err := client.Patch(t.Context(), "keys", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "policy", "rootOfTrust", "publicKey", "keyDatas"); len(got) != 2 || got[0] != one || got[1] != two {
		t.Errorf("the keys are %q", got)
	}
	if _, err := client.Patch(t.Context(), "keys", types.MergePatchType, []byte(`{"spec":{"policy":{"rootOfTrust":{"publicKey":{"keyDatas":["%"]}}}}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "keyDatas[0]: ") {
		t.Errorf("what is not base64: %v", err)
	}
}

// Who replaces a revocation list by an older one, is warned: it may be one that was sent again to
// bring back what was revoked since. A list that is about to end is in the status.
func TestOlderListOfAPolicy(t *testing.T) {
	t.Parallel()
	warned := &warningLog{}
	config := restclient.CopyConfig(serve(t))
	config.WarningHandler = warned
	client := policiesOf(t, config)
	ca, key := signaturestest.IssueCA(t, "ca", nil, nil, time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0))
	list := func(number int64, until time.Duration) string {
		t.Helper()
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(until)}, ca, key)
		if err != nil {
			t.Fatal(err)
		}
		return signaturestest.B64(der)
	}
	client.create(signaturestest.Document("lists", `["registry.example.com"]`, "{policyType: Notary, notary: {caRootsData: "+signaturestest.B64(signaturestest.CertPEM(t, ca))+", crlData: "+list(2, time.Hour)+", trustedIdentities: ['*']}}", ""))
	for _, step := range []struct{ list, warns, reason string }{
		{list(3, 24*time.Hour), "", "True Usable"},
		{list(2, 24*time.Hour), "number 2", "True Usable"},
		{list(4, time.Minute), "", "True EndsSoon"},
		{list(5, -time.Minute), "no signature can meet this policy", "False Expired"},
	} {
		warned.reset()
		if _, err := client.Patch(t.Context(), "lists", types.MergePatchType, []byte(`{"spec":{"policy":{"rootOfTrust":{"notary":{"crlData":"`+step.list+`"}}}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if text := warned.String(); !strings.Contains(text, step.warns) || step.warns == "" && strings.Contains(text, "revocation list") {
			t.Errorf("the writer is told %q, want %q", text, step.warns)
		}
		client.await("lists", step.reason, func(o *unstructured.Unstructured) bool {
			return strings.HasPrefix(condition(o, policyapi.ConditionSatisfiable), step.reason)
		})
	}
}

// A status says what the server found. A client's word for it is read over, on whatever way it
// comes.
func TestAttackPolicyStatus(t *testing.T) {
	t.Parallel()
	client := policiesOf(t, serve(t))
	o := object(t, keyPolicy("mine", signaturestest.NewKey(t, signaturestest.P256)))
	claim := map[string]any{"conditions": []any{map[string]any{"type": "Satisfiable", "status": "True", "reason": "Claimed", "message": "claimed", "lastTransitionTime": "2026-01-02T03:04:05Z"}}}
	o.Object["status"] = claim
	if _, err := client.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"status": claim})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Patch(t.Context(), "mine", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.Patch(t.Context(), "mine", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("the status is written: %v", err)
	}
	found := client.await("mine", "looked at", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, policyapi.ConditionCoversImages), "False NoImages")
	})
	if c := condition(found, policyapi.ConditionSatisfiable); !strings.HasPrefix(c, "True Usable") {
		t.Error(c)
	}
	if c := condition(found, policyapi.ConditionApplied); !strings.HasPrefix(c, "True InForce") {
		t.Error(c)
	}
}

// What files say is shown as objects, follows them, and is written by nobody else. An object of the
// same name that was there before stays as it is, and says that it does not count.
func TestPolicyFilesAreObjects(t *testing.T) {
	t.Parallel()
	dir, data := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "team.yaml")
	key := signaturestest.NewKey(t, signaturestest.P256)
	write := func(documents ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(documents, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cosign.pub"), key.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	byPath := signaturestest.Document("team", `["registry.example.com"]`, "{policyType: PublicKey, publicKey: {keyPath: cosign.pub}}", "{matchPolicy: MatchRepository}")
	write(byPath)

	before, err := server.Open(t.Context(), server.Options{DataDir: data}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.RunLocally(t.Context(), func(_ context.Context, c *restclient.Config) error {
		policiesOf(t, c).create(keyPolicy("taken", key))
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	write(byPath, keyPolicy("taken", signaturestest.NewKey(t, signaturestest.P256)))
	s, err := server.Open(t.Context(), server.Options{DataDir: data, Policy: dir}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	client := policiesOf(t, runServer(t, s))
	shown := client.await("team", "shown", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionApplied) != ""
	})
	if at := shown.GetAnnotations()[policyapi.FileAnnotation]; at != file+" document 1" {
		t.Errorf("it is of %q", at)
	}
	if got, _, _ := unstructured.NestedString(shown.Object, "spec", "policy", "rootOfTrust", "publicKey", "keyData"); got != signaturestest.B64(key.PEM) {
		t.Errorf("the key is %q", got)
	}
	taken := client.await("taken", "told", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, policyapi.ConditionApplied), "False NameTaken: "+file+" document 2")
	})
	if got, _, _ := unstructured.NestedString(taken.Object, "spec", "policy", "rootOfTrust", "publicKey", "keyData"); got != signaturestest.B64(key.PEM) {
		t.Error("an administrator's object was overwritten")
	}

	again := shown.DeepCopy()
	again.SetLabels(map[string]string{"a": "b"})
	_, updateErr := client.Update(t.Context(), again, metav1.UpdateOptions{})
	_, patchErr := client.Patch(t.Context(), "team", types.MergePatchType, []byte(`{"spec":{"scopes":["*"]}}`), metav1.PatchOptions{})
	_, disownErr := client.Patch(t.Context(), "team", types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
	_, applyErr := client.apply(keyPolicy("team", key))
	_, createErr := client.Create(t.Context(), object(t, keyPolicy("team", key)), metav1.CreateOptions{})
	_, dryErr := client.Patch(t.Context(), "team", types.MergePatchType, []byte(`{"spec":{"scopes":["*"]}}`), metav1.PatchOptions{DryRun: []string{"All"}})
	for what, err := range map[string]error{
		"update": updateErr, "patch": patchErr, "patch that takes the annotation away": disownErr, "apply": applyErr, "create": createErr, "dry run": dryErr,
		"delete":           client.Delete(t.Context(), "team", metav1.DeleteOptions{}),
		"deletecollection": client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=team"}),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "read from "+file+" document 1") {
			t.Errorf("%s: %v", what, err)
		}
	}
	claim := object(t, keyPolicy("claim", key))
	claim.SetAnnotations(map[string]string{policyapi.FileAnnotation: "/etc/policy.yaml document 1"})
	if _, err := client.Create(t.Context(), claim, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a client says that its object is a file's: %v", err)
	}
	if _, err := client.apply(keyPolicy("own", key)); err != nil {
		t.Errorf("an object beside files is applied: %v", err)
	}

	// The watcher's part, without its ticker.
	write(strings.ReplaceAll(byPath, "name: team", "name: crew"))
	set, err := config.LoadPolicies(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verification.Keeper.SetFiles(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	client.await("team", "gone", func(o *unstructured.Unstructured) bool { return o == nil })
	client.await("crew", "shown", func(o *unstructured.Unstructured) bool { return o != nil })
	client.await("taken", "in force", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, policyapi.ConditionApplied), "True InForce")
	})
	if err := client.Delete(t.Context(), "taken", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// A policy that nothing can meet says so: as a warning when it is written, in its status, and once
// in the log.
func TestPolicyThatCannotBeMet(t *testing.T) {
	log := logAt(t, 0)
	warned := &warningLog{}
	config := restclient.CopyConfig(serve(t))
	config.WarningHandler = warned
	client := policiesOf(t, config)
	ca, _ := signaturestest.IssueCA(t, "old", nil, nil, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	gpg := signaturestest.NewGPG(t, "old@example.com", time.Now().Add(-48*time.Hour), time.Hour)
	for name, root := range map[string]string{
		"ca":  "{policyType: PKI, pki: {caRootsData: " + signaturestest.B64(signaturestest.CertPEM(t, ca)) + ", pkiCertificateSubject: {email: a@example.com}}}",
		"gpg": signaturestest.TrustGPG(gpg.Public(t)),
	} {
		client.create(signaturestest.Document(name, `["`+name+`.example.com"]`, root, ""))
		if text := warned.String(); !strings.Contains(text, "no signature can meet this policy") {
			t.Errorf("%s: the writer is told %q", name, text)
		}
		client.await(name, "found wanting", func(o *unstructured.Unstructured) bool {
			return strings.HasPrefix(condition(o, policyapi.ConditionSatisfiable), "False Expired: no signature can meet it: ")
		})
		warned.reset()
	}
	// One that has less than 30 days left says so before.
	ending, _ := signaturestest.IssueCA(t, "ending", nil, nil, time.Now().Add(-time.Hour), time.Now().Add(29*24*time.Hour))
	client.create(signaturestest.Document("soon", `["soon.example.com"]`, "{policyType: PKI, pki: {caRootsData: "+signaturestest.B64(signaturestest.CertPEM(t, ending))+", pkiCertificateSubject: {email: a@example.com}}}", ""))
	client.await("soon", "ending soon", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, policyapi.ConditionSatisfiable), "True EndsSoon: soon fewer signatures meet it, or none: ")
	})
	// Without an image no policy is at fault for covering none.
	raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[]}`, imageIndex)
	images, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := images.Create(t.Context(), &imagev1.Image{
		ObjectMeta:           metav1.ObjectMeta{Name: manifest.Digest([]byte(raw))},
		DockerImageReference: "nowhere.example.com/a:1",
		DockerImageManifest:  raw,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	idle := client.create(keyPolicy("idle", signaturestest.NewKey(t, signaturestest.P256)))
	client.await("idle", "covering nothing", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionCoversImages) == "False NoImages: no image"
	})
	// More that has the status looked at again.
	idle.SetLabels(map[string]string{"a": "b"})
	if _, err := client.Patch(t.Context(), "idle", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	client.create(signaturestest.Document("other", `["other.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""))
	client.await("other", "covering nothing", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionCoversImages) == "False NoImages: no image"
	})
	servertest.Eventually(t, "a line of the log that names a policy that covers nothing", func() bool { return strings.Contains(log.String(), "policy=other") })
	for _, name := range []string{"ca", "gpg", "idle", "other"} {
		if n := strings.Count(log.String(), "policy="+name+" "); n != 1 {
			t.Errorf("policy %s is in the log %d times:\n%s", name, n, log)
		}
	}
}

// Where policies enforce and none has the scope "*", the log, the writer and the status say so,
// until one has it.
func TestPoliciesThatLeaveImagesUncovered(t *testing.T) {
	log := logAt(t, 0)
	warned := &warningLog{}
	config := restclient.CopyConfig(serve(t))
	config.WarningHandler = warned
	client := policiesOf(t, config)
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	audited := func(document string) string {
		return strings.Replace(document, "metadata: {", "metadata: {annotations: {tidewaiter.dev/admission: audit}, ", 1)
	}
	const what = `images that no policy covers are admitted: no policy has the scope "*"`
	client.create(audited(signaturestest.Document("quiet", "[quiet.example.com]", trust, "")))
	if text := warned.String() + log.String(); strings.Contains(text, `scope "*"`) || strings.Contains(text, `scope \"*\"`) {
		t.Errorf("a policy that does not enforce: %s", text)
	}
	client.create(signaturestest.Document("strict", "['h.example.com:443/team']", trust, ""))
	if text := warned.String(); !strings.Contains(text, what) {
		t.Errorf("the writer is told %q", text)
	}
	client.await("strict", "that others are not covered", func(o *unstructured.Unstructured) bool {
		return strings.HasSuffix(condition(o, policyapi.ConditionApplied), what)
	})
	if n := strings.Count(log.String(), "images that none of them covers are admitted"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
	warned.reset()
	client.create(audited(signaturestest.Document("rest", "['*']", trust, "")))
	client.await("strict", "that all are covered", func(o *unstructured.Unstructured) bool {
		return strings.HasSuffix(condition(o, policyapi.ConditionApplied), "unless a more specific scope covers them")
	})
	if text := warned.String(); text != "" {
		t.Errorf("the writer of the rest is told %q", text)
	}
}

// A policy object that cannot be read keeps the server from being ready, not from answering: nobody
// is told a verdict that leaves a policy out, and the object can be deleted.
func TestDamagedPolicyObject(t *testing.T) {
	t.Parallel()
	dir := damaged(t, "/config.openshift.io/clusterimagepolicies/wrecked")
	s, err := server.Open(t.Context(), server.Options{DataDir: dir}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	client := policiesOf(t, s.Web.ClientConfig())
	s.ReadyTimeout = 100 * time.Millisecond
	s.NotReady = func(error) {
		if err := s.Verification.Keeper.Loaded(); err == nil {
			return
		}
		unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
		if err := client.Delete(context.Background(), "wrecked", unsafe); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	if err := s.Verification.Keeper.Loaded(); err == nil || !strings.Contains(err.Error(), "policies in the API") {
		t.Errorf("what cannot be read: %v", err)
	}
	runServer(t, s) // returns once it is ready
	if err := s.Verification.Keeper.Loaded(); err != nil {
		t.Error(err)
	}
}

// warningLog keeps the warnings that a client was sent.
type warningLog struct{ servertest.LogBuffer }

func (w *warningLog) HandleWarningHeader(_ int, _, text string) { fmt.Fprintln(w, text) }

func (w *warningLog) reset() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Buf.Reset()
}

// The policy of a namespace is for its pods: their verdict on an image can be selected and follows
// the policy, and the image's own stays. It is held to the rules of its kind, says what it covers,
// and goes with its namespace.
func TestPoliciesOfNamespaces(t *testing.T) {
	t.Parallel()
	const n = 20
	dir := t.TempDir()
	names, trust := seedSigned(t, dir, n)
	s := runProcess(t, dir)
	dynamicClient, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	spaces := dynamicClient.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	for _, name := range []string{"shop", "bank"} {
		if _, err := spaces.Create(t.Context(), object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	of := dynamicClient.Resource(policyapi.GroupVersion.WithResource("imagepolicies"))
	shop, bank := policies{of.Namespace("shop"), t}, policies{of.Namespace("bank"), t}
	images, err := imageclient.New(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	awaitSelected := func(selector string, want int) {
		t.Helper()
		servertest.Eventually(t, fmt.Sprintf("%d images that are %s", want, selector), func() bool {
			list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items) == want
		})
	}
	document, err := os.ReadFile(trust)
	if err != nil {
		t.Fatal(err)
	}
	namespaced := func(document string) string {
		return strings.Replace(document, "kind: ClusterImagePolicy", "kind: ImagePolicy", 1)
	}

	shop.create(namespaced(string(document)))
	bank.create(namespaced(keyPolicy("signed", signaturestest.NewKey(t, signaturestest.P256))))
	const repository = "registry.example.com/team/app"
	awaitSelected("verdicts=True@"+repository+"#shop", n)
	awaitSelected("verdicts=False@"+repository+"#bank", n)
	awaitSelected("signatures.verified=NoPolicy", n)
	shop.await("signed", "covering all", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionCoversImages) == "True ImagesFound: 20 images in 1 repository" &&
			strings.HasPrefix(condition(o, policyapi.ConditionApplied), "True InForce: for pods of namespace shop")
	})
	bank.await("signed", "met by none", func(o *unstructured.Unstructured) bool {
		return condition(o, policyapi.ConditionCoversImages) == "True ImagesFound: 20 images in 1 repository; 20 do not meet it"
	})

	_, err = shop.Create(t.Context(), object(t, namespaced(signaturestest.Document("wrong", `["a*"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""))), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), ": spec.scopes[0]: ") {
		t.Errorf("a scope that is none: %v", err)
	}
	if o, err := shop.Get(t.Context(), "signed", metav1.GetOptions{}, "status"); err != nil || o.GetNamespace() != "shop" {
		t.Errorf("the status: %v", err)
	}
	if list, err := of.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
		t.Errorf("of all namespaces: %v", err)
	}

	// Those of the cluster stand before them.
	client := policiesOf(t, s.Config)
	client.create(string(document))
	awaitSelected("verdicts=True@"+repository, n)
	awaitSelected("verdicts=True@"+repository+"#shop", 0)
	shop.await("signed", "overridden", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, policyapi.ConditionApplied), "False Overridden: ")
	})
	if err := client.Delete(t.Context(), "signed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitSelected("verdicts=True@"+repository+"#shop", n)

	// A client's word for a verdict does not count.
	image, err := images.Get(t.Context(), names[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation.NamespaceVerdicts, `{"`+repository+`#bank":{"verified":"True"}}`)
	if image, err = images.Patch(t.Context(), image.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if v := annotation.JudgedInNamespaces(image.Annotations)[repository+"#bank"]; v.Verified != verdicts.VerifiedFalse {
		t.Errorf("a client's verdict is stored: %+v", v)
	}

	if err := spaces.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shop.await("signed", "gone", func(o *unstructured.Unstructured) bool { return o == nil })
	awaitSelected("verdicts=True@"+repository+"#shop", 0)
	awaitSelected("verdicts=False@"+repository+"#bank", n)
}

// What policies cover and what the summary counts follows the images that come and go, though
// nobody asks for a sweep.
func TestCountsFollowImages(t *testing.T) {
	t.Parallel()
	config := serve(t)
	client := policiesOf(t, config)
	images, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	client.create(keyPolicy("waits", signaturestest.NewKey(t, signaturestest.P256)))
	paths, err := pathClient(config)
	if err != nil {
		t.Fatal(err)
	}
	await := func(covers string, want map[string]int64) {
		t.Helper()
		client.await("waits", covers, func(o *unstructured.Unstructured) bool {
			return condition(o, policyapi.ConditionCoversImages) == covers
		})
		var got inventory.Summary
		client.await("waits", fmt.Sprintf("beside images that are %v", want), func(*unstructured.Unstructured) bool {
			raw, err := paths.Get().AbsPath(admin.SummaryPath).DoRaw(t.Context())
			if got = (inventory.Summary{}); err != nil || json.Unmarshal(raw, &got) != nil {
				t.Fatalf("%s, %v", raw, err)
			}
			return maps.Equal(got.Verified, want)
		})
		sum := int64(0)
		for _, n := range got.Verified {
			sum += n
		}
		if sum != got.Images {
			t.Errorf("of %d images %v have a verdict", got.Images, got.Verified)
		}
	}
	await("False NoImages: no image", nil)
	raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[]}`, imageIndex)
	var names []string
	for i, name := range []string{"registry.example.com/team/app", "registry.example.com/team/app", "registry.example.com/team/other", "elsewhere.example.com/app"} {
		manifested := strings.Replace(raw, "[]", fmt.Sprintf(`[],"annotations":{"n":"%d"}`, i), 1)
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: manifest.Digest([]byte(manifested))}, DockerImageManifest: manifested}
		image.DockerImageReference = name + "@" + image.Name
		if _, err := images.Create(t.Context(), image, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		names = append(names, image.Name)
	}
	await("True ImagesFound: 3 images in 2 repositories; 3 do not meet it", map[string]int64{verdicts.Unsigned: 3, verdicts.NoPolicy: 1})
	for _, name := range names[1:3] {
		if err := images.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await("True ImagesFound: 1 image in 1 repository; 1 does not meet it", map[string]int64{verdicts.Unsigned: 1, verdicts.NoPolicy: 1})
}

// BenchmarkPolicyWrite is the time that a client waits for a policy that it changes, beside others.
func BenchmarkPolicyWrite(b *testing.B) {
	key := signaturestest.NewKey(b, signaturestest.P256)
	for _, n := range []int{50, 300, 600} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := runProcess(b, b.TempDir())
			client := policiesOf(b, s.Config)
			document := func(i, version int) string {
				return signaturestest.Document(fmt.Sprintf("team-%d", i), fmt.Sprintf(`["registry.example.com/team-%d/v%d"]`, i, version), signaturestest.TrustKey(key, nil), "")
			}
			for i := range n {
				client.create(document(i, 0))
			}
			cpu, writes := s.metric(b, "process_cpu_seconds_total"), 0
			for b.Loop() {
				writes++
				patch, err := json.Marshal(map[string]any{"spec": object(b, document(writes%n, writes)).Object["spec"]})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := client.Patch(b.Context(), fmt.Sprintf("team-%d", writes%n), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((s.metric(b, "process_cpu_seconds_total")-cpu)*1000/float64(writes), "cpu-ms/write")
		})
	}
}
