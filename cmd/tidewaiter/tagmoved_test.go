package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// A tag that must not move is moved, by somebody who may sign. Every door says so until the tag is
// moved back or somebody accepts the move, whether a policy or the configuration forbids it; only a
// policy makes a verdict of it.
func TestImmutableTags(t *testing.T) {
	t.Parallel()
	registry, e, cluster := newUnderPolicy(t), newEar(t), clustertest.New(t)
	push := registry.push
	policy := registry.policyText()
	free := strings.Replace(strings.Replace(policy, "harbour-master\n", "free\n", 1), registry.Host, registry.Host+"/free", 1)
	config := registry.write(map[string]string{
		"policy.yaml":     strings.Replace(policy, "metadata:\n", "metadata:\n  annotations: {tidewaiter.dev/immutable-tags: \"v*, *-release\"}\n", 1) + "---\n" + free,
		"prod.kubeconfig": string(cluster.Kubeconfig()),
		"secret":          "whsec_" + base64.StdEncoding.EncodeToString([]byte(e.secret)),
		"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\nregistries:\n- {prefix: " + registry.Host + "/free, immutableTags: [\"v*\"]}\n- {prefix: " + registry.Host + "}\n" +
			"notify:\n- {name: ci, url: \"" + e.URL + "\", insecure: true, secretFile: secret, events: [tag.overwritten, verdict.turned]}\n",
	})
	options := server.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: config, Policy: registry.policy, Isolated: true}
	serving := serveWith(t, options, listen(t))
	client := httpClient(t, serving)
	reviews := newReviewer(t, serving)
	images, err := imageclient.New(serving)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		t.Helper()
		code, out, errs := tidewaiter(t, append(args, "--kubeconfig", server.KubeconfigPath(options.DataDir))...)
		return out + errs, code
	}
	imports := func(called, tag string) string {
		t.Helper()
		digest := push(called, tag, true)
		if out, code := run("import", registry.Host+"/"+tag); code != cli.ExitOK {
			t.Fatal(out)
		}
		return digest
	}
	overwritten := func(want int) {
		t.Helper()
		var summary struct {
			Overwritten     *int
			OverwrittenTags []struct{ Reference, By, Message string }
		}
		soon(t, fmt.Sprintf("%d tags moved although they must not", want), func() bool {
			raw, err := reviews.client.Get().AbsPath("/tidewaiter/summary").DoRaw(t.Context())
			if err == nil {
				err = json.Unmarshal(raw, &summary)
			}
			if err != nil {
				t.Fatal(err)
			}
			return summary.Overwritten != nil && *summary.Overwritten == want
		})
		for _, tag := range summary.OverwrittenTags {
			if tag.By == "" || !strings.Contains(tag.Message, tag.Reference+" must not move") {
				t.Errorf("the summary says %+v", tag)
			}
		}
	}
	// Every door says the same of a tag.
	doors := func(when, image, verified string, warned bool, says ...string) {
		t.Helper()
		admitted := verified == "True"
		got := askAdmission(t, client, serving.Host+admission.Path+"/prod?timeout=5s", bytes.Replace(review(image), []byte(`"operation"`), []byte(`"dryRun":true,"operation"`), 1))
		said := fmt.Sprint(got.Result, got.AuditAnnotations)
		answer := reviews.ask(answers.Question{Reference: image})[0]
		out, code := run("verify", image)
		if got.Allowed != admitted || answer.Verdict == nil || answer.Verdict.Verified != verified || (code == cli.ExitOK) != admitted || !strings.Contains(out, "verified: "+verified) {
			t.Errorf("%s: a dry run is admitted: %v (%s), the review says %+v, and verify: %s", when, got.Allowed, said, answer.Verdict, out)
			return
		}
		if (answer.Verdict.Reason == answers.ReasonTagMoved) == admitted {
			t.Errorf("%s: the reason is %s", when, answer.Verdict.Reason)
		}
		for _, word := range []string{"True", "False"} {
			list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "references=" + image + ",signatures.verified=" + word})
			if err != nil || (len(list.Items) == 1) != (word == verified) {
				t.Errorf("%s: signatures.verified=%s selects %d images: %v", when, word, len(list.Items), err)
			}
		}
		for _, want := range says {
			for door, text := range map[string]string{"admission": said, "the review": answer.Verdict.Message, "verify": out} {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %s does not say %q: %s", when, door, want, text)
				}
			}
		}
		for _, verb := range []string{"get", "describe", "history", "verify"} {
			out, _ := run(verb, image)
			// describe wraps long lines
			if strings.Contains(strings.Join(strings.Fields(out), " "), image+" must not move (") != warned {
				t.Errorf("%s: %s says %s", when, verb, out)
			}
		}
		if _, stdout, _ := tidewaiter(t, "verify", "-o", "json", image, "--kubeconfig", server.KubeconfigPath(options.DataDir)); strings.Contains(stdout, image+" must not move (") != warned {
			t.Errorf("%s: verify -o json says %s", when, stdout)
		}
	}
	at := registry.Host + "/"
	app, unruled := at+"team/app:v1", at+"free/app:v1"
	first := imports("first", "team/app:v1")
	imports("first", "team/app:latest")
	imports("first", "free/app:v1")
	overwritten(0)
	doors("new", app, "True", false)
	doors("new, by the configuration", unruled, "True", false)

	second := imports("second", "team/app:v1")
	imports("second", "team/app:latest")
	imports("second", "free/app:v1")
	overwritten(2)
	doors("moved", app, "False", true, app+` must not move (policy "harbour-master": v*), and led to another image until `)
	doors("moved, by the configuration", unruled, "True", true)
	doors("one that may move", at+"team/app:latest", "True", false)
	doors("moved, by its digest", at+"team/app@"+second, "True", false)
	for _, tag := range []string{app, unruled} {
		told := e.await("tag.overwritten", tag)
		if told.Data.Image != second || told.Data.Before != first || told.Data.By == "" || !strings.Contains(told.Data.Message, "must not move") {
			t.Errorf("it is told %+v", told)
		}
	}
	// The verdict for the tag turns with the move, and with its acceptance, whether anything runs it.
	turned := func(verified, before, cause string) {
		t.Helper()
		d := e.await("verdict.turned", app+"@"+second).Data
		if d.Verified != verified || d.VerifiedBefore != before || d.Cause != cause || d.Policy != "harbour-master" {
			t.Errorf("it is told %+v", d)
		}
	}
	turned("False", "True", "its tag moved, and must not")
	runs(cluster, "team", app, second)
	verdictHistory(t, options.DataDir, app, "False  it began to run")
	kube := kubernetes.NewForConfigOrDie(serving)
	soon(t, "there is an Event of the verdict", func() bool {
		list, err := kube.CoreV1().Events(tags.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SignatureRejected,involvedObject.name=" + second})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 1 && strings.HasPrefix(list.Items[0].Message, "It is not verified in "+app+": "+app+" must not move")
	})
	soon(t, "there are Events", func() bool {
		list, err := kube.CoreV1().Events(tags.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=TagOverwritten,type=Warning"})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 2 && strings.Contains(list.Items[0].Message, "must not move")
	})
	// What runs is judged by what it is: a pod from before the move is verified.
	for digest, want := range map[string]string{first: "True", second: "False"} {
		if got := reviews.ask(answers.Question{Reference: app, Runs: digest})[0].Verdict; got == nil || got.Verified != want {
			t.Errorf("what runs %s by the tag has the verdict %+v, want %s", digest, got, want)
		}
	}

	imports("first", "team/app:v1")
	overwritten(1)
	doors("moved back", app, "True", false)
	if out, code := run("accept", app); code != exitAbsent || !strings.Contains(out, "leads where it must") {
		t.Errorf("accept says %d: %s", code, out)
	}

	imports("second", "team/app:v1")
	doors("moved again", app, "False", true)
	ref, err := reference.Parse(app)
	if err != nil {
		t.Fatal(err)
	}
	tag := tags.Name(ref)
	for _, patch := range []string{`"tidewaiter.dev/accept":"` + first + `"`, `"tidewaiter.dev/accept":""`, `"tidewaiter.dev/accept-reason":"because"`} {
		if _, err := images.PatchTag(t.Context(), tag, []byte(`{"metadata":{"annotations":{`+patch+`}}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
	// Nobody says by themselves what was accepted, or where the tag led first.
	forged := `{"metadata":{"annotations":{"tidewaiter.dev/accepted":"[{\"digest\":\"` + second + `\"}]","tidewaiter.dev/first":"` + second + `"}}}`
	if after, err := images.PatchTag(t.Context(), tag, []byte(forged), metav1.PatchOptions{}); err != nil || tags.Kept(after) != first {
		t.Errorf("the tag must lead to %s, %v", tags.Kept(after), err)
	}
	if out, code := run("accept", app, "--digest", first); code != cli.ExitNone || !strings.Contains(out, "leads to "+second) {
		t.Errorf("accept says %d: %s", code, out)
	}
	if out, code := run("accept", app, "--digest", second, "--reason", "rebuilt"); code != cli.ExitOK {
		t.Errorf("accept says %d: %s", code, out)
	}
	doors("accepted", app, "True", false)
	overwritten(1)
	turned("False", "True", "its tag moved, and must not") // again, after it moved back
	turned("True", "False", "its tag may lead to it now")
	verdictHistory(t, options.DataDir, app, "True False its tag may lead to it now", "False  it began to run")
	if out, _ := run("history", app); !strings.Contains(out, "accepted: sha256:"+second[7:19]) || !strings.Contains(out, "tidewaiter-admin: rebuilt") {
		t.Errorf("the history says %s", out)
	}
	// From now on it must lead there, and not to what it led to before.
	imports("first", "team/app:v1")
	doors("moved back after that", app, "False", true)

	// An auditor learns of a tag that nothing runs, and a namespace's report has only tags that ran.
	from, until := time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Format(time.RFC3339)
	for args, want := range map[string]bool{"-A": true, "-n team": false} {
		out, code := run(append([]string{"report", "--from", from, "--until", until, "-o", "csv"}, strings.Fields(args)...)...)
		if listed := strings.Contains(out, "tagMoved,") && strings.Contains(out, unruled); code != cli.ExitOK || listed != want || !strings.Contains(out, app) {
			t.Errorf("report %s says %d: %s", args, code, out)
		}
	}
	for _, wrong := range []string{"v?", "v*,,", "a b"} {
		document := signaturestest.Document("wrong", `["`+registry.Host+`/x"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
		_, err := policiesOf(t, serving).Create(t.Context(), object(t, strings.Replace(document, "metadata: {", "metadata: {annotations: {tidewaiter.dev/immutable-tags: \""+wrong+"\"}, ", 1)), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.annotations.tidewaiter.dev/immutable-tags") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
