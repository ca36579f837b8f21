package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// hookSecret is what the registries of these tests send, and what no log of the
// server may hold.
const hookSecret = "correct-horse-battery-staple"

// hooked is a server and a registry that tells it of pushes.
type hooked struct {
	*harness.Server
	registry *registry.Registry
	base     string // URL of the receivers, ending in /hooks/
	ca       string // certificate of the server's own port
	args     []string
}

// startHooked starts a registry that notifies a server, and the server.
func startHooked(t *testing.T, kind registry.Kind, plain bool) *hooked {
	t.Helper()
	h := prepareHooked(t, kind, plain)
	h.resume(t)
	return h
}

// prepareHooked starts the registry and leaves the server to resume, for tests
// that add to its arguments. It will have the receiver "local" for what the
// registry says about repositories below team, and "script" of type generic.
func prepareHooked(t *testing.T, kind registry.Kind, plain bool) *hooked {
	t.Helper()
	dir := t.TempDir()
	h := &hooked{Server: &harness.Server{DataDir: filepath.Join(dir, "data")}}
	h.ca = filepath.Join(h.DataDir, "pki", "ca.crt")
	port, endpoint := freePort(t), registry.Endpoint{Authorization: "Bearer " + hookSecret}
	listen := ""
	if plain {
		address := "127.0.0.1:" + freePort(t)
		h.base, listen = "http://"+address+"/hooks/", "hooks:\n  listen: "+address+"\n"
	} else {
		h.base = "https://127.0.0.1:" + port + "/hooks/"
		// The folder of the manual, with nothing but the certificate. The server
		// makes it before the registry first has something to tell.
		endpoint.CertDir = filepath.Join(dir, "trusted")
		must(t, os.Mkdir(endpoint.CertDir, 0o700))
		must(t, os.Symlink(h.ca, filepath.Join(endpoint.CertDir, "ca.crt")))
	}
	endpoint.URL = h.base + "local"
	h.registry = registry.StartNotifying(t, kind, endpoint)

	must(t, os.WriteFile(filepath.Join(dir, "hook-secret"), []byte(hookSecret+"\n"), 0o600))
	config := filepath.Join(dir, "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `receivers:
- name: local
  type: distribution
  hosts: [%q]
  repositories: [team/**]
  secretFile: hook-secret
- name: script
  type: generic
  hosts: [%q]
  secretFile: hook-secret
%s`, h.registry.Host, h.registry.Host, listen), 0o600))
	h.args = []string{"--secure-port", port, "--config", config, "-v", "4"}
	return h
}

// resume starts the server, or starts it again after it was killed, at the same
// addresses.
func (h *hooked) resume(t *testing.T) {
	t.Helper()
	h.Server = harness.StartServerOn(t, h.DataDir, h.args...)
}

// freePort is a port that was free a moment ago: for what has to come back
// where it was.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// crane runs the real crane.
func crane(t *testing.T, args ...string) string {
	t.Helper()
	home := t.TempDir()
	return harness.MustRun(t, harness.Command{Path: harness.Tool(t, "crane"), Args: args, Env: []string{"HOME=" + home, "DOCKER_CONFIG=" + home}})
}

// watchImages is `kubectl get images -o wide -w`, once its watch hears: it has
// seen an Image that is stored for that.
func (h *hooked) watchImages(t *testing.T) *harness.Process {
	t.Helper()
	p := harness.Start(t, h.KubectlCommand(t, "get", "images", "-o", "wide", "-w"))
	h.KubectlStdin(t, plainImage("watch-marker"), "create", "-f", "-")
	p.Stdout.Await(t, "the marker", func(s string) bool { return strings.Contains(s, "watch-marker") })
	return p
}

// awaitRow waits until a watch shows a row about a digest that contains all parts.
func awaitRow(t *testing.T, watch *harness.Process, digest string, parts ...string) {
	t.Helper()
	watch.Stdout.Await(t, fmt.Sprintf("row of %s with %q", digest, parts), func(s string) bool {
		return slices.ContainsFunc(lines(s), func(row string) bool {
			// NAME is the last column
			return strings.HasSuffix(strings.TrimRight(row, " "), digest) &&
				!slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(row, p) })
		})
	})
}

// stored counts those of the images that are stored.
func (h *hooked) stored(t *testing.T, pushed []v1.Image) (n int) {
	t.Helper()
	names := imageNames(t, h.Server)
	for _, image := range pushed {
		if slices.Contains(names, images.Digest(t, image).String()) {
			n++
		}
	}
	return n
}

// awaitStored waits until every image is stored.
func (h *hooked) awaitStored(t *testing.T, pushed ...v1.Image) {
	t.Helper()
	harness.Eventually(t, func() error {
		if n := h.stored(t, pushed); n < len(pushed) {
			return fmt.Errorf("%d of %d images are stored", n, len(pushed))
		}
		return nil
	})
}

// awaitEvent waits until kubectl shows an Event with a reason about an Image,
// and returns its message.
func (h *hooked) awaitEvent(t *testing.T, about, reason string) string {
	t.Helper()
	var message string
	harness.Eventually(t, func() error {
		message = h.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+about+",reason="+reason, "-o", "jsonpath={.items[*].message}")
		if message == "" {
			return fmt.Errorf("there is no Event %s about %s:\n%s", reason, about, h.Kubectl(t, "get", "events"))
		}
		return nil
	})
	return message
}

// spool runs `tidewaiter spool`.
func (h *hooked) spool(t *testing.T, args ...string) string {
	t.Helper()
	return harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: append(append([]string{"spool"}, args...), "--kubeconfig", h.Kubeconfig)})
}

// awaitSpool waits until the jobs of the spool, each as a line of JSON, are as cond wants.
func (h *hooked) awaitSpool(t *testing.T, what string, cond func(list string) bool) string {
	t.Helper()
	var list string
	harness.Eventually(t, func() error {
		if list = h.spool(t, "list", "-o", "jsonl"); !cond(list) {
			return fmt.Errorf("%s is awaited, the spool holds\n%s", what, list)
		}
		return nil
	})
	return list
}

// awaitEmptySpool waits until nothing is left to do, and nothing was given up.
func (h *hooked) awaitEmptySpool(t *testing.T) {
	t.Helper()
	h.awaitSpool(t, "an empty spool", func(list string) bool { return list == "" })
}

// awaitMetrics waits until /metrics has all of these lines.
func (h *hooked) awaitMetrics(t *testing.T, want ...string) {
	t.Helper()
	harness.Eventually(t, func() error {
		metrics := lines(h.Kubectl(t, "get", "--raw", "/metrics"))
		for _, w := range want {
			if !slices.Contains(metrics, w) {
				return fmt.Errorf("/metrics lacks %s", w)
			}
		}
		return nil
	})
}

// checkNoSecret looks for the secret in what the server wrote.
func (h *hooked) checkNoSecret(t *testing.T) {
	t.Helper()
	logs := h.Logs()
	if !strings.Contains(logs, "Webhook") {
		t.Errorf("the log has no line about a webhook:\n%s", logs)
	}
	if i := strings.Index(logs, hookSecret); i >= 0 {
		t.Errorf("the secret is in the log: …%s…", logs[max(0, i-200):min(len(logs), i+100)])
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
