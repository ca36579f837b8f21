package e2e

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"tidewaiter/e2e/harness"
)

// The demonstration needs nothing: no network, no registry, no flags. It shows
// a table and commands that work when they are typed, and leaves nothing.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	p := harness.Start(t, harness.Command{
		Path: harness.Binary(t), Args: []string{"demo"}, Dir: tmp,
		Env: []string{"HOME=" + tmp, "TMPDIR=" + tmp, "KUBECONFIG=", "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1"},
	})
	kubeconfig := p.Stdout.AwaitMatch(t, regexp.MustCompile(`KUBECONFIG=(\S+admin\.kubeconfig)`))[1]
	shown := p.Stdout.Await(t, "commands to type next", func(out string) bool {
		return strings.Contains(out, "kubectl") && strings.Contains(out, "IMAGE REFERENCE") && strings.HasSuffix(out, "\n")
	})

	kubectl := harness.Command{Path: harness.Tool(t, "kubectl"), Dir: tmp, Env: []string{"HOME=" + tmp, "KUBECONFIG=" + kubeconfig}}
	kubectl.Args = []string{"get", "images", "--no-headers"}
	rows := lines(harness.MustRun(t, kubectl))
	if len(rows) < 4 { // a single image, an index and at least two platforms
		t.Errorf("%d images:\n%s", len(rows), strings.Join(rows, "\n"))
	}
	for _, row := range rows {
		wantContains(t, "the demonstration", shown, strings.Fields(row)[0])
	}

	p.Signal(t, syscall.SIGINT)
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code %d after an interrupt, want 0", code)
	}
	if left := harness.MustRun(t, harness.Command{Path: "find", Args: []string{tmp, "-mindepth", "1", "-not", "-path", "*/.kube*"}}); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
