package importer_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Find looks at what a reference leads to and at nothing below it.
func TestFind(t *testing.T) {
	registry := registrytest.New(t)
	digest := registry.PushIndex("team/app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64"))
	signature, err := sample.Artifact("application/vnd.test.signature", []byte("signature"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", signature)
	for name, reference := range map[string]string{"tag": ":v1", "digest": "@" + digest} {
		t.Run(name, func(t *testing.T) {
			finder := &tagFinder{}
			im := newImporter(t, importer.Options{Signatures: finder})
			image, warnings, err := im.Find(t.Context(), parse(t, registry.Host+"/team/app"+reference))
			if err != nil || len(warnings) > 0 {
				t.Fatal(warnings, err)
			}
			if image.Name != digest || image.DockerImageReference != registry.Host+"/team/app@"+digest || !strings.Contains(image.DockerImageManifest, `"manifests"`) || len(image.Signatures) != 1 || image.Annotations["test/found"] != "yes" {
				t.Errorf("found %+v", image)
			}
			if !slices.Equal(finder.asked, []string{digest}) {
				t.Errorf("asked for %v", finder.asked)
			}
		})
	}
}

func TestFindFails(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	broken := errors.New("broken")
	im := newImporter(t, importer.Options{Signatures: &tagFinder{fail: broken}})
	if image, _, err := im.Find(t.Context(), parse(t, registry.Host+"/app:v1")); !errors.Is(err, broken) || image != nil {
		t.Errorf("found %v, %v", image, err)
	}
	if _, _, err := im.Find(t.Context(), parse(t, registry.Host+"/app:v2")); pull.ReasonOf(err) != pull.NotFound {
		t.Errorf("an absent tag: %v", err)
	}
	var bad *reference.Error
	if _, _, err := im.Find(t.Context(), reference.Reference{}); !errors.As(err, &bad) {
		t.Errorf("no reference: %v", err)
	}
	if _, _, err := newImporter(t, importer.Options{}).Find(t.Context(), parse(t, registry.Host+"/app:v1")); err == nil {
		t.Error("found without a finder")
	}
}

// An index is read, an image is not: a HEAD tells.
func TestIndex(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	digest := registry.PushIndex("team/app:index", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64"))
	registry.Push("team/app:image", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{})
	for tag, want := range map[string]string{"index": digest, "image": ""} {
		registry.Reset()
		m, err := im.Index(t.Context(), parse(t, registry.Host+"/team/app:"+tag))
		if err != nil || (m != nil) != (want != "") || m != nil && (m.Digest != want || len(m.ImageChildren()) != 2) {
			t.Errorf("%s: %+v, %v", tag, m, err)
		}
		if n := registry.Count("GET /v2/team/app/manifests/"); n > 0 != (want != "") {
			t.Errorf("%s: its manifest was read %d times", tag, n)
		}
	}
	if _, err := im.Index(t.Context(), parse(t, registry.Host+"/team/app:absent")); pull.ReasonOf(err) != pull.NotFound {
		t.Errorf("an absent tag: %v", err)
	}
	registry.Inject("HEAD ", 0, registrytest.Status(405, "UNSUPPORTED"))
	if m, err := im.Index(t.Context(), parse(t, registry.Host+"/team/app:index")); err != nil || m == nil || m.Digest != digest {
		t.Errorf("where a HEAD does not tell: %+v, %v", m, err)
	}
}
