package images_test

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What the other tests rely on: every image arrives in each registry with its
// digest, and is consistent down to its layers' uncompressed digests.
func TestImagesSurviveARegistry(t *testing.T) {
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			r := registry.Start(t, kind)
			single := map[string]v1.Image{
				"library/busybox:1": images.Busybox(t),
				"library/hello:1":   images.HelloWorld(t),
				"charts/app:1":      images.Artifact(t),
			}
			for tag, img := range single {
				ref, err := name.ParseReference(r.Push(t, tag, img), name.Insecure)
				if err != nil {
					t.Fatal(err)
				}
				got, err := remote.Image(ref)
				if err != nil {
					t.Fatal(err)
				}
				if want := images.Digest(t, img); images.Digest(t, got) != want {
					t.Errorf("%s came back as %s, want %s", tag, images.Digest(t, got), want)
				}
				if tag == "charts/app:1" {
					continue // not an image
				}
				if err := validate.Image(got); err != nil {
					t.Errorf("%s: %v", tag, err)
				}
			}
			for tag, index := range map[string]v1.ImageIndex{"team/multi:1": images.MultiArch(t), "team/list:1": images.DockerList(t)} {
				ref, err := name.ParseReference(r.Push(t, tag, index), name.Insecure)
				if err != nil {
					t.Fatal(err)
				}
				got, err := remote.Index(ref)
				if err != nil {
					t.Fatal(err)
				}
				for _, child := range images.Children(t, got) {
					img, err := got.Image(child.Digest)
					if err != nil {
						t.Fatal(err)
					}
					if err := validate.Image(img); err != nil {
						t.Errorf("%s, %s: %v", tag, child.Platform, err)
					}
				}
			}
			for _, q := range r.Requests(t) {
				if q.Status >= "500" {
					t.Errorf("the registry answered %s to %s %s", q.Status, q.Method, q.Path)
				}
			}
		})
	}
}
