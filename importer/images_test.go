package importer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// slowImages takes a millisecond for each request, as an API does.
type slowImages struct{ *registrytest.Images }

func (s slowImages) Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error) {
	time.Sleep(time.Millisecond)
	return s.Images.Get(ctx, name, options)
}

func (s slowImages) Create(ctx context.Context, image *imagev1.Image, options metav1.CreateOptions) (*imagev1.Image, error) {
	time.Sleep(time.Millisecond)
	return s.Images.Create(ctx, image, options)
}

func (s slowImages) Update(ctx context.Context, image *imagev1.Image, options metav1.UpdateOptions) (*imagev1.Image, error) {
	time.Sleep(time.Millisecond)
	return s.Images.Update(ctx, image, options)
}

// imageIn is an Image as an import from a repository has it.
func imageIn(repository reference.Reference, digest string) *imagev1.Image {
	annotations := map[string]string{}
	annotation.SetKnown(annotations, []reference.Reference{repository.WithTag("v1")})
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, Annotations: annotations}}
}

// As many jobs as one likes store one image, each from its own repository: none fails.
func TestOneImageInManyRepositories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		im, images, digest := newImporter(t, importer.Options{}), slowImages{&registrytest.Images{}}, "sha256:"+hex64
		const jobs = 300
		var writers sync.WaitGroup
		for i := range jobs {
			repository := parse(t, fmt.Sprintf("registry.example/team/app%d", i)).Bare()
			writers.Go(func() {
				if err := im.StoreImage(t.Context(), images, nil, imageIn(repository, digest), repository); err != nil {
					t.Error(err)
				}
			})
			writers.Go(func() {
				if _, err := im.Change(t.Context(), images, digest, func(image *imagev1.Image) bool {
					metav1.SetMetaDataLabel(&image.ObjectMeta, fmt.Sprint("l", i), "")
					return true
				}); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		for _, write := range images.Writes()[1:] {
			if write != "update "+digest {
				t.Errorf("there was a write %s", write)
			}
		}
		if got := len(annotation.Known(stored(t, images.Images, digest).Annotations)); got != annotation.MaxReferences {
			t.Errorf("it is known by %d references", got)
		}
	})
}

// Others write while an import waits after a conflict: it reads the Image when it is to write.
func TestImageIsReadAfterThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		im, images, digest := newImporter(t, importer.Options{}), &registrytest.Images{}, "sha256:"+hex64
		first, second := parse(t, "registry.example/one").Bare(), parse(t, "registry.example/two").Bare()
		if err := im.StoreImage(t.Context(), images, nil, imageIn(first, digest), first); err != nil {
			t.Fatal(err)
		}
		other := func(n int) {
			image := stored(t, images, digest)
			metav1.SetMetaDataLabel(&image.ObjectMeta, "n", fmt.Sprint(n))
			if _, err := images.Update(t.Context(), image, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}
		found := stored(t, images, digest)
		other(0)
		n := 0
		var others atomic.Bool // others' writes are let through as they are
		images.BeforeUpdate = func(string) {
			if others.Swap(true) {
				return
			}
			n++
			time.AfterFunc(time.Millisecond, func() { // in the pause, which is of 5 ms
				other(n)
				others.Store(false)
			})
		}
		if err := im.StoreImage(t.Context(), images, found, imageIn(second, digest), second); err != nil {
			t.Error(err)
		}
		if n != 2 {
			t.Errorf("it wrote %d times", n)
		}
	})
}
