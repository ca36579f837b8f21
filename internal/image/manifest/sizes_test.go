package manifest_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// docs/reference/images.md has the size from which on a config is left out.
func TestConfigsThatAreLeftOut(t *testing.T) {
	for _, tc := range []struct {
		of      string
		bytes   int
		leftOut bool
	}{
		{"labels", 450_000, false}, {"labels", 530_227, false}, {"labels", 1 << 20, false}, {"labels", 1_320_000, true},
		{"history", 900_000, false}, {"history", 1 << 20, false}, {"history", 1_320_000, true},
	} {
		image := ofLength(t, tc.of, tc.bytes)
		if err := manifest.Fit(image); err != nil {
			t.Fatal(err)
		}
		if left, err := manifest.LeftOutOf(image); err != nil || (left.Config != nil) != tc.leftOut {
			t.Errorf("a config of %d bytes, mostly %s, is left out: %+v, %v, want %v", len(image.DockerImageConfig), tc.of, left.Config, err, tc.leftOut)
		}
	}
}

// ofLength returns an image with a config of a length, mostly labels or mostly history.
func ofLength(t *testing.T, of string, length int) *imagev1.Image {
	t.Helper()
	labels, history := map[string]string{}, []map[string]string{{}}
	text := strings.Repeat("x", length-400)
	if of == "labels" {
		labels["description"] = text
	} else {
		history[0]["created_by"] = text
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Labels": labels},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{}}, "history": history,
	})
	if err != nil {
		t.Fatal(err)
	}
	raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%x","size":%d},"layers":[]}`, sha256.Sum256(config), len(config))
	name := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(raw)))
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}, DockerImageReference: "r.example.com/app@" + name, DockerImageManifest: raw, DockerImageConfig: string(config)}
}

// Labels for which the metadata has no room beside the config are read from the config. The derived
// fields stay the same when the server computes them again.
func TestLabelsOfLargeConfigs(t *testing.T) {
	for _, length := range []int{530_227, 700_000, 1 << 20} {
		image := ofLength(t, "labels", length)
		if err := manifest.Derive(image); err != nil {
			t.Fatal(err)
		}
		whole := length < 600_000
		if got := len(image.DockerImageMetadata.Raw); (got > length/2) != whole || got > 5<<18 {
			t.Errorf("the metadata of a config of %d bytes has %d", length, got)
		}
		b, err := json.Marshal(image)
		if err != nil || len(b) > 5<<18+2000 {
			t.Errorf("the Image of a config of %d bytes has %d, %v", length, len(b), err)
		}
		metadata, err := manifest.Metadata(image)
		if err != nil || metadata.Config == nil || len(metadata.Config.Labels["description"]) != length-400 || metadata.Architecture != "amd64" {
			t.Errorf("of %d bytes: %v", length, err)
		}
		again := image.DeepCopy()
		if err := manifest.Derive(again); err != nil || !reflect.DeepEqual(image, again) {
			t.Errorf("derived twice it is another: %v", err)
		}
		if err := manifest.Fit(again); err != nil || !reflect.DeepEqual(image, again) {
			t.Errorf("what fits is changed: %v", err)
		}
	}
}
