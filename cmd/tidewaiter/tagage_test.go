package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// ahead is the real clock, put forward.
type ahead struct {
	clock.RealClock
	by atomic.Int64
}

func (a *ahead) Now() time.Time                  { return time.Now().Add(time.Duration(a.by.Load())) }
func (a *ahead) Since(t time.Time) time.Duration { return a.Now().Sub(t) }

// runs has a cluster run a digest under a tag, in a namespace.
func runs(cluster *clustertest.Cluster, namespace, tag, digest string) {
	repository, _, _ := strings.Cut(tag, ":v")
	cluster.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: tag}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", ImageID: repository + "@" + digest, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}},
	})
}

// verdictHistory waits until the verdicts on what ran a reference, the newest first, are as wanted:
// the word, that before, and the cause.
func verdictHistory(t *testing.T, data, reference string, want ...string) {
	t.Helper()
	var got []string
	soon(t, fmt.Sprintf("the verdicts on %s are %q", reference, want), func() bool {
		var list struct {
			Items []struct{ Verified, Before, Cause string }
		}
		code, out, errs := tidewaiter(t, "history", "--verdicts", "-o", "json", reference, "--kubeconfig", server.KubeconfigPath(data))
		if code != cli.ExitOK && code != exitAbsent {
			t.Fatal(out, errs)
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil && code == cli.ExitOK {
			t.Fatal(err)
		}
		got = nil
		for _, v := range list.Items {
			got = append(got, v.Verified+" "+v.Before+" "+v.Cause)
		}
		return slices.Equal(got, want)
	})
}

// A verdict that turns because time passes, and nothing is written, is told like every other: by a
// notification, an Event, and in the records of what ran. Two pods of one tag are told of once.
func TestTurnedByAge(t *testing.T) {
	t.Parallel()
	registry, cluster, e := newUnderPolicy(t), clustertest.New(t), newEar(t)
	config := registry.write(map[string]string{
		"policy.yaml":     strings.Replace(registry.policyText(), "metadata:\n", "metadata:\n  annotations: {tidewaiter.dev/max-tag-age: 10m}\n", 1),
		"prod.kubeconfig": string(cluster.Kubeconfig()),
		"secret":          "whsec_" + base64.StdEncoding.EncodeToString([]byte(e.secret)),
		"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n" +
			"notify:\n- {name: ci, url: \"" + e.URL + "\", insecure: true, secretFile: secret, events: [verdict.turned]}\n",
	})
	now := &ahead{}
	options := server.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: config, Policy: registry.policy, Isolated: true, Clock: now}
	serving := serveWith(t, options, listen(t))
	tag := registry.Host + "/team/app:v1"
	digest := registry.push("first", "team/app:v1", true)
	if code, out, errs := tidewaiter(t, "import", tag, "--kubeconfig", server.KubeconfigPath(options.DataDir)); code != cli.ExitOK {
		t.Fatal(out, errs)
	}
	cluster.Set(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "default"}})
	runs(cluster, "team", tag, digest)
	runs(cluster, "others", tag, digest)
	began := []string{"True  it began to run", "True  it began to run"}
	verdictHistory(t, options.DataDir, tag, began...)
	events := func(reason, message string) {
		t.Helper()
		soon(t, "there is an Event "+reason, func() bool {
			list, err := kubernetes.NewForConfigOrDie(serving).CoreV1().Events(tags.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + digest})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return strings.Contains(e.Message, message) && strings.Contains(e.Message, tag)
			})
		})
	}

	now.by.Store(int64(32 * time.Minute))
	aged := e.await("verdict.turned", tag+"@"+digest)
	if d := aged.Data; d.VerifiedBefore != "True" || d.Verified != "Unknown" || d.Reason != answers.ReasonTagTooOld || d.Cause != "no registry has confirmed its tag for too long" || d.Policy != "harbour-master" || *d.Pods != 2 || d.Namespace != "" {
		t.Errorf("it is told %+v", d)
	}
	events("VerdictUnknown", `policy "harbour-master" allows 10m`)
	old := "Unknown True no registry has confirmed its tag for too long"
	verdictHistory(t, options.DataDir, tag, append([]string{old, old}, began...)...)

	client := httpClient(t, serving)
	// a pod has the registry asked
	if got := askAdmission(t, client, serving.Host+admission.Path+"/prod?timeout=30s", review(tag)); !got.Allowed {
		t.Fatal(got.Result)
	}
	now.by.Add(int64(6 * time.Minute)) // a verdict is asked for every five
	known := e.await("verdict.turned", tag+"@"+digest)
	if d := known.Data; d.VerifiedBefore != "Unknown" || d.Verified != "True" || d.Cause != "its tag is no longer too old" || *d.Pods != 2 {
		t.Errorf("it is told %+v", d)
	}
	events("SignatureVerified", "Signed by ")
	again := "True Unknown its tag is no longer too old"
	verdictHistory(t, options.DataDir, tag, append([]string{again, again, old, old}, began...)...)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) > 0 {
		t.Errorf("it is also told %+v", e.all)
	}
}

// A tag that no webhook told of is known of old. How old is told at every door, by a restart, too;
// and a policy bounds it: then admission asks the registry first, and where that is away nobody
// knows.
func TestMaxTagAge(t *testing.T) {
	t.Parallel()
	registry := newUnderPolicy(t)
	push := registry.push
	unbounded := registry.policyText()
	policy := strings.Replace(unbounded, "metadata:\n", "metadata:\n  annotations: {tidewaiter.dev/max-tag-age: 10m}\n", 1) +
		"---\n" + strings.Replace(strings.Replace(unbounded, "harbour-master\n", "unbounded\n", 1), registry.Host, registry.Host+"/free", 1)
	cluster := clustertest.New(t)
	cluster.Set(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "default"}})
	config := registry.write(map[string]string{"policy.yaml": policy, "prod.kubeconfig": string(cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig}\n"})
	now := &ahead{}
	options := server.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: config, Policy: registry.policy, Isolated: true, Clock: now}
	var serving *restclient.Config
	t.Run("serve", func(t *testing.T) {
		serving = serveWith(t, options, listen(t))
		client := httpClient(t, serving)
		review1 := newReviewer(t, serving)
		images, err := imageclient.New(serving)
		if err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) (string, int) {
			code, out, errs := tidewaiter(t, append(args, "--kubeconfig", server.KubeconfigPath(options.DataDir))...)
			return out + errs, code
		}
		at := registry.Host + "/"
		push("first", "team/app:v1", true)
		push("first", "free/app:v1", true)
		for _, tag := range []string{"team/app:v1", "free/app:v1"} {
			if out, code := run("import", at+tag); code != cli.ExitOK {
				t.Fatal(out)
			}
		}
		// Every door says the same of a tag.
		doors := func(when, image, verified string, admitted bool, says ...string) {
			t.Helper()
			got := askAdmission(t, client, serving.Host+admission.Path+"/prod?timeout=5s", bytes.Replace(review(image), []byte(`"operation"`), []byte(`"dryRun":true,"operation"`), 1))
			said := fmt.Sprint(got.Result, got.AuditAnnotations)
			answer := review1.ask(answers.Question{Reference: image})[0]
			out, code := run("verify", image)
			if got.Allowed != admitted || answer.Verdict == nil || answer.Verdict.Verified != verified || (code == cli.ExitOK) != (verified == "True") || !strings.Contains(out, verified) {
				t.Errorf("%s: a dry run is admitted: %v, the review says %+v, and verify: %s", when, got.Allowed, answer.Verdict, out)
			}
			for _, word := range []string{"True", "Unknown"} {
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
		}
		pod := func(image string) (bool, string) {
			got := askAdmission(t, client, serving.Host+admission.Path+"/prod?timeout=30s", review(image))
			return got.Allowed, fmt.Sprint(got.Result, got.AuditAnnotations)
		}
		// admitted is pod for an image that is admitted. On a busy machine, an import may take longer
		// than a pod waits, and the pod is created again.
		admitted := func(image string) (ok bool, said string) {
			for range 10 {
				if ok, said = pod(image); ok {
					break
				}
			}
			return ok, said
		}
		app, free := at+"team/app:v1", at+"free/app:v1"
		doors("new", app, "True", true)
		now.by.Store(int64(32 * time.Minute))
		// 32m, or more on a slow machine
		doors("old", app, "Unknown", false, "where "+app+" leads was last checked 3", "m ago, and policy \"harbour-master\" allows 10m")
		doors("old, and not bounded", free, "True", true)
		doors("old, by its digest", app[:strings.LastIndexByte(app, ':')]+"@"+review1.ask(answers.Question{Reference: app})[0].Meaning.Digest, "True", true)

		// A pod has the registry asked, which confirms it.
		confirmed := now.Now().Truncate(time.Second)
		if ok, said := admitted(app); !ok {
			t.Errorf("a tag that leads where it did is refused: %s", said)
		}
		doors("confirmed", app, "True", true)
		if checked := review1.ask(answers.Question{Reference: app})[0].Checked.LastChecked; checked == nil || checked.Time.Before(confirmed) {
			t.Errorf("it was checked %v, and confirmed after %v", checked, confirmed)
		}
		// The clock is set back: nobody knows how long ago the tag was confirmed. A pod has the registry
		// asked again, which counts.
		now.by.Store(0)
		doors("set back", app, "Unknown", false, "by a clock that has been set back since", `policy "harbour-master" allows 10m`)
		if ok, said := admitted(app); !ok {
			t.Errorf("after the clock was set back it is refused: %s", said)
		}
		doors("set back, and confirmed", app, "True", true)
		now.by.Store(int64(45 * time.Minute))
		if ok, said := admitted(app); !ok {
			t.Errorf("once the clock is right it is refused: %s", said)
		}
		// The tag is moved without a word. Within the bound it is admitted as it was, and beyond it
		// the registry is asked.
		push("second", "team/app:v1", false)
		if ok, said := admitted(app); !ok {
			t.Errorf("within the bound it is refused: %s", said)
		}
		now.by.Add(int64(11 * time.Minute))
		ok, said := pod(app)
		for tries := 1; !strings.Contains(said, "does not meet policy") && tries < 10; tries++ {
			ok, said = pod(app)
		}
		if ok || !strings.Contains(said, "does not meet policy") || !strings.Contains(said, "Unsigned") || !strings.Contains(said, "was last checked ") {
			t.Errorf("a tag that was moved to what nobody signed is answered %v: %s", ok, said)
		}
		// It is moved back, and the registry goes away.
		push("first", "team/app:v1", true)
		now.by.Add(int64(11 * time.Minute))
		if ok, said := admitted(app); !ok {
			t.Errorf("it leads to the signed one again, and is refused: %s", said)
		}
		now.by.Add(int64(time.Hour))
		registry.Server().Close()
		soon(t, "it is said that the tag could not be imported", func() bool {
			// a pod may wait for less long than an import
			ok, said := pod(app)
			if ok || !strings.Contains(said, "is not known to meet policy") || !strings.Contains(said, "last checked 6") {
				t.Errorf("while the registry is away it is answered %v: %s", ok, said)
			}
			return strings.Contains(said, "could not be imported")
		})
		doors("away", app, "Unknown", false, "was last checked 6") // 60m ago, or more

		// A policy's annotation is read when it is written.
		for _, wrong := range []string{"soon", "1s", "-10m"} {
			document := signaturestest.Document("wrong", `["`+registry.Host+`/x"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
			_, err := policiesOf(t, serving).Create(t.Context(), object(t, strings.Replace(document, "metadata: {", "metadata: {annotations: {tidewaiter.dev/max-tag-age: "+wrong+"}, ", 1)), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.annotations.tidewaiter.dev/max-tag-age") || !strings.Contains(err.Error(), "must be a duration of at least 10s, such as 10m") {
				t.Errorf("%s: %v", wrong, err)
			}
		}
	})
	// What was confirmed an hour ago is known after a restart.
	t.Run("restart", func(t *testing.T) {
		serving = serveWith(t, options, listen(t))
		checked := newReviewer(t, serving).ask(answers.Question{Reference: registry.Host + "/team/app:v1"})[0].Checked.LastChecked
		if checked == nil || now.Since(checked.Time) > 2*time.Hour {
			t.Errorf("it was checked %v, and it is %v", checked, now.Now())
		}
	})
}
