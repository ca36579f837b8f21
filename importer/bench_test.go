package importer_test

import (
	"fmt"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// BenchmarkImport imports one image from a registry in this process into
// memory. A known image costs a HEAD, another one a manifest and a config too.
func BenchmarkImport(b *testing.B) {
	registry := registrytest.New(b)
	registry.Push("app:v1", newImage(b, sample.Spec{Layers: 12}))
	limits := pull.Limits{HostRate: 1e9, HostBurst: 1e9}
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("Op=Import/Layers=12/Known=%t", known), func(b *testing.B) {
			im := newImporter(b, importer.Options{Limits: limits})
			images := &registrytest.Images{}
			mustImport(b, im, registry.Host+"/app:v1", images)
			for b.Loop() {
				if !known {
					images = &registrytest.Images{}
				}
				mustImport(b, im, registry.Host+"/app:v1", images)
			}
		})
	}
	b.Run("Op=Verify/Layers=12/Known=false", func(b *testing.B) {
		im := newImporter(b, importer.Options{Limits: limits, Layers: importer.LayersVerify})
		for b.Loop() {
			mustImport(b, im, registry.Host+"/app:v1", &registrytest.Images{})
		}
	})
}
