package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A repository in the configuration is looked through when the server starts:
// of this push nobody told, and of the delete neither.
func TestSweep(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	image := images.Numbered(t, 1)[0]
	digest := images.Digest(t, image).String()
	ref := r.Push(t, "team/app:v1", image)
	config := t.TempDir() + "/tidewaiter.yaml"
	must(t, os.WriteFile(config, fmt.Appendf(nil, "sweep:\n  every: 24h\n  repositories: [%s/team/app]\n", r.Host), 0o600))

	s := harness.StartServer(t, "--config", config)
	h := &hooked{Server: s}
	h.awaitStored(t, image)
	if message := h.awaitEvent(t, digest, "Imported"); message != "Found by a sweep: "+ref {
		t.Errorf("the Event says %q", message)
	}
	crane(t, "delete", r.Host+"/team/app@"+digest)
	s.Terminate(t)
	h.Server = harness.StartServerOn(t, s.DataDir, "--config", config)
	h.awaitEvent(t, digest, "GoneFromRegistry")
}
