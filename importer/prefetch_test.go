package importer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// countedImages counts what is asked of Images, by method.
type countedImages struct {
	*registrytest.Images
	listErr, listImagesErr error // of ListTags and List

	mu     sync.Mutex
	counts map[string]int
}

func (c *countedImages) count(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[method]++
}

// asked is what was asked since it was called last.
func (c *countedImages) asked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = nil
	return strings.TrimPrefix(fmt.Sprint(counts), "map")
}

func (c *countedImages) Get(ctx context.Context, name string, o metav1.GetOptions) (*imagev1.Image, error) {
	c.count("Get")
	return c.Images.Get(ctx, name, o)
}

func (c *countedImages) Create(ctx context.Context, image *imagev1.Image, o metav1.CreateOptions) (*imagev1.Image, error) {
	c.count("Create")
	return c.Images.Create(ctx, image, o)
}

func (c *countedImages) Update(ctx context.Context, image *imagev1.Image, o metav1.UpdateOptions) (*imagev1.Image, error) {
	c.count("Update")
	return c.Images.Update(ctx, image, o)
}

func (c *countedImages) GetTag(ctx context.Context, name string, o metav1.GetOptions) (*imagev1.ImageTag, error) {
	c.count("GetTag")
	return c.Images.GetTag(ctx, name, o)
}

func (c *countedImages) UpdateTag(ctx context.Context, tag *imagev1.ImageTag, o metav1.UpdateOptions) (*imagev1.ImageTag, error) {
	c.count("UpdateTag")
	return c.Images.UpdateTag(ctx, tag, o)
}

// Record merges as a server does.
func (c *countedImages) Record(ctx context.Context, item *record.Item) (*record.Result, error) {
	c.count("Record")
	return recordIn(ctx, c.Images, item)
}

func (c *countedImages) ListTags(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	c.count("ListTags")
	if c.listErr != nil {
		return nil, c.listErr
	}
	return c.Images.ListTags(ctx, o)
}

// List answers as a server does that looks at all Images for one page.
func (c *countedImages) List(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	c.count("List")
	if c.listImagesErr != nil {
		return nil, c.listImagesErr
	}
	all := &imagev1.ImageList{}
	for {
		list, err := c.Images.List(ctx, o)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// pushMany pushes n images to team/app, tagged 0, 1, …
func pushMany(t *testing.T, registry *registrytest.Registry, n int) (references []string) {
	t.Helper()
	for i := range n {
		name := fmt.Sprint("team/app:", i)
		registry.Push(name, newImage(t, sample.Spec{Name: name}))
		references = append(references, registry.Host+"/"+name)
	}
	return references
}

// newPrefetcher expects references.
func newPrefetcher(t *testing.T, images importer.Tagged, clock *clocktesting.FakeClock, references []string) *importer.Prefetcher {
	t.Helper()
	prefetcher := importer.NewPrefetcher(images, clock)
	for _, ref := range references {
		prefetcher.Expect(parse(t, ref))
	}
	return prefetcher
}

// A new image cost six requests to the API, and a known one two.
func TestImportOfManyReadsTheirTagsWithOneList(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im := newImporter(t, importer.Options{})
	all := func(references []string) {
		prefetcher := newPrefetcher(t, images, clock, references)
		for _, ref := range references {
			mustImport(t, im, ref, prefetcher)
		}
	}
	for _, want := range []string{
		// the List asks whether the repository has any image
		"[List:1 ListTags:1 Record:120]",
		"[Get:60 ListTags:1]",
	} {
		all(references)
		if got := images.asked(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for few, want := range map[int]string{3: "[Get:3 GetTag:3]", 20: "[Get:20 ListTags:1]"} {
		all(references[:few])
		if got := images.asked(); got != want {
			t.Errorf("%d: %s, want %s", few, got, want)
		}
	}
	// A tag that is new in a repository that is not may be recorded on an image that it has left.
	more := pushMany(t, registry, 61)
	all(more)
	if got, want := images.asked(), "[Get:61 ListTags:1 Record:2]"; got != want {
		t.Errorf("one is new: %s, want %s", got, want)
	}
	// After what has moved or could not be imported the tag is read.
	digest := registry.Push("team/app:7", newImage(t, sample.Spec{Name: "moved"}))
	all(references)
	if got, want := images.asked(), "[Get:61 ListTags:2 Record:2]"; got != want {
		t.Errorf("one has moved: %s, want %s", got, want)
	}
	if got, _ := history(t, images.Images, references[7]); len(got) != 2 || got[0] != digest {
		t.Errorf("the history is %v", got)
	}
}

// The images of a repository that is new may be stored: they were another's, or several tags lead
// to one.
func TestImagesThatAreNotNewInANewRepository(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	im := newImporter(t, importer.Options{})
	all := func(im *importer.Importer, references []string) (asked string) {
		t.Helper()
		images.asked()
		prefetcher := newPrefetcher(t, images, clock, references)
		for _, ref := range references {
			mustImport(t, im, ref, prefetcher)
		}
		return images.asked()
	}
	sources := pushMany(t, registry, 60)
	all(im, sources)
	var promoted, doubled, both []string
	for i := range 60 {
		image := newImage(t, sample.Spec{Name: fmt.Sprint("team/app:", i)})
		for repository, list := range map[string]*[]string{"team/promoted": &promoted, "team/verified": &both} {
			registry.Push(fmt.Sprint(repository, ":", i), image)
			*list = append(*list, fmt.Sprint(registry.Host, "/", repository, ":", i))
		}
		registry.Push(fmt.Sprint("team/doubled:", i), newImage(t, sample.Spec{Name: fmt.Sprint("doubled", i/2)}))
		doubled = append(doubled, fmt.Sprint(registry.Host, "/team/doubled:", i))
	}

	// The first is taken for new, and no other.
	if got, want := all(im, promoted), "[Get:59 List:1 ListTags:1 Record:120]"; got != want {
		t.Errorf("promoted: %s, want %s", got, want)
	}
	for i, ref := range promoted {
		digest, _ := history(t, images.Images, ref)
		if got := known(stored(t, images.Images, digest[0])); !slices.Contains(got, ref) || !slices.Contains(got, sources[i]) {
			t.Errorf("%s is known by %v", digest[0], got)
		}
	}
	if got, want := all(im, doubled), "[Get:30 List:1 ListTags:1 Record:120]"; got != want {
		t.Errorf("two tags of each image: %s, want %s", got, want)
	}
	// Layers that were verified in one repository are verified in the other.
	verifying := newImporter(t, importer.Options{Layers: importer.LayersVerify})
	if got, want := all(verifying, both), "[Get:60 List:1 ListTags:1 Record:120]"; got != want {
		t.Errorf("with layers: %s, want %s", got, want)
	}
}

// What tags led to is read with one list, and given once.
func TestImagesAreForeseen(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im := newImporter(t, importer.Options{})
	parsed := make([]reference.Reference, len(references))
	for i, ref := range references {
		parsed[i] = parse(t, ref)
	}
	all := func(prefetcher *importer.Prefetcher, references []string) (actions []importer.Action) {
		t.Helper()
		for _, ref := range references {
			actions = append(actions, mustImport(t, im, ref, prefetcher).Images[0].Action)
		}
		return slices.Compact(actions)
	}
	prefetcher := newPrefetcher(t, images, clock, references)
	prefetcher.Prefetch(t.Context(), parsed)
	all(prefetcher, references)
	if got, want := images.asked(), "[List:1 ListTags:1 Record:120]"; got != want {
		t.Errorf("of what is not there: %s, want %s", got, want)
	}

	prefetcher = newPrefetcher(t, images, clock, references)
	prefetcher.Prefetch(t.Context(), parsed[5:])
	if got := all(prefetcher, references); !slices.Equal(got, []importer.Action{importer.Unchanged}) {
		t.Errorf("known images are %v", got)
	}
	if got, want := images.asked(), "[Get:10 List:1 ListTags:1]"; got != want {
		// five before, and five behind the fifty
		t.Errorf("%s, want %s", got, want)
	}

	// Not for long, and not twice.
	prefetcher = newPrefetcher(t, images, clock, append(slices.Clone(references), references[1]))
	prefetcher.Prefetch(t.Context(), parsed)
	all(prefetcher, []string{references[0], references[1], references[1]})
	clock.Step(3 * time.Second)
	all(prefetcher, references[2:5])
	if got, want := images.asked(), "[Get:4 GetTag:1 List:1 ListTags:1]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// What is held is bounded, however much is prefetched and not asked for.
	more := pushMany(t, registry, 250)
	all(newPrefetcher(t, images, clock, more), more)
	prefetcher = newPrefetcher(t, images, clock, more)
	parsed = parsed[:0]
	for _, ref := range more {
		parsed = append(parsed, parse(t, ref))
	}
	for i := 0; i < len(parsed); i += importer.PrefetchImages {
		prefetcher.Prefetch(t.Context(), parsed[i:])
	}
	images.asked()
	all(prefetcher, more)
	if got, want := images.asked(), "[Get:200]"; got != want {
		t.Errorf("%s, want %s: the last 50 are held", got, want)
	}

	// An older server has no such list: it is asked once.
	images.listImagesErr = apierrors.NewBadRequest("select otherwise")
	prefetcher = newPrefetcher(t, images, clock, references)
	for range 3 {
		prefetcher.Prefetch(t.Context(), parsed)
	}
	all(prefetcher, references)
	if got, want := images.asked(), "[Get:60 List:1 ListTags:1]"; got != want {
		t.Errorf("an older server: %s, want %s", got, want)
	}

	// One that is busy, or whose list breaks off, is asked again.
	for _, err := range []error{apierrors.NewTooManyRequests("later", 1), io.ErrUnexpectedEOF} {
		images.listImagesErr = err
		prefetcher = newPrefetcher(t, images, clock, references)
		prefetcher.Prefetch(t.Context(), parsed)
		images.listImagesErr = nil
		prefetcher.Prefetch(t.Context(), parsed)
		all(prefetcher, references)
		if got, want := images.asked(), "[Get:10 List:2 ListTags:1]"; got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// An Image that others write after it was prefetched keeps what they wrote.
func TestImagesThatChangedSinceTheyWereForeseen(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &registrytest.Images{}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im, other := newImporter(t, importer.Options{}), newImporter(t, importer.Options{})
	parsed := make([]reference.Reference, len(references))
	for i, ref := range references {
		mustImport(t, im, ref, images)
		parsed[i] = parse(t, ref)
	}
	prefetcher := newPrefetcher(t, images, clock, append(slices.Clone(references), registry.Host+"/team/app:new"))
	prefetcher.Prefetch(t.Context(), parsed)

	// Two tags more lead to an image: one is imported by others, and one here.
	image := newImage(t, sample.Spec{Name: "team/app:0"})
	digest := registry.Push("team/app:theirs", image)
	registry.Push("team/app:new", image)
	mustImport(t, other, registry.Host+"/team/app:theirs", images)
	if got := mustImport(t, im, registry.Host+"/team/app:new", prefetcher); got.Images[0].Action != importer.Updated {
		t.Errorf("the image is %s", got.Images[0].Action)
	}
	for _, want := range []string{references[0], registry.Host + "/team/app:theirs", registry.Host + "/team/app:new"} {
		if got := known(stored(t, images, digest)); !slices.Contains(got, want) {
			t.Errorf("it is known by %v, and not by %s", got, want)
		}
	}
}

// What was listed is not what is there now: others write of a tag between the list and the look.
func TestTagsThatMovedSinceTheyWereListed(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &registrytest.Images{}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im, other := newImporter(t, importer.Options{}), newImporter(t, importer.Options{})
	first := mustImport(t, other, references[1], images).Digest
	prefetcher := newPrefetcher(t, images, clock, references)
	mustImport(t, im, references[0], prefetcher) // lists

	// One that was listed, and one that was not there. Each is found elsewhere, and moves once
	// more.
	for _, i := range []int{1, 2} {
		want := []string{}
		for _, name := range []string{"second", "third"} {
			want = append(want, registry.Push(fmt.Sprint("team/app:", i), newImage(t, sample.Spec{Name: fmt.Sprint(name, i)})))
			if name == "second" {
				mustImport(t, other, references[i], images)
			}
		}
		mustImport(t, im, references[i], prefetcher)
		slices.Reverse(want)
		if i == 1 {
			want = append(want, first)
		}
		if got, _ := history(t, images, references[i]); !slices.Equal(got, want) {
			t.Errorf("tag %d led to %v, want %v", i, got, want)
		}
		for _, digest := range want[1:] {
			if got := known(stored(t, images, digest)); slices.Contains(got, references[i]) {
				t.Errorf("%s is still known by %v", digest, got)
			}
		}
	}
	// One that is gone is marked, one that fails is recorded as that.
	mustImport(t, im, references[3], prefetcher)
	prefetcher = newPrefetcher(t, images, clock, references)
	mustImport(t, im, references[0], prefetcher)
	deleteTag(t, registry, "team/app", "3")
	_, err := im.Import(t.Context(), parse(t, references[3]), prefetcher)
	wantReason(t, err, pull.NotFound)
	if got, _ := history(t, images, references[3]); len(got) != 2 || got[0] != "" {
		t.Errorf("what is gone led to %q", got)
	} else if image := stored(t, images, got[1]); annotation.Missing(image.Annotations)[parse(t, references[3])] == "" {
		t.Error("what is gone is not marked")
	}
	registry.Inject("/manifests/2", 1000, registrytest.Status(http.StatusForbidden, "DENIED"))
	if _, err := im.Import(t.Context(), parse(t, references[2]), prefetcher); err == nil {
		t.Fatal("the registry does not fail")
	}
	if _, tag := history(t, images, references[2]); len(tag.Status.Conditions) != 1 {
		t.Errorf("the failure is not recorded: %+v", tag.Status)
	}
	// It is imported again, after what was listed was used.
	registry.Heal()
	mustImport(t, im, references[2], prefetcher)
	if _, tag := history(t, images, references[2]); len(tag.Status.Conditions) != 0 {
		t.Errorf("the failure is still recorded: %+v", tag.Status)
	}
}

// What is listed grows old, and is listed again if it was of use.
func TestTagsAreListedAgain(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 120)
	im := newImporter(t, importer.Options{})
	all := func(prefetcher *importer.Prefetcher, references []string) {
		for _, ref := range references {
			mustImport(t, im, ref, prefetcher)
		}
	}
	all(newPrefetcher(t, images, clock, references), references)
	images.asked()
	prefetcher := newPrefetcher(t, images, clock, references)
	for _, tt := range []struct {
		from, to int
		want     string
	}{
		{0, 30, "[Get:30 ListTags:1]"},
		{30, 35, "[Get:5 ListTags:1]"},  // a quarter of the list was of use
		{35, 120, "[Get:85 GetTag:85]"}, // and too little of this one
	} {
		all(prefetcher, references[tt.from:tt.to])
		if got := images.asked(); got != tt.want {
			t.Errorf("%d to %d: %s, want %s", tt.from, tt.to, got, tt.want)
		}
		clock.Step(2 * time.Minute)
	}
	// Who may not list reads each.
	images.listErr = errors.New("forbidden")
	all(newPrefetcher(t, images, clock, references[:50]), references[:50])
	if got, want := images.asked(), "[Get:50 GetTag:50 ListTags:1]"; got != want {
		t.Errorf("without lists: %s, want %s", got, want)
	}
}

// A long first import of a repository listed the tags that it had made itself, and then read each
// new tag and asked for its images.
func TestFirstImportOfARepositoryIsNotListedAgain(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 120)
	im := newImporter(t, importer.Options{})
	prefetcher := newPrefetcher(t, images, clock, references)
	for i, ref := range references {
		if i%40 == 39 {
			clock.Step(2 * time.Minute)
		}
		mustImport(t, im, ref, prefetcher)
	}
	if got, want := images.asked(), "[List:1 ListTags:1 Record:240]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// Others import tags of such a repository meanwhile, and long after the list. The tags have
	// moved since.
	images = &countedImages{Images: &registrytest.Images{}}
	prefetcher = newPrefetcher(t, images, clock, references)
	mustImport(t, im, references[0], prefetcher)
	clock.Step(2 * time.Minute)
	other := newImporter(t, importer.Options{})
	first := mustImport(t, other, references[1], images.Images).Digest
	second := registry.Push("team/app:1", newImage(t, sample.Spec{Name: "moved"}))
	mustImport(t, im, references[1], prefetcher)
	if got, _ := history(t, images.Images, references[1]); !slices.Equal(got, []string{second, first}) {
		t.Errorf("the tag led to %v, want %v", got, []string{second, first})
	}
	if got := known(stored(t, images.Images, first)); slices.Contains(got, references[1]) {
		t.Errorf("what the tag has left is still known by %v", got)
	}
}

// A repository with very many tags is not read for the sake of a few.
func TestFewOfVeryManyTags(t *testing.T) {
	t.Parallel()
	registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
	images := &pagedTags{countedImages{Images: &registrytest.Images{}}, 50}
	chosen := pushMany(t, registry, 50)
	im := newImporter(t, importer.Options{})
	for _, ref := range chosen {
		mustImport(t, im, ref, images.Images)
	}
	for i := range 300 { // names between those of the others
		ref := parse(t, fmt.Sprintf("%s/team/app:%d-old", registry.Host, i))
		tag := tags.New(ref)
		tags.Lead(tag, ref, "sha256:"+hex64, metav1.NewTime(clock.Now()))
		if _, err := images.Images.UpdateTag(t.Context(), tag, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	prefetcher := newPrefetcher(t, images, clock, chosen)
	for _, ref := range chosen {
		mustImport(t, im, ref, prefetcher)
	}
	got := images.asked()
	var lists int
	if _, err := fmt.Sscanf(got[strings.Index(got, "ListTags:"):], "ListTags:%d", &lists); err != nil || lists != 4 {
		t.Errorf("%s: four pages of 50 are four times what is expected", got)
	}
	if !strings.Contains(got, "GetTag:") {
		t.Errorf("%s: what is on no page is read", got)
	}
	// What is not on the pages that were read may be there.
	for _, ref := range chosen {
		if digests, _ := history(t, images.Images, ref); len(digests) != 1 {
			t.Errorf("%s led to %v", ref, digests)
		}
	}
}

// pagedTags lists tags in pages.
type pagedTags struct {
	countedImages
	size int
}

func (p *pagedTags) ListTags(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	if !strings.HasPrefix(o.FieldSelector, selectors.TagRepository+"=") {
		return nil, errors.New("a list of all")
	}
	all := o
	all.Limit, all.Continue = 0, ""
	list, err := p.countedImages.ListTags(ctx, all)
	if err != nil {
		return nil, err
	}
	from := 0
	if o.Continue != "" {
		if from, err = strconv.Atoi(o.Continue); err != nil {
			return nil, err
		}
	}
	to := min(from+p.size, len(list.Items))
	if list.Continue = ""; to < len(list.Items) {
		list.Continue = fmt.Sprint(to)
	}
	list.Items = list.Items[from:to]
	return list, nil
}

// Many jobs take of one list.
func TestManyJobsWaitForOneList(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 64)
	im := newImporter(t, importer.Options{Limits: pull.Limits{HostConcurrency: 64}})
	for _, want := range []string{"[List:1 ListTags:1 Record:128]", "[Get:64 ListTags:1]"} {
		prefetcher := newPrefetcher(t, images, clock, references)
		var jobs sync.WaitGroup
		for _, ref := range references {
			jobs.Go(func() {
				if _, err := im.Import(t.Context(), parse(t, ref), prefetcher); err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			})
		}
		jobs.Wait()
		if got := images.asked(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// What is expected by its digest follows no tag.
func TestDigestsAreNotReadAhead(t *testing.T) {
	t.Parallel()
	images := &countedImages{Images: &registrytest.Images{}}
	prefetcher := importer.NewPrefetcher(images, clocktesting.NewFakeClock(time.Now()))
	for range 100 {
		prefetcher.Expect(reference.Reference{Host: "registry.example.com", Repository: "team/app", Digest: "sha256:" + hex64})
	}
	if n := prefetcher.Expected(); n != 0 {
		t.Errorf("%d repositories are remembered", n)
	}
}
