package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A server that is killed, as kill -9 does, in the middle of each of four waves
// of pushes has all of their images in the end. The registry sends what was not
// acknowledged again, and nothing else: what was is imported from the spool.
func TestKillDuringPushes(t *testing.T) {
	t.Parallel()
	const n, waves = 200, 4
	h := startHooked(t, registry.Distribution, false)
	pushed := images.Numbered(t, n)
	acknowledged := 0
	for wave := range slices.Chunk(pushed, n/waves) {
		wait := h.registry.StartPushAll(t, "team/"+images.Digest(t, wave[0]).Hex, wave)
		harness.Eventually(t, func() error {
			if got := h.stored(t, wave); got < 10 {
				return fmt.Errorf("%d images of this wave are stored, 10 are awaited before the kill", got)
			}
			return nil
		})
		h.Kill(t)
		acknowledged += strings.Count(h.Logs(), "status=202")
		checkIntegrity(t, h.DataDir)
		h.resume(t)
		wait()
	}
	t.Logf("at the last kill at least %d of %d notifications were acknowledged", acknowledged, n)
	h.awaitStored(t, pushed...)
	h.awaitEmptySpool(t)

	var want []string
	for _, image := range pushed {
		want = append(want, images.Digest(t, image).String())
	}
	slices.Sort(want)
	if got := imageNames(t, h.Server); !slices.Equal(got, want) {
		t.Errorf("%d images are stored, want the %d that were pushed", len(got), n)
	}
}
