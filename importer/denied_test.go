package importer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

// A registry that denies to HEAD what it gives to GET, as Nexus and other proxies do, has it: tags
// stay, nothing is marked, and soon it is asked by GET alone.
func TestDeniedHeadsAreAskedByGet(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 405, 406, 501} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			registry, images := registrytest.New(t), &registrytest.Images{}
			known := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
			skipping := &skippingClock{}
			im := newImporter(t, importer.Options{Clock: skipping})
			ref := registry.Host + "/team/app:v1"
			mustImport(t, im, ref, images)

			registry.Inject("HEAD ", 0, registrytest.Status(status, "MANIFEST_UNKNOWN"))
			fresh := registry.PushIndex("team/other:v1", newIndex(t, sample.Spec{Name: "two"}, false, "linux/amd64", "linux/arm64"))
			mustImport(t, im, ref, images)
			if digest, err := im.Resolve(t.Context(), parse(t, registry.Host+"/team/app@"+known)); err != nil || digest != known {
				t.Errorf("the digest resolves to %q, %v", digest, err)
			}
			if digest, left, err := im.RefreshTag(t.Context(), parse(t, ref), images); digest != known || len(left) > 0 || err != nil {
				t.Errorf("the tag leads to %q, left %v, %v", digest, left, err)
			}
			if got, _ := history(t, images, ref); !slices.Equal(got, []string{known}) {
				t.Errorf("the history is %q", got)
			}
			if image := stored(t, images, known); image.Annotations[annotation.Gone] != "" {
				t.Errorf("it is marked: %v", image.Annotations)
			}
			if result := mustImport(t, im, registry.Host+"/team/other:v1", images); result.Digest != fresh {
				t.Errorf("it leads to %s, want %s", result.Digest, fresh)
			}
			if index, err := im.Index(t.Context(), parse(t, registry.Host+"/team/other:v1")); err != nil || index == nil {
				t.Errorf("the index is %v, %v", index, err)
			}
			if n := registry.Count("HEAD "); n > 3 {
				t.Errorf("%d HEADs, and all were denied", n)
			}
			// It may be mended.
			registry.Heal()
			skipping.advance(time.Hour)
			registry.Reset()
			mustImport(t, im, ref, images)
			if n := registry.Count("HEAD "); n != 1 {
				t.Errorf("%d HEADs an hour later", n)
			}
		})
	}
}

// A tag that is pushed between the two questions says nothing about the registry.
func TestATagThatComesBetweenHeadAndGet(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{})
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	registry.Inject("HEAD ", 1, registrytest.Status(404, "MANIFEST_UNKNOWN"))
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	registry.Reset()
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	if n := registry.Count("HEAD "); n != 1 {
		t.Errorf("%d HEADs of a known tag", n)
	}
}
