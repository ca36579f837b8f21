package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What is pushed to a real registry is seen by whoever watches, with no other
// trigger than the registry's notification. The times are logged, and bounded by
// patience only: they are figures of the machine.
func TestPushAppears(t *testing.T) {
	t.Parallel()
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
				awaitRow(t, watch, images.Digest(t, multi).String(), "NoPolicy")
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
	t.Parallel()
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			h := startHooked(t, kind, false)
			if code := h.Terminate(t); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			pushed := images.Numbered(t, 20)
			h.registry.PushAll(t, "team/app", pushed)
			h.resume(t)
			h.awaitStored(t, pushed...)
		})
	}
}
