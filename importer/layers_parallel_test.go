package importer_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// Layers of an image are verified in parallel, four at a time.
func TestLayersAreVerifiedInParallel(t *testing.T) {
	t.Parallel()
	for _, packing := range []sample.Compression{sample.Gzip, sample.Zstd} {
		t.Run(string(packing), func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			image := newImage(t, sample.Spec{Layers: 12, Packing: packing})
			registry.Push("app:v1", image)
			config, err := image.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			now, most, met := 0, 0, make(chan bool)
			registry.Inject("GET .*/blobs/", 0, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if req.URL.Path == "/v2/app/blobs/"+config.String() {
						next.ServeHTTP(w, req)
						return
					}
					mu.Lock()
					if now++; now > most {
						if most = now; most == 4 {
							close(met)
						}
					}
					mu.Unlock()
					select {
					case <-met: // as many as there may be are here at once
					case <-time.After(2 * time.Minute):
					}
					mu.Lock()
					now--
					mu.Unlock()
					next.ServeHTTP(w, req)
				})
			})
			im := newImporter(t, importer.Options{Layers: importer.LayersVerify, Limits: pull.Limits{Concurrency: 4}})
			mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
			if most != 4 {
				t.Errorf("at most %d layers were read at a time, want 4", most)
			}
		})
	}
}

// However many registries begin layers that do not end, those of another one are verified: one that
// is compressed with zstd when those have come too slowly for long enough, any other at once.
func TestAttackLayersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	const forever = 1000 * time.Hour
	im := newImporter(t, importer.Options{Layers: importer.LayersVerify, Clock: clock, Limits: pull.Limits{
		WindowBytes: 64 << 20, Stall: forever, Layer: forever, JobTime: forever,
	}})
	ctx, stop := context.WithCancel(t.Context())
	came := make(chan struct{}, 1000)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	const size = 16 << 10 // less than a layer, and more than a config
	for i := range 4 {
		hostile := registrytest.New(t)
		hostile.Push("app:v1", newImage(t, sample.Spec{Name: fmt.Sprint(i), Packing: sample.Zstd, LayerSize: 64 << 10}))
		hostile.Inject("GET .*/blobs/", 0, cut(t, size, size, came))
		ended.Go(func() { _, _ = im.Import(ctx, parse(t, hostile.Host+"/app:v1"), &registrytest.Images{}) })
	}
	for range 4 {
		<-came
	}
	honest := registrytest.New(t)
	for _, packing := range []sample.Compression{sample.Gzip, sample.Zstd} {
		honest.Push("app:v1", newImage(t, sample.Spec{Name: "honest", Packing: packing, LayerSize: 64 << 10}))
		done := make(chan error)
		go func() {
			_, err := im.Import(t.Context(), parse(t, honest.Host+"/app:v1"), &registrytest.Images{})
			done <- err
		}()
		for deadline := time.After(2 * time.Minute); done != nil; {
			select {
			case err := <-done:
				if done = nil; err != nil {
					t.Error(err)
				}
			case <-deadline:
				t.Fatalf("a layer of another registry is not verified: %s", packing)
			case <-time.After(time.Millisecond):
				if packing == sample.Zstd {
					clock.Step(100 * time.Millisecond)
				}
			}
		}
	}
}
