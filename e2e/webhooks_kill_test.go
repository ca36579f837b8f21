package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidewaiter/e2e/harness"
	"tidewaiter/e2e/images"
	"tidewaiter/e2e/registry"
)

// A server that is killed, as kill -9 does, over and over while 200 images are
// pushed has them all in the end. A registry sends what was not acknowledged
// again, and nothing else: what was is imported from the spool.
func TestKillDuringPushes(t *testing.T) {
	const n, kills = 200, 4
	h := startHooked(t, registry.Distribution, false)
	pushed := images.Numbered(t, n)
	wait := h.registry.StartPushAll(t, "team/app", pushed)
	acknowledged := 0
	for range kills {
		// Some more have been acknowledged, and others are on their way.
		enough := len(imageNames(t, h.Server)) + n/(2*kills)
		harness.Eventually(t, func() error {
			if got := len(imageNames(t, h.Server)); got < enough {
				return fmt.Errorf("%d images are stored, %d are awaited before the next kill", got, enough)
			}
			return nil
		})
		h.Kill(t)
		acknowledged += strings.Count(h.Logs(), "status=202")
		checkIntegrity(t, h.DataDir)
		h.resume(t)
	}
	t.Logf("at the last kill at least %d of %d notifications were acknowledged", acknowledged, n)
	wait()
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
