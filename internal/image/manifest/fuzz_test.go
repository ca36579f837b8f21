package manifest_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// FuzzParse: with an error, the result is nil. An accepted manifest has one kind with the parts of
// that kind, and sizes that add up.
func FuzzParse(f *testing.F) {
	manifest.AddSeeds(f, func(raw []byte) {
		f.Add(raw, "")
		f.Add(raw, manifest.MediaTypeOCIIndex)
	})
	f.Fuzz(func(t *testing.T, raw []byte, mediaType string) {
		m, err := manifest.Parse(raw, mediaType)
		if err != nil {
			if m != nil {
				t.Fatal("a manifest with an error")
			}
			return
		}
		if len(m.Layers) > 0 && len(m.Children) > 0 {
			t.Fatal("both layers and children")
		}
		if m.Kind == manifest.KindImage && m.Config == nil {
			t.Fatal("an image without config")
		}
		if m.Verify(m.Digest) != nil {
			t.Fatal("a digest that does not verify")
		}
		var sum int64
		for _, l := range m.Layers {
			sum += l.Size
		}
		if m.Config != nil {
			sum += m.Config.Size
		}
		if size := m.Size(); size < 0 || (sum >= 0 && size > sum) {
			t.Fatalf("size %d of %d bytes listed", size, sum)
		}
		if len(m.ImageChildren()) > len(m.Children) {
			t.Fatal("more images than children")
		}
		// Parsing again with the manifest's own media type must give the same result.
		again, err := manifest.Parse(raw, m.MediaType)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("parsed by its own media type: %+v, %v", again, err)
		}
	})
}

// FuzzParseConfig: with an error, the result is nil. Fields can be derived from an accepted config.
func FuzzParseConfig(f *testing.F) {
	manifest.AddSeeds(f, func(raw []byte) { f.Add(raw) })
	f.Add([]byte(`{"config":{"Cmd":"sh"},"created":"9999-12-31T23:59:59-14:00"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := manifest.ParseConfig(raw)
		if (c == nil) != (err != nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
		if err != nil {
			return
		}
		doc, err := json.Marshal(map[string]any{
			"schemaVersion": 2,
			"config":        map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": manifest.Digest(raw), "size": len(raw)},
			"layers":        []any{},
		})
		if err != nil {
			t.Fatal(err)
		}
		image := newImage(manifest.Digest(doc), string(doc), string(raw), "")
		if err := manifest.Derive(image); err != nil {
			t.Fatalf("derive from an accepted config: %v", err)
		}
		metadata, err := manifest.Metadata(image)
		if err != nil || metadata.Size != int64(len(raw)) || metadata.Architecture != c.Architecture {
			t.Fatalf("metadata %s: %v", image.DockerImageMetadata.Raw, err)
		}
	})
}

// FuzzDerive: an error changes nothing; a success is final, valid and complete.
func FuzzDerive(f *testing.F) {
	pairs := map[string]string{"oci-image.json": "oci-config.json", "docker-schema2.json": "docker-config.json"}
	manifest.AddSeeds(f, func(raw []byte) { f.Add(string(raw), "", "") })
	for m, c := range pairs {
		f.Add(read(f, m), read(f, c), "")
	}
	f.Fuzz(func(t *testing.T, rawManifest, rawConfig, mediaType string) {
		image := newImage("x", rawManifest, rawConfig, mediaType)
		before := image.DeepCopy()
		if err := manifest.Derive(image); err != nil {
			if !reflect.DeepEqual(before, image) {
				t.Fatalf("changed in spite of error %v", err)
			}
			return
		}
		if rawManifest == "" {
			return
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, image.DockerImageMetadata.Raw); err != nil || !bytes.Equal(compact.Bytes(), image.DockerImageMetadata.Raw) {
			t.Fatalf("metadata is not compact JSON: %s", image.DockerImageMetadata.Raw)
		}
		if len(image.DockerImageLayers) > 0 && len(image.DockerImageManifests) > 0 {
			t.Fatal("both layers and manifests")
		}
		again := image.DeepCopy()
		if err := manifest.Derive(again); err != nil || !reflect.DeepEqual(image, again) {
			t.Fatalf("deriving again: %v\n%s\n%s", err, image.DockerImageMetadata.Raw, again.DockerImageMetadata.Raw)
		}
	})
}
