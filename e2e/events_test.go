package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What imports do, and what becomes of verdicts, is seen by kubectl get events
// and kubectl describe.
func TestImagesHaveEvents(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	busybox := images.Busybox(t)
	reference, name := r.Push(t, "library/busybox:1", busybox), images.Digest(t, busybox).String()

	// The watch begins once it shows an event that was there before.
	s.KubectlStdin(t, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"first"},"involvedObject":{"kind":"Pod","namespace":"default","name":"any"},"reason":"First","message":"x","type":"Normal"}`, "create", "-f", "-")
	watch := harness.Start(t, s.KubectlCommand(t, "get", "events", "-w", "--no-headers"))
	watch.Stdout.AwaitMatch(t, regexp.MustCompile(`First\s+pod/any`))
	seen := func(kind, reason, about, message string) {
		t.Helper()
		watch.Stdout.AwaitMatch(t, regexp.MustCompile(fmt.Sprintf(`(?m)^.*%s\s+%s\s+image/%s\s+.*%s.*$`, kind, reason, regexp.QuoteMeta(about), message)))
	}

	s.Import(t, reference)
	seen("Normal", "Imported", name, "Imported "+regexp.QuoteMeta(reference))
	missing := r.Host + "/library/busybox:none"
	if got := s.TryImport(t, missing); got.Code == 0 {
		t.Error("importing what is not there succeeded")
	}
	seen("Warning", "ImportFailed", missing, "not found")

	s.Kubectl(t, "patch", "image", name, "--type=merge", "-p", signed(name, [2]string{"True", "ann@example.com"}))
	seen("Normal", "SignatureVerified", name, "Signed by ann@example.com")
	s.Kubectl(t, "patch", "image", name, "--type=merge", "-p", signed(name, [2]string{"False", "ann@example.com"}))
	seen("Warning", "SignatureRejected", name, "No signature is trusted")

	_, events, ok := strings.Cut(s.Kubectl(t, "describe", "image", name), "\nEvents:")
	if !ok {
		t.Fatal("kubectl describe image shows no events")
	}
	wantContains(t, "kubectl describe image", events, "Imported", "tidewaiter-import", "SignatureVerified", "SignatureRejected")
	wantContains(t, "kubectl events", s.Kubectl(t, "events", "--for", "image/"+name), "Imported", "SignatureVerified")
}

// An import straight into a data directory leaves its events there.
func TestEventsOfAnImportWithoutAServer(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	busybox := images.Busybox(t)
	reference, name := r.Push(t, "library/busybox:1", busybox), images.Digest(t, busybox).String()
	dir := t.TempDir() + "/data"
	harness.MustRun(t, harness.ImportCommand(t, "--data-dir", dir, "--create-data-dir", reference))
	s := harness.StartServerOn(t, dir)
	wantContains(t, "the events", s.Kubectl(t, "get", "events"), "Imported", "image/"+name)
}
