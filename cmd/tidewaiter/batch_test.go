package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/lanes"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// runBatch imports references into nothing and returns what was printed. No time passes
// before those of the registry good have been imported, so they wait for no other.
func runBatch(t *testing.T, limits importer.Limits, references []string, good *registrytest.Registry) (out, errOut string, r *report) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Now())
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Limits: limits, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	var parsed []reference.Reference
	goods := 0
	for _, s := range references {
		ref, err := reference.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, ref)
		if ref.Host == good.Host {
			goods++
		}
	}
	var stdout, stderr logBuffer
	progress := newProgress(&stderr)
	r = newReport("", "", &stdout, &stderr, progress)
	b := newBatch(im, func() importer.Images { return &importer.DryRun{} }, 4, r, progress)
	b.clock, b.lanes = clock, lanes.New(40, 4, clock)
	ended := make(chan error)
	go func() { ended <- b.importAll(t.Context(), slices.Values(parsed)) }()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return stdout.String(), stderr.String(), r
		case <-time.After(time.Millisecond):
		}
		if strings.Count(stdout.String(), good.Host) >= goods && clock.HasWaiters() {
			clock.Step(100 * time.Millisecond)
		} else if time.Now().After(deadline) {
			t.Fatalf("the good ones do not go on:\n%s", &stdout)
		}
	}
}

func pushTags(t *testing.T, registry *registrytest.Registry, n int) (references []string) {
	t.Helper()
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		registry.Push(fmt.Sprint("team/app:", i), image)
		references = append(references, fmt.Sprint(registry.Host, "/team/app:", i))
	}
	return references
}

// Twenty references of a host that says 429 kept forty good ones waiting for minutes,
// and failed.
func TestImportWaitsForRegistriesThatAskForIt(t *testing.T) {
	busy, good := registrytest.New(t), registrytest.New(t)
	references := append(pushTags(t, busy, 20), pushTags(t, good, 40)...)
	busy.Inject("HEAD ", 2, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "2"))
	out, errOut, r := runBatch(t, importer.Limits{MaxWait: time.Second, Stall: 1000 * time.Hour, Request: 1000 * time.Hour, JobTime: 1000 * time.Hour}, references, good)
	if r.done != 60 || r.failed != 0 {
		t.Fatalf("%d done, %d failed:\n%s", r.done, r.failed, errOut)
	}
	if first := strings.Index(out, busy.Host); strings.Count(out[:first], good.Host) != 40 {
		t.Errorf("the good ones did not go on:\n%s", out)
	}
	if n := strings.Count(errOut, busy.Host+" asks to be left alone for 2s; 20 references wait for it"); n == 0 || n > 2 {
		t.Errorf("it is not said, or said too often:\n%s", errOut)
	}
}

// A registry that never answers is asked three times, not once for each reference.
func TestImportGivesUpARegistryThatDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // accepts in the kernel, and never answers
	good := registrytest.New(t)
	var references []string
	for i := range 20 {
		references = append(references, fmt.Sprint(l.Addr(), "/app:", i))
	}
	references = append(references, pushTags(t, good, 40)...)
	_, errOut, r := runBatch(t, importer.Limits{Attempts: 1}, references, good)
	if r.done != 40 || r.failed != 20 {
		t.Errorf("%d done, %d failed", r.done, r.failed)
	}
	if n := strings.Count(errOut, "not tried, since the registry did not answer 3 times in a row"); n != 17 {
		t.Errorf("%d were not tried, want 17:\n%s", n, errOut)
	}
}

// A batch reads the images of references that wait with lists.
func TestBatchReadsImagesAhead(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	var references []reference.Reference
	for i := range 200 {
		image, err := sample.New(sample.Spec{Name: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("team/app:", i)
		registry.Push(name, image)
		references = append(references, reference.Reference{Host: registry.Host, Repository: "team/app", Tag: fmt.Sprint(i)})
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	images := &listedDigests{Images: &registrytest.Images{}}
	for range 2 {
		var stdout, stderr logBuffer
		progress := newProgress(&stderr)
		b := newBatch(im, func() importer.Images { return images }, 4, newReport("", "", &stdout, &stderr, progress), progress)
		if err := b.importAll(t.Context(), slices.Values(references)); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(stdout.String(), registry.Host); n != 200 {
			t.Errorf("%d of 200 were imported:\n%s%s", n, &stdout, &stderr)
		}
	}
	// A list that comes while another is read is left out, so there is but one for sure.
	if n := images.lists.Load(); n < 1 || n > 3 {
		t.Errorf("there were %d lists of images, want 1 to 3", n)
	}
	if n := len(images.Names()); n != 200 {
		t.Errorf("%d images are stored", n)
	}
}

// listedDigests counts the lists by digests.
type listedDigests struct {
	*registrytest.Images
	lists atomic.Int64
}

func (l *listedDigests) List(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	if strings.HasPrefix(o.FieldSelector, selectors.Digest) {
		l.lists.Add(1)
	}
	return l.Images.List(ctx, o)
}
