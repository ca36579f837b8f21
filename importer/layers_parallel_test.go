package importer_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// Layers are verified in parallel, as many as there is room for.
func TestLayersAreVerifiedInParallelWithinBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		limits pull.Limits
		most   int
	}{
		{"four at a time", pull.Limits{Concurrency: 4}, 4},
		{"each takes all the room", pull.Limits{Concurrency: 4, LayerBytes: 1}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			registry := registrytest.New(t)
			image := newImage(t, sample.Spec{Layers: 12})
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
						if most = now; most == tt.most {
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
			im := newImporter(t, importer.Options{Layers: importer.LayersVerify, Limits: tt.limits})
			mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
			if most != tt.most {
				t.Errorf("at most %d layers were read at a time, want %d", most, tt.most)
			}
		})
	}
}
