package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// A verdict that changes because a policy was edited, which keeps its name, its key and its scopes,
// has that cause at every door.
func TestCausesOfVerdicts(t *testing.T) {
	t.Parallel()
	registry, cluster, e := newUnderPolicy(t), clustertest.New(t), newEar(t)
	config := registry.write(map[string]string{
		"prod.kubeconfig": string(cluster.Kubeconfig()),
		"secret":          "whsec_" + base64.StdEncoding.EncodeToString([]byte(e.secret)),
		"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n" +
			"notify:\n- {name: ci, url: \"" + e.URL + "\", insecure: true, secretFile: secret, events: [verdict.turned]}\n",
	})
	options := server.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: config, Isolated: true, Console: true}
	run := func(args ...string) string {
		t.Helper()
		code, out, errs := tidewaiter(t, append(args, "--kubeconfig", server.KubeconfigPath(options.DataDir))...)
		if code != cli.ExitOK {
			t.Fatal(out, errs)
		}
		return out
	}
	key, err := os.ReadFile(filepath.Join(registry.dir, "harbour-master.pub"))
	if err != nil {
		t.Fatal(err)
	}
	policy := func(identity string) string {
		return signaturestest.Document("harbour-master", `["`+registry.Host+`"]`, "{policyType: PublicKey, publicKey: {keyData: "+signaturestest.B64(key)+"}}", identity)
	}
	own, other := policy("{matchPolicy: MatchRepository}"), policy("{matchPolicy: ExactRepository, exactRepository: {repository: r.example.com/other}}")
	tag := registry.Host + "/team/app:v1"
	digest := registry.push("first", "team/app:v1", true)
	told := func(verified, before, cause string) {
		t.Helper()
		// a repository and its digests have one verdict
		if d := e.await("verdict.turned", registry.Host+"/team/app@"+digest).Data; d.Verified != verified || d.VerifiedBefore != before || d.Cause != cause {
			t.Errorf("it is told %+v, want %s after %s: %s", d, verified, before, cause)
		}
	}
	const (
		began  = "True  it began to run"
		edited = "the policy harbour-master changed: a signature no longer counts"
		undone = "the policy harbour-master changed: a signature counts that did not"
	)
	serving := serveWith(t, options, listen(t))
	inForce := policiesOf(t, serving)
	apply := func(document string) {
		t.Helper()
		if _, err := inForce.apply(document); err != nil {
			t.Fatal(err)
		}
	}
	apply(own)
	run("import", tag)
	runs(cluster, "team", tag, digest)
	history := []string{began}
	verdictHistory(t, options.DataDir, tag, history...)
	for _, step := range []struct{ document, verified, before, cause string }{{other, "False", "True", edited}, {own, "True", "False", undone}} {
		apply(step.document)
		told(step.verified, step.before, step.cause)
		history = append([]string{step.verified + " " + step.before + " " + step.cause}, history...)
		verdictHistory(t, options.DataDir, tag, history...)
	}
	client, err := pathClient(serving)
	if err != nil {
		t.Fatal(err)
	}
	page, err := client.Get().AbsPath("/console/running").Param("at", time.Now().UTC().Format(time.RFC3339)).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	for door, text := range map[string]string{
		"history --verdicts": run("history", "--verdicts", tag), "ran -o json": run("ran", tag, "-o", "json"), "changes": run("changes", "-o", "json"), "the console": string(page),
		"a report": run("report", "--from", "2026-01-01", "--until", now, "-o", "json"),
	} {
		if !strings.Contains(text, undone) {
			t.Errorf("%s does not say that %s:\n%s", door, undone, text)
		}
	}
}

// How an image was admitted is recorded with what ran: what the cluster's review was answered, and
// that it never asked.
func TestAdmissionIsRecorded(t *testing.T) {
	t.Parallel()
	registry, cluster := newUnderPolicy(t), clustertest.New(t)
	config := registry.write(map[string]string{
		"policy.yaml":     strings.Replace(registry.policyText(), "metadata:\n", "metadata:\n  annotations: {tidewaiter.dev/admission: warn}\n", 1),
		"prod.kubeconfig": string(cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n",
	})
	cluster.Set(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "default"}})
	data := filepath.Join(registry.dir, "data")
	serving := serveWith(t, server.Options{DataDir: data, ConfigFile: config, Policy: registry.policy, Isolated: true}, listen(t))
	client := httpClient(t, serving)
	for i, c := range []struct {
		repository   string
		signed, asks bool
		want, says   string
		warned       int
	}{
		{repository: "team/signed", signed: true, asks: true, want: imageruns.AdmissionAllowed},
		{repository: "team/unsigned", asks: true, want: imageruns.AdmissionWarned, says: "Unsigned", warned: 1},
		{repository: "team/unasked", signed: true, want: imageruns.AdmissionNeverAsked},
	} {
		image := registry.Host + "/" + c.repository + ":1"
		digest := registry.push(c.repository, c.repository+":1", c.signed)
		if code, out, errs := tidewaiter(t, "import", image, "--kubeconfig", server.KubeconfigPath(data)); code != cli.ExitOK {
			t.Fatal(out, errs)
		}
		if c.asks {
			if got := askAdmission(t, client, serving.Host+admission.Path+"/prod?timeout=30s", review(image)); !got.Allowed || len(got.Warnings) != c.warned {
				t.Fatalf("%s is answered %+v", image, got)
			}
		}
		cluster.Set(ranPod(fmt.Sprint("app-5d4f-", i), image, digest, time.Now()))
		soon(t, image+" is recorded with how it was admitted: "+c.want, func() bool {
			var list imageruns.ImageRunList
			_, out, errs := tidewaiter(t, "ran", image, "-o", "json", "--kubeconfig", server.KubeconfigPath(data))
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				t.Fatal(out, errs)
			}
			return len(list.Items) == 1 && list.Items[0].Status.Admission == c.want && strings.Contains(list.Items[0].Status.AdmissionMessage, c.says)
		})
	}
}
