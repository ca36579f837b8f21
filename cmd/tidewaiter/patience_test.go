package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// awayImages are those of an API server that is away from a moment on, for a while.
type awayImages struct {
	registrytest.Images
	clock *clocktesting.FakeClock
	err   error

	mu         sync.Mutex
	creates    int
	from, till time.Time
}

func (i *awayImages) Create(ctx context.Context, image *imagev1.Image, o metav1.CreateOptions) (*imagev1.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.creates++; i.creates == 5 {
		i.from = i.clock.Now()
		i.till = i.from.Add(time.Minute)
		// What is answered with an error may have been done.
		if _, err := i.Images.Create(ctx, image, o); err != nil {
			return nil, err
		}
	}
	if i.clock.Now().Before(i.till) {
		return nil, i.err
	}
	return i.Images.Create(ctx, image, o)
}

// An import failed for each reference that was under way, or came after, while the API server was restarted.
func TestImportWaitsForTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		fmt.Errorf("dial tcp 127.0.0.1:6443: %w", syscall.ECONNREFUSED),
		apierrors.NewServiceUnavailable("starting"),
	} {
		registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
		images := &awayImages{clock: clock, err: err}
		var stdout, stderr logBuffer
		progress := newProgress(&stderr)
		r := newReport("", "", &stdout, &stderr, progress)
		im, ierr := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
		if ierr != nil {
			t.Fatal(ierr)
		}
		t.Cleanup(im.Close)
		patience := &patience{clock: clock, say: progress.note}
		b := newBatch(im, func() importer.Images { return patience.images(images) }, 4, r, progress)
		var references []reference.Reference
		for i := range 20 {
			text := fmt.Sprintf("%s/team/app%d:1", registry.Host, i)
			registry.Push(fmt.Sprintf("team/app%d:1", i), sampleImage(t, fmt.Sprint(i)))
			ref, err := reference.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			references = append(references, ref)
		}
		ended := make(chan error)
		go func() {
			ended <- b.importAll(t.Context(), func(yield func(reference.Reference) bool) {
				for _, ref := range references {
					if !yield(ref) {
						return
					}
				}
			})
		}()
		for deadline := time.Now().Add(2 * time.Minute); ; {
			select {
			case err := <-ended:
				if err != nil || r.done != 20 || r.failed != 0 || len(images.Names()) != 20 {
					t.Errorf("%v: %d done, %d failed, %d stored:\n%s", err, r.done, r.failed, len(images.Names()), &stderr)
				}
				if n := strings.Count(stderr.String(), "the API server does not answer"); n != 1 {
					t.Errorf("it is said %d times:\n%s", n, &stderr)
				}
			case <-time.After(time.Millisecond):
				if time.Now().After(deadline) {
					t.Fatal("it does not end")
				}
				if clock.HasWaiters() {
					clock.Step(time.Second)
				}
				continue
			}
			break
		}
	}
}

// One that never answered, or stays away, is an error.
func TestPatienceHasAnEnd(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	p, began := &patience{clock: clock, say: func(string) {}}, clock.Now()
	if p.waits(syscall.ECONNREFUSED, began) {
		t.Error("a server that never answered is waited for")
	}
	if p.waits(nil, began) || p.waits(apierrors.NewNotFound(imagev1.Resource("images"), "x"), began) {
		t.Error("an answer is waited for")
	}
	if !p.waits(syscall.ECONNREFUSED, began) {
		t.Error("it is not waited for")
	}
	clock.Step(maxAway)
	if p.waits(syscall.ECONNREFUSED, began) {
		t.Error("it is waited for without end")
	}
}

func sampleImage(t *testing.T, name string) v1.Image {
	t.Helper()
	image, err := sample.New(sample.Spec{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return image
}
