package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// --watch prints what there is, and then what changes and nothing else: a pod that comes, what it
// turns out to run, and that it goes; a verdict that becomes another.
func TestWatch(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	ref := l.a.Host + "/team/app:v1"
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	pods := kubernetes.NewForConfigOrDie(newAPITarget(config).Config).CoreV1().Pods(metav1.NamespaceDefault)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outputs, ended := map[string]*servertest.LogBuffer{}, make(chan int)
	verbs := [][]string{{"pods", ref}, {"images"}, {"images", "-A"}, {"verify", ref}}
	for _, verb := range verbs {
		out := &servertest.LogBuffer{}
		outputs[strings.Join(verb, " ")] = out
		root := newRootCommand()
		root.PersistentPreRunE = nil
		go func() {
			ended <- execute(ctx, root, append(verb, "--watch", "--kubeconfig", l.kubeconfig), strings.NewReader(""), out, out)
		}()
	}
	t.Cleanup(func() {
		for verb, out := range outputs {
			if t.Failed() {
				t.Logf("%s --watch printed:\n%s", verb, out)
			}
		}
	})
	says := func(verb, pattern string) {
		t.Helper()
		soon(t, verb+" prints "+pattern, func() bool {
			return regexp.MustCompile(pattern).MatchString(outputs[verb].String())
		})
	}
	says("verify "+ref, "NoPolicy")
	pod := newPod("app")
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: ref}}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says("pods "+ref, `EVENT +NAME[^\n]*\nADDED +local:default:app +main`)
	says("images", `EVENT +IMAGE[^\n]*\nADDED +`+regexp.QuoteMeta(ref)+` .* NoPolicy +1`)
	says("images -A", `EVENT +NAMESPACE[^\n]*\nADDED +default +`)
	if err := pods.Delete(t.Context(), "app", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"pods " + ref, "images", "images -A"} {
		says(verb, `\nDELETED +`)
	}
	key := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	policiesOf(t, newAPITarget(config).Config).create(signaturestest.Document("ours", `["`+l.a.Host+`/team"]`, key, ""))
	says("verify "+ref, `(?s)NoPolicy.*Unsigned`)
	cancel()
	for range verbs {
		if code := <-ended; code != cli.ExitOK && code != exitUntrusted {
			t.Errorf("a verb that was interrupted ends with %d", code)
		}
	}
	for verb, out := range outputs {
		if n := strings.Count(out.String(), "NoPolicy"); strings.HasPrefix(verb, "verify") && n > 3 || strings.Contains(out.String(), "Warning: changes") {
			t.Errorf("%s says %d times the same:\n%s", verb, n, out)
		}
	}
}
