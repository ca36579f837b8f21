package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// The demonstration needs nothing: no network, no registry, no flags. It shows
// what was pushed to appear, a table, and commands that work when they are typed.
// It leaves nothing and complains of nothing.
func TestDemo(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	p := harness.Start(t, harness.Command{
		Path: harness.Binary(t), Args: []string{"demo"}, Dir: tmp,
		Env: []string{"HOME=" + tmp, "TMPDIR=" + tmp, "KUBECONFIG=", "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1"},
	})
	kubeconfig := p.Stdout.AwaitMatch(t, regexp.MustCompile(`KUBECONFIG=(\S+admin\.kubeconfig)`))[1]
	shown := p.Stdout.Await(t, "commands to type next", func(out string) bool {
		return strings.Contains(out, "kubectl") && strings.Contains(out, "REPOSITORY") && strings.HasSuffix(out, "\n")
	})

	for _, verdict := range []string{"True", "Unsigned", "False"} {
		if !regexp.MustCompile(`Pushed \S+ \(.*\)\. \d+ms later its Image is there, verified: ` + verdict + "\n").MatchString(shown) {
			t.Errorf("no push is shown whose Image is %s:\n%s", verdict, shown)
		}
	}

	kubectl := harness.Command{Path: harness.Tool(t, "kubectl"), Dir: tmp, Env: []string{"HOME=" + tmp, "KUBECONFIG=" + kubeconfig}}
	kubectl.Args = []string{"get", "images", "--no-headers"}
	rows := lines(harness.MustRun(t, kubectl))
	if len(rows) < 4 { // a single image, an index and at least two platforms
		t.Errorf("%d images:\n%s", len(rows), strings.Join(rows, "\n"))
	}
	for _, row := range rows {
		wantContains(t, "the demonstration", shown, strings.Fields(row)[0])
	}

	// The registry told of each push.
	kubectl.Args = []string{"get", "events", "--field-selector", "reason=PushReceived", "-o", "jsonpath={.items[*].message}"}
	harness.Eventually(t, func() error {
		said := harness.MustRun(t, kubectl)
		for _, tag := range []string{"harbour/lighthouse:v1", "harbour/buoy:v1", "harbour/ferry:v1"} {
			if !strings.Contains(said, tag) {
				return fmt.Errorf("no Event tells of the push of %s: %s", tag, said)
			}
		}
		return nil
	})

	p.Signal(t, syscall.SIGINT)
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code %d after an interrupt, want 0", code)
	}
	if left := harness.MustRun(t, harness.Command{Path: "find", Args: []string{tmp, "-mindepth", "1", "-not", "-path", "*/.kube*"}}); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if complaints := p.Stderr.String(); complaints != "" {
		t.Errorf("it complains of:\n%s", complaints)
	}
}

// A demonstration that leaves at once complains of nothing either, though it
// stops what has hardly begun.
func TestDemoOnce(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	r := harness.Run(t, harness.Command{
		Path: harness.Binary(t), Args: []string{"demo", "--once"}, Dir: tmp, Env: []string{"HOME=" + tmp, "TMPDIR=" + tmp, "KUBECONFIG="},
	})
	if r.Code != 0 || r.Stderr != "" {
		t.Errorf("exit code %d, standard error:\n%s", r.Code, r.Stderr)
	}
}
