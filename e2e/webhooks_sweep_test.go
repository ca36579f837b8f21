package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A repository in the configuration is looked through when the server starts:
// of this push nobody told, and of the delete neither. A pod runs the image that is gone.
func TestSweep(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	image := images.Numbered(t, 1)[0]
	digest := images.Digest(t, image).String()
	ref := r.Push(t, "team/app:v1", image)
	config := t.TempDir() + "/tidewaiter.yaml"
	must(t, os.WriteFile(config, fmt.Appendf(nil, "ownPodsOnly: true\nsweep:\n  every: 24h\n  repositories: [%s/team/app]\n", r.Host), 0o600))

	s := harness.StartServer(t, "--config", config)
	h := &hooked{Server: s}
	h.awaitStored(t, image)
	if message := h.awaitEvent(t, digest, "Imported"); message != "Found by a sweep: "+ref {
		t.Errorf("the Event says %q", message)
	}
	s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app","namespace":"default"},"spec":{"containers":[{"name":"main","image":"%s@%s"}]}}`, ref, digest), "create", "-f", "-")
	if got := s.Kubectl(t, "get", "images", "--field-selector", "gone=true", "-o", "name"); got != "" {
		t.Errorf("before anything is deleted, %s is gone", got)
	}
	crane(t, "delete", r.Host+"/team/app@"+digest)
	s.Terminate(t)
	h.Server = harness.StartServerOn(t, s.DataDir, "--config", config)
	h.awaitEvent(t, digest, "GoneFromRegistry")
	harness.Eventually(t, func() error {
		for _, selected := range []string{"images --field-selector gone=true,used=true", "imagetags --field-selector gone=true"} {
			if got := h.Kubectl(t, append([]string{"get", "-o", "wide", "--no-headers"}, strings.Fields(selected)...)...); len(lines(got)) != 1 {
				return fmt.Errorf("%s: %s", selected, got)
			}
		}
		return nil
	})
}
