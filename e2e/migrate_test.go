package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What one server has goes to etcd and back: the same objects, with the pushes that wait. Clients
// that knew revisions of where they were list again.
func TestMigrate(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 1)
	from := registry.Start(t, registry.Distribution)
	pushed := images.Numbered(t, 2)
	first := from.Push(t, "team/app:0", pushed[0])
	waits := from.Push(t, "team/app:1", pushed[1])
	config := hookedConfig(t, "", from.Host)
	dir := t.TempDir()
	h := &hooked{Server: harness.StartServerOn(t, filepath.Join(dir, "one"), "--config", config)}
	r := &replicas{Replicas: &harness.Replicas{Servers: []*harness.Server{h.Server}}}
	h.Import(t, first)
	for i := range 5 {
		h.KubectlStdin(t, fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: berth-%d}}", i), "create", "-f", "-")
	}
	from.Stop(t)
	if status := r.told(t, 0, waits); status != http.StatusAccepted {
		t.Fatalf("the webhook's answer is %d", status)
	}
	revision := regexp.MustCompile(`"resourceVersion": "(\d*)"`)
	objects := func(s *harness.Server) string {
		t.Helper()
		return revision.ReplaceAllString(s.Kubectl(t, "get", "leases,images,imagetags.image.openshift.io", "-n", "default", "-o", "json"), "")
	}
	before := objects(h.Server)
	known := func(s *harness.Server) string {
		t.Helper()
		return revision.FindStringSubmatch(s.Kubectl(t, "get", "lease", "berth-1", "-o", "json"))[1]
	}
	watched := known(h.Server)
	expired := func(s *harness.Server) {
		t.Helper()
		answer := s.TryKubectl(t, "get", "--raw", "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=1&timeoutSeconds=1&resourceVersion="+watched)
		if text := answer.Stdout + answer.Stderr; !strings.Contains(text, "too old") && !strings.Contains(text, "Expired") && !strings.Contains(text, "410") {
			t.Errorf("a watch from revision %s, which was known before: %s", watched, text)
		}
		watched = known(s)
	}
	migrate := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append([]string{"migrate", "--etcd-servers", e.Servers}, args...)})
	}
	one := h.DataDir
	if got := migrate("--to-etcd", "--data-dir", one); got.Code == 0 || !strings.Contains(got.Stderr, "in use by") {
		t.Errorf("of a data directory in use: %d %s", got.Code, got.Stderr)
	}
	h.Terminate(t)
	for _, want := range []string{" 1 push waits", " (0 written now)"} {
		if got := migrate("--to-etcd", "--data-dir", one); got.Code != 0 || !strings.Contains(got.Stdout, "the same in etcd") || !strings.Contains(got.Stdout, want) {
			t.Fatalf("%d %s%s, want%q", got.Code, got.Stdout, got.Stderr, want)
		}
	}
	pki := filepath.Join(dir, "pki")
	must(t, os.CopyFS(pki, os.DirFS(filepath.Join(one, "pki"))))
	must(t, os.Chmod(pki, 0o700))
	must(t, filepath.WalkDir(pki, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		return err
	}))
	two := &hooked{Server: harness.StartServerOn(t, filepath.Join(dir, "two"), "--config", config, "--etcd-servers", e.Servers, "--pki-dir", pki)}
	if got := objects(two.Server); got != before {
		t.Errorf("over etcd there is\n%s\nwant\n%s", got, before)
	}
	expired(two.Server)
	two.awaitSpool(t, "the push that waits", func(list string) bool { return strings.Contains(list, waits) })
	two.Terminate(t)

	three := filepath.Join(dir, "three")
	for range 2 { // as after a run that was killed before it said so
		if got := migrate("--from-etcd", "--data-dir", three); got.Code != 0 || !strings.Contains(got.Stdout, " 1 push waits") {
			t.Fatalf("%d %s%s", got.Code, got.Stdout, got.Stderr)
		}
	}
	if got := migrate("--from-etcd", "--data-dir", one); got.Code == 0 || !strings.Contains(got.Stderr, "objects of its own") {
		t.Errorf("into a data directory with objects: %d %s", got.Code, got.Stderr)
	}
	back := &hooked{Server: harness.StartServerOn(t, three, "--config", config)}
	if got := objects(back.Server); got != before {
		t.Errorf("back from etcd there is\n%s\nwant\n%s", got, before)
	}
	expired(back.Server)
	from.Resume(t)
	back.awaitStored(t, pushed[1])
	back.awaitEmptySpool(t)
	harness.MustRun(t, harness.Command{Path: harness.Binary(t), Args: []string{"db", "check", "--data-dir", three}})
}
