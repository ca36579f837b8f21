package importer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// confirmedImages are Images that are told of checks.
type confirmedImages struct {
	*registrytest.Images
	err error

	mu     sync.Mutex
	checks []tags.Check
	told   int // calls
}

func (c *confirmedImages) ConfirmTags(_ context.Context, checks []tags.Check) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told++
	c.checks = append(c.checks, checks...)
	return c.err
}

// What the registry says again is told, and not written. What changes is written, and not told.
func TestWhatIsConfirmedIsTold(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &confirmedImages{Images: &registrytest.Images{}}
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC))
	im := newImporter(t, importer.Options{Clock: clock})
	tag := registry.Host + "/team/app:v1"
	first := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "first"}))
	want := func(after string, all ...tags.Check) {
		t.Helper()
		if !slices.Equal(images.checks, all) {
			t.Errorf("%s: told of %v, want %v", after, images.checks, all)
		}
		images.checks = nil
	}
	mustImport(t, im, tag, images)
	want("a new tag")
	clock.Step(time.Hour)
	mustImport(t, im, tag, images)
	want("the same again", tags.Check{Reference: tag, Digest: first, At: clock.Now()})
	mustImport(t, im, registry.Host+"/team/app@"+first, images)
	want("a digest", tags.Check{Reference: registry.Host + "/team/app@" + first, Digest: first, At: clock.Now()})
	if digest, _, err := im.RefreshTag(t.Context(), parse(t, tag), images); err != nil || digest != first {
		t.Fatal(digest, err)
	}
	want("a look", tags.Check{Reference: tag, Digest: first, At: clock.Now()})
	registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "second"}))
	mustImport(t, im, tag, images)
	want("a move")
	registry.Server().Close()
	if _, err := im.Import(t.Context(), parse(t, tag), images); err == nil {
		t.Fatal("the registry answers")
	}
	want("a registry that is away")
}

// The checks of many imports are told together, all of them, and no more once the server does not
// take them.
func TestChecksOfManyAreToldTogether(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &confirmedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im := newImporter(t, importer.Options{Clock: clock})
	all := func() (told int) {
		prefetcher := newPrefetcher(t, images, clock, references)
		images.told, images.checks = 0, nil
		for i, ref := range references {
			if i == 30 {
				clock.Step(10 * time.Second) // the first ones waited long enough
			}
			mustImport(t, im, ref, prefetcher)
		}
		prefetcher.Flush(t.Context())
		prefetcher.Flush(t.Context())
		return images.told
	}
	all()
	if told := all(); told != 2 || len(images.checks) != 60 || !strings.HasSuffix(images.checks[59].Reference, ":59") {
		t.Errorf("60 checks were told %d times: %d", told, len(images.checks))
	}
	images.err = apierrors.NewForbidden(tags.New(parse(t, references[0])).GroupVersionKind().GroupVersion().WithResource("imagetags").GroupResource(), "checks", fmt.Errorf("no"))
	if told := all(); told != 1 {
		t.Errorf("a server that takes no checks was told %d times", told)
	}
}
