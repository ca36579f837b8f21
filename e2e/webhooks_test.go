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

	"tidewaiter/e2e/harness"
	"tidewaiter/e2e/images"
	"tidewaiter/e2e/registry"
)

// hookSecret is what the registries of these tests send, and what no log of the
// server may hold.
const hookSecret = "correct-horse-battery-staple"

// hooked is a server and a registry that tells it of pushes.
type hooked struct {
	*harness.Server
	registry *registry.Registry
	base     string // URL of the receivers, ending in /hooks/
	ca       string // certificate for base; empty for plain HTTP
	args     []string
}

// startHooked starts a registry that notifies a server, and the server. It has
// the receiver "local" for the registry, and "script" of type generic.
func startHooked(t *testing.T, kind registry.Kind, plain bool, more ...string) *hooked {
	t.Helper()
	dir := t.TempDir()
	h := &hooked{Server: &harness.Server{DataDir: filepath.Join(dir, "data")}}
	port, endpoint := freePort(t), registry.Endpoint{Authorization: "Bearer " + hookSecret}
	listen := ""
	if plain {
		address := "127.0.0.1:" + freePort(t)
		h.base, listen = "http://"+address+"/hooks/", "hooks:\n  listen: "+address+"\n"
	} else {
		h.base, h.ca = "https://127.0.0.1:"+port+"/hooks/", filepath.Join(h.DataDir, "pki", "ca.crt")
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
  secretFile: hook-secret
- name: script
  type: generic
  hosts: [%q]
  secretFile: hook-secret
%s`, h.registry.Host, h.registry.Host, listen), 0o600))
	h.args = slices.Concat([]string{"--secure-port", port, "--config", config, "-v", "4"}, more)
	h.resume(t)
	return h
}

// resume starts the server again after it was killed, at the same addresses.
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
			return strings.HasPrefix(row, digest) && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(row, p) })
		})
	})
}

// awaitEmptySpool waits until nothing is left to do, and nothing was given up.
func (h *hooked) awaitEmptySpool(t *testing.T) {
	t.Helper()
	harness.Eventually(t, func() error {
		list := harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"spool", "list", "--kubeconfig", h.Kubeconfig}})
		if !strings.Contains(list, "no such job") {
			return fmt.Errorf("the spool holds\n%s", list)
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

// What is pushed to a real registry is seen by whoever watches, with no other
// trigger than the registry's notification.
func TestPushAppears(t *testing.T) {
	for _, kind := range registry.Kinds(t) {
		for _, listener := range []string{"TLS", "plain"} {
			t.Run(string(kind)+"/"+listener, func(t *testing.T) {
				h := startHooked(t, kind, listener == "plain")
				watch := h.watchImages(t)
				want := []string{"watch-marker"}

				multi := images.MultiArch(t)
				began := time.Now()
				ref := h.registry.Push(t, "team/multi:v1", multi)
				pushed := time.Now()
				awaitRow(t, watch, images.Digest(t, multi).String(), "Unsigned")
				t.Logf("an index of %d platforms: pushed in %v, seen %v later", len(images.Platforms), pushed.Sub(began), time.Since(pushed))
				want = append(want, images.Digest(t, multi).String())
				for _, child := range images.Children(t, multi) {
					awaitRow(t, watch, child.Digest.String())
					want = append(want, child.Digest.String())
				}
				checkIndex(t, h.Server, ref, multi)

				var delays []time.Duration
				numbered := images.Numbered(t, 11)
				for i, image := range numbered {
					digest := images.Digest(t, image).String()
					ref := h.registry.Push(t, fmt.Sprintf("team/app:%d", i), image)
					pushed := time.Now()
					awaitRow(t, watch, digest)
					delays = append(delays, time.Since(pushed))
					want = append(want, digest)
					if i == 0 {
						checkImage(t, h.Server, ref, image)
					}
				}
				t.Logf("from the end of a push until kubectl get images -w shows it: median %v, longest %v", median(delays), slices.Max(delays))
				if median(delays) > 10*time.Second {
					t.Errorf("median %v", median(delays))
				}

				h.awaitEmptySpool(t)
				// The receiver of the registry counted, the other one did not.
				metrics := h.Kubectl(t, "get", "--raw", "/metrics")
				wantContains(t, "/metrics", metrics, `tidewaiter_webhook_events_total{action="push",receiver="local"}`,
					`tidewaiter_queue_attempts_total{receiver="local",result="done"}`, `tidewaiter_queue_push_to_image_seconds_count{receiver="local"}`)
				if strings.Contains(metrics, `tidewaiter_webhook_events_total{action="push",receiver="script"}`) {
					t.Error("the other receiver took events")
				}
				slices.Sort(want)
				if got := imageNames(t, h.Server); !slices.Equal(got, want) {
					t.Errorf("stored images:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				h.checkNoSecret(t)
			})
		}
	}
}

// What is pushed while the server is down arrives when it is back: the registry
// keeps what was not acknowledged.
func TestPushesWhileServerIsDown(t *testing.T) {
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			h := startHooked(t, kind, false)
			if code := h.Terminate(t); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			pushed := images.Numbered(t, 20)
			h.registry.PushAll(t, "team/app", pushed)
			h.resume(t)
			h.awaitStored(t, pushed)
		})
	}
}

// awaitStored waits until every image is stored.
func (h *hooked) awaitStored(t *testing.T, pushed []v1.Image) {
	t.Helper()
	harness.Eventually(t, func() error {
		stored := imageNames(t, h.Server)
		missing := 0
		for _, image := range pushed {
			if !slices.Contains(stored, images.Digest(t, image).String()) {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d images are not stored", missing, len(pushed))
		}
		return nil
	})
}
