package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// creator creates pods, one after the other, and keeps count of what kube-apiserver says.
type creator struct {
	image              string
	created, unreached atomic.Int64
	others             chan string // refusals of other kinds, as far as there is room
}

// run creates pods until stop is closed.
func (c *creator) run(t *testing.T, core kubernetes.Interface, namespace, name string, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, n)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: c.image}}}}
		_, err := core.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		switch {
		case err == nil:
			c.created.Add(1)
		case apierrors.IsInternalError(err) && strings.Contains(err.Error(), `failed calling webhook "pods.tidewaiter.dev"`):
			c.unreached.Add(1)
		default:
			select {
			case c.others <- err.Error():
			default:
			}
		}
	}
}

// The server is killed and started again while pods are created. With failurePolicy Fail, no pod
// gets in that is not verified; while the server is away none does, and each is told why; then they
// do again. With Ignore, pods get in meanwhile, and are found afterwards.
func TestAdmissionWhileTheServerRestarts(t *testing.T) {
	t.Parallel()
	r, c := registry.Start(t, registry.Distribution), harness.StartCluster(t)
	s := install(t, c, "")
	signer := newCosign(t)
	signer.key("release", "p256")
	good := r.Push(t, "guarded/good:1", images.Numbered(t, 1)[0])
	signer.sign("legacy", "release", good)
	bad := r.Push(t, "guarded/bad:1", images.Busybox(t))
	c.Apply(t, strings.Replace(signer.keysPolicy("guarded", r.Host+"/guarded", "release"), "DigestOnly", "MatchRepository", 1))
	c.Kubectl(t, "create", "namespace", "guarded")
	c.Kubectl(t, "apply", "-f", admissionWebhook(t))
	s.eventually(t, "admin", 1, []string{"denied the request", bad, "Unsigned"}, "create", "-f", podOf(t, "guarded", "bad", bad, ""))
	s.eventually(t, "admin", 0, []string{"pod/first created"}, "create", "-f", podOf(t, "guarded", "first", good, ""))

	core, err := kubernetes.NewForConfig(c.Config(t))
	must(t, err)
	verified, unverified := &creator{image: good, others: make(chan string, 100)}, &creator{image: bad, others: make(chan string, 100)}
	stop, done := make(chan struct{}), make(chan struct{}, 4)
	for i := range 2 {
		go func() { verified.run(t, core, "guarded", fmt.Sprint("good-", i), stop); done <- struct{}{} }()
		go func() { unverified.run(t, core, "guarded", fmt.Sprint("bad-", i), stop); done <- struct{}{} }()
	}
	more := func(what string, n *atomic.Int64) {
		t.Helper()
		before := n.Load()
		harness.Eventually(t, func() error {
			if n.Load() < before+3 {
				return fmt.Errorf("%s: %d, as before %d", what, n.Load(), before)
			}
			return nil
		})
	}
	for range 3 {
		more("pods are created", &verified.created)
		s.Kill(t)
		more("verified pods are refused while the server is away", &verified.unreached)
		more("other pods are refused while the server is away", &unverified.unreached)
		away := verified.created.Load()
		more("pods are refused", &verified.unreached)
		if n := verified.created.Load(); n != away {
			t.Errorf("%d pods get in while the server is away", n-away)
		}
		s.Server = harness.StartServerOn(t, s.DataDir, s.args...)
		more("pods are created after a restart", &verified.created)
	}
	close(stop)
	for range 4 {
		<-done
	}
	close(verified.others)
	close(unverified.others)
	// What is signed is refused for no other reason than that a server which has just started does not
	// know its policies or its images yet, and says so.
	for refused := range verified.others {
		if !strings.Contains(refused, "denied the request") || !strings.Contains(refused, "is not known to meet") {
			t.Errorf("a verified pod is refused: %s", refused)
		}
	}
	denied := 0
	for refused := range unverified.others {
		if denied++; !strings.Contains(refused, "denied the request") || !strings.Contains(refused, bad) {
			t.Errorf("another pod is refused: %s", refused)
		}
	}
	if n := unverified.created.Load(); n > 0 || denied == 0 {
		t.Errorf("%d pods got in that are not verified, and %d were denied", n, denied)
	}
	if got := c.Kubectl(t, "get", "pods", "-n", "guarded", "-o", "name"); strings.Contains(got, "bad") {
		t.Errorf("pods that are not verified run: %s", got)
	}

	// Whoever prefers that pods start sees afterwards which should not have.
	c.Kubectl(t, "patch", "validatingwebhookconfiguration", "tidewaiter", "--type=json", "-p", `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`)
	s.Kill(t)
	s.eventually(t, "admin", 0, []string{"pod/slipped created"}, "create", "-f", podOf(t, "guarded", "slipped", bad, ""))
	s.Server = harness.StartServerOn(t, s.DataDir, s.args...)
	s.awaitAvailable(t)
	s.eventually(t, "admin", 1, []string{"denied the request", bad}, "create", "--dry-run=server", "-f", podOf(t, "guarded", "late", bad, ""))
	s.eventually(t, "admin", 0, []string{"in-cluster:guarded:slipped"}, "get", "clusterpods", "-o", "name", "--field-selector", "verified=Unsigned")
	harness.Eventually(t, func() error {
		got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"images", "-n", "guarded", "--kubeconfig", c.Kubeconfig(t, "admin", "admin")}})
		if row := regexp.MustCompile(regexp.QuoteMeta(bad) + ` .*Unsigned`); got.Code != 0 || !row.MatchString(got.Stdout) {
			return fmt.Errorf("exit %d: %s%s", got.Code, got.Stdout, got.Stderr)
		}
		return nil
	})
	wantContains(t, "metrics", s.Kubectl(t, "get", "--raw", "/metrics"), `tidewaiter_running_pods{verified="Unsigned"}`)
}
