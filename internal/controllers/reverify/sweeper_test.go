package reverify_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// patience bounds how long a test waits by the real clock.
const patience = 2 * time.Minute

// store is Images in memory, listed in pages.
type store struct {
	mu      sync.Mutex
	images  map[string]*imagev1.Image
	names   []string // when the first page was listed
	lists   int      // without those by name
	gets    int
	updates []string
	// revision is that of the last update.
	revision int

	// judge judges on a write, as the server does.
	judge *signatures.Live

	onList   func(opts metav1.ListOptions) error
	onUpdate func(image *imagev1.Image) error
	damaged  []string // names of Images that cannot be read
}

func (s *store) Get(_ context.Context, name string, _ metav1.GetOptions) (*imagev1.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	if slices.Contains(s.damaged, name) {
		return nil, apierrors.NewInternalError(errors.New(name + " is damaged"))
	}
	if image, ok := s.images[name]; ok {
		return image.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

// ListBrief lists the Images that a selector names by their digests, without their content.
func (s *store) ListBrief(_ context.Context, opts metav1.ListOptions) (*imagev1.ImageList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	digests, ok := strings.CutPrefix(opts.FieldSelector, selectors.Digest+"=")
	if !ok {
		return nil, fmt.Errorf("the selector %q names no digests", opts.FieldSelector)
	}
	list, err := s.named(strings.Split(digests, selectors.DigestSeparator))
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		image := &list.Items[i]
		image.DockerImageManifest, image.DockerImageConfig, image.DockerImageMetadata = "", "", runtime.RawExtension{}
	}
	return list, nil
}

func (s *store) List(_ context.Context, opts metav1.ListOptions) (*imagev1.ImageList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.onList != nil {
		if err := s.onList(opts); err != nil {
			return nil, err
		}
	}
	if opts.Continue == "" {
		s.names = slices.Sorted(maps.Keys(s.images))
	}
	list := &imagev1.ImageList{}
	at, _ := slices.BinarySearch(s.names, opts.Continue)
	for i, name := range s.names[at:] {
		if s.images[name] == nil {
			continue // deleted since
		}
		if int64(len(list.Items)) == opts.Limit {
			left := int64(len(s.names) - at - i)
			list.Continue, list.RemainingItemCount = name, &left
			break
		}
		if slices.Contains(s.damaged, name) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonStoreReadError, Message: name + " is damaged",
				ListMeta: metav1.ListMeta{Continue: name + "\x00"},
			}}
		}
		list.Items = append(list.Items, *s.images[name].DeepCopy())
	}
	return list, nil
}

// named lists images by name. s.mu is held.
func (s *store) named(names []string) (*imagev1.ImageList, error) {
	list := &imagev1.ImageList{}
	for _, name := range names {
		if slices.Contains(s.damaged, name) {
			return nil, apierrors.NewInternalError(errors.New(name + " is damaged"))
		}
		if image, ok := s.images[name]; ok {
			list.Items = append(list.Items, *image.DeepCopy())
		}
	}
	return list, nil
}

func (s *store) Update(_ context.Context, image *imagev1.Image, _ metav1.UpdateOptions) (*imagev1.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onUpdate != nil {
		if err := s.onUpdate(image); err != nil {
			return nil, err
		}
	}
	if s.images[image.Name].ResourceVersion != image.ResourceVersion {
		return nil, apierrors.NewConflict(imagev1.Resource("images"), image.Name, errors.New("changed"))
	}
	image = image.DeepCopy()
	s.judge.Verify(image, func(repository string) ([]*imagev1.Image, error) {
		if index := s.index(repository, image.Name); index != nil {
			return []*imagev1.Image{index}, nil
		}
		return nil, nil
	})
	if apiequality.Semantic.DeepEqual(image, s.images[image.Name]) {
		return image, nil
	}
	s.updates = append(s.updates, image.Name)
	s.revision++
	image.ResourceVersion = strconv.Itoa(s.revision)
	s.images[image.Name] = image
	return image, nil
}

// index finds what the server finds in its index of verified indexes.
func (s *store) index(repository, digest string) *imagev1.Image {
	for _, name := range slices.Sorted(maps.Keys(s.images)) {
		v := annotation.Judged(s.images[name].Annotations)[repository]
		listed := slices.ContainsFunc(s.images[name].DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.Digest == digest })
		if listed && (v.Verified == verdicts.VerifiedTrue || v.Verified == verdicts.ByIndex) {
			return s.images[name]
		}
	}
	return nil
}

// sweeper sweeps images that are judged by live when they are written.
func sweeper(images *store, live *signatures.Live, clock clock.WithTicker) *reverify.Sweeper {
	images.judge = live
	return reverify.New(reverify.Options{Images: images, Policies: live, Clock: clock})
}

func (s *store) updated() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.updates)
}

// counts are the stored Images by verdict.
func (s *store) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, image := range s.images {
		verified, _, _ := signatures.Summary(image)
		out[verified]++
	}
	return out
}

// signedImages makes n Images: each tenth has no signature, the others have one of key.
func signedImages(t testing.TB, key *signaturestest.Key, n int) *store {
	t.Helper()
	s := &store{images: map[string]*imagev1.Image{}}
	for i := range n {
		digest := fmt.Sprintf("sha256:%064x", i)
		image := &imagev1.Image{
			ObjectMeta:           metav1.ObjectMeta{Name: digest},
			DockerImageReference: "registry.example.com/team/app@" + digest,
		}
		if i%10 != 0 {
			content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, "registry.example.com/team/app:v1"))
			image.Signatures = []imagev1.ImageSignature{{
				ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)},
				Type:       signatures.TypeSimpleSigning, Content: content,
			}}
		}
		s.images[digest] = image
	}
	return s
}

func trust(t testing.TB, key *signaturestest.Key) *policy.Set {
	t.Helper()
	return signaturestest.Set(t, signaturestest.TrustKey(key, nil), "")
}

func wantCounts(t *testing.T, s *store, want map[string]int) {
	t.Helper()
	if got := s.counts(); !maps.Equal(got, want) {
		t.Errorf("images by verdict: %v, want %v", got, want)
	}
}

// A sweep judges every Image once; a second has nothing to write until the policy changes.
func TestSweep(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 250)
	clock := clocktesting.NewFakeClock(start)
	live := signatures.NewLive(trust(t, key), clock)
	s := sweeper(images, live, clock)
	for _, step := range []struct {
		name    string
		set     *policy.Set
		changed int64
		want    map[string]int
	}{
		{"first", trust(t, key), 250, map[string]int{"True": 225, "Unsigned": 25}},
		{"again", trust(t, key), 0, map[string]int{"True": 225, "Unsigned": 25}},
		{"another key", trust(t, other), 250, map[string]int{"False": 225, "Unsigned": 25}},
		{"no policy", nil, 250, map[string]int{"NoPolicy": 250}},
		{"no policy again", nil, 0, map[string]int{"NoPolicy": 250}},
		{"the key again", trust(t, key), 250, map[string]int{"True": 225, "Unsigned": 25}},
	} {
		t.Run(step.name, func(t *testing.T) {
			live.Replace(step.set)
			lists, updates := images.lists, images.updated()
			if err := s.Sweep(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			p := s.Progress()
			if p.Changed != step.changed || p.Examined != 250 || p.Total != 250 || p.Failed != 0 || p.Running {
				t.Errorf("progress %+v", p)
			}
			if got := images.updated() - updates; int64(got) != step.changed {
				t.Errorf("%d writes, want %d", got, step.changed)
			}
			if got := images.lists - lists; got != 25 {
				t.Errorf("%d lists, want 25 pages", got)
			}
			wantCounts(t, images, step.want)
			for verdict, n := range step.want {
				if p.Verified[verdict] != int64(n) {
					t.Errorf("the progress counts %d images %s, want %d", p.Verified[verdict], verdict, n)
				}
			}
		})
	}
}

// The next process takes up a sweep that was cut short: nothing is judged or written twice.
func TestSweepIsResumed(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 300)
	clock := clocktesting.NewFakeClock(start)
	ctx, stop := context.WithCancel(t.Context())
	images.onUpdate = func(*imagev1.Image) error {
		if len(images.updates) >= 99 {
			stop()
		}
		return nil
	}
	err := sweeper(images, signatures.NewLive(trust(t, key), clock), clock).Sweep(ctx, false)
	// Writers that were under way when it was stopped finish.
	if n := images.updated(); !errors.Is(err, context.Canceled) || n < 100 || n > 110 {
		t.Fatalf("the first sweep: %v after %d writes", err, images.updated())
	}
	images.onUpdate = nil
	if err := sweeper(images, signatures.NewLive(trust(t, key), clock), clock).Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if twice := len(images.updates) - len(slices.Compact(slices.Sorted(slices.Values(images.updates)))); images.updated() != 300 || twice != 0 {
		t.Errorf("%d writes, %d of them twice", images.updated(), twice)
	}
	wantCounts(t, images, map[string]int{"True": 270, "Unsigned": 30})
}

// Whoever pushes large images cannot make a sweep hold a lot of memory: an Image is 12 MiB at most.
func TestAttackSweepOfLargeImages(t *testing.T) {
	t.Parallel()
	images := signedImages(t, signaturestest.NewKey(t, signaturestest.P256), 30)
	clock := clocktesting.NewFakeClock(start)
	images.onList = func(opts metav1.ListOptions) error {
		if opts.Limit < 1 || opts.Limit*12 > 128 {
			t.Errorf("a page of %d images is held", opts.Limit)
		}
		return nil
	}
	if err := sweeper(images, signatures.NewLive(nil, clock), clock).Sweep(t.Context(), true); err != nil {
		t.Fatal(err)
	}
}

// What others do meanwhile is not a failure: old revisions go, Images are written and deleted.
func TestSweepAmongOthers(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 250)
	expired := false
	images.onList = func(opts metav1.ListOptions) error {
		if opts.Continue == "" || expired {
			return nil
		}
		expired = true
		err := apierrors.NewResourceExpired("the list is too old")
		err.ErrStatus.Continue = opts.Continue
		return err
	}
	labelled, deleted := fmt.Sprintf("sha256:%064x", 111), fmt.Sprintf("sha256:%064x", 112)
	images.onUpdate = func(image *imagev1.Image) error {
		switch image.Name {
		case labelled:
			if stored := images.images[labelled]; stored.Labels == nil {
				stored.Labels, stored.ResourceVersion = map[string]string{"mine": "yes"}, "later"
			}
		case deleted:
			delete(images.images, deleted)
			return apierrors.NewNotFound(imagev1.Resource("images"), deleted)
		}
		return nil
	}
	clock := clocktesting.NewFakeClock(start)
	s := sweeper(images, signatures.NewLive(trust(t, key), clock), clock)
	if err := s.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if !expired {
		t.Error("no list expired: the test shows nothing")
	}
	wantCounts(t, images, map[string]int{"True": 224, "Unsigned": 25})
	if images.images[labelled].Labels["mine"] != "yes" {
		t.Error("another's write was lost")
	}
}

// An Image that cannot be written is reported, and does not keep others from being written.
func TestSweepReportsFailures(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 20)
	bad := fmt.Sprintf("sha256:%064x", 3)
	images.onUpdate = func(image *imagev1.Image) error {
		if image.Name == bad {
			return errors.New("disk full")
		}
		return nil
	}
	clock := clocktesting.NewFakeClock(start)
	s := sweeper(images, signatures.NewLive(trust(t, key), clock), clock)
	err := s.Sweep(t.Context(), false)
	if p := s.Progress(); err == nil || !strings.Contains(err.Error(), "1 of 20") || p.Failed != 1 || p.Changed != 19 || p.Error == "" {
		t.Errorf("error %v, progress %+v", err, p)
	}
	images.onList = func(metav1.ListOptions) error { return errors.New("no such table") }
	if err := s.Sweep(t.Context(), false); err == nil || !strings.Contains(err.Error(), "no such table") {
		t.Errorf("error %v", err)
	}
}

// An Image that cannot be read keeps no other from being judged, and is not a reason to repeat a
// sweep.
func TestSweepPassesOverDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := signaturestest.NewKey(t, signaturestest.P256)
		images := signedImages(t, key, 250)
		for _, i := range []int{0, 57, 58, 249} {
			images.damaged = append(images.damaged, fmt.Sprintf("sha256:%064x", i))
		}
		s := running(t, images, signatures.NewLive(trust(t, key), clock.RealClock{}))
		await(t, s, 1)
		if p := s.Progress(); p.Examined != 246 || p.Unreadable != 4 || p.Failed != 0 || !strings.Contains(p.Error, "damaged") {
			t.Errorf("progress %+v", p)
		}
		counts := images.counts()
		if n := counts[verdicts.VerifiedTrue]; n == 0 || n+counts[verdicts.Unsigned] != int(s.Progress().Changed) {
			t.Errorf("images by verdict: %v, %d were changed", counts, s.Progress().Changed)
		}
		time.Sleep(10 * time.Minute)
		await(t, s, 1)
	})
}

// running is a Sweeper that runs in a bubble until the test ends.
func running(t *testing.T, images *store, live *signatures.Live) *reverify.Sweeper {
	t.Helper()
	s := sweeper(images, live, clock.RealClock{})
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); runs.Wait() })
	return s
}

// await waits until nothing happens any more, and expects that many sweeps.
func await(t *testing.T, s *reverify.Sweeper, sweeps int64) {
	t.Helper()
	synctest.Wait()
	if p := s.Progress(); p.Sweep != sweeps || p.Running {
		t.Errorf("after %d sweeps it is %+v", sweeps, p)
	}
}

func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestRunSweepsWhenItHasTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
		images, live := signedImages(t, key, 10), signatures.NewLive(trust(t, key), clock.RealClock{})
		s := running(t, images, live)
		await(t, s, 1)
		wantCounts(t, images, map[string]int{"True": 9, "Unsigned": 1})

		time.Sleep(reverify.DefaultResync / 2)
		live.Replace(trust(t, other))
		if n := s.Trigger(); n != 2 {
			t.Errorf("the trigger promises sweep %d", n)
		}
		await(t, s, 2)
		wantCounts(t, images, map[string]int{"False": 9, "Unsigned": 1})

		time.Sleep(reverify.DefaultResync - time.Second) // since that one
		await(t, s, 2)
		time.Sleep(time.Second)
		await(t, s, 3)

		// An expiry comes before the hour is over.
		images.mu.Lock()
		for _, image := range images.images {
			if len(image.Signatures) > 0 {
				image.Annotations[signatures.AnnotationRecheck] = time.Now().Add(10 * time.Minute).Format(time.RFC3339)
			}
		}
		images.mu.Unlock()
		s.Resync()
		await(t, s, 4)
		time.Sleep(9 * time.Minute)
		await(t, s, 4)
		time.Sleep(time.Minute)
		await(t, s, 5)
		if p := s.Progress(); p.Changed != 9 {
			t.Errorf("%d images were judged again at their expiry, want 9", p.Changed)
		}
	})
}

// An exception of a policy ends by itself: a sweep judges its images again at that second.
func TestRunSweepsWhenAnExceptionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
		images := signedImages(t, key, 10)
		exception := fmt.Sprintf("  exceptions: [{images: [%q, %q], until: %q, by: ann, reason: why}]\n", fmt.Sprintf("sha256:%064x", 0), fmt.Sprintf("sha256:%064x", 3), time.Now().Add(10*time.Minute).Format(time.RFC3339))
		document := signaturestest.Document("demo", `["registry.example.com"]`, signaturestest.TrustKey(other, nil), "") + exception
		s := running(t, images, signatures.NewLive(signaturestest.SetFrom(t, document), clock.RealClock{}))
		await(t, s, 1)
		wantCounts(t, images, map[string]int{"False": 8, "Excepted": 2})
		time.Sleep(10*time.Minute - time.Second)
		await(t, s, 1)
		time.Sleep(time.Second)
		await(t, s, 2)
		wantCounts(t, images, map[string]int{"False": 9, "Unsigned": 1})
	})
}

// Failures are tried again soon.
func TestRunRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := signaturestest.NewKey(t, signaturestest.P256)
		images := signedImages(t, key, 10)
		images.onUpdate = func(*imagev1.Image) error { return errors.New("disk full") }
		s := running(t, images, signatures.NewLive(trust(t, key), clock.RealClock{}))
		await(t, s, 1)
		images.mu.Lock()
		images.onUpdate = nil
		images.mu.Unlock()
		time.Sleep(time.Minute - time.Second)
		await(t, s, 1)
		time.Sleep(time.Second)
		await(t, s, 2)
		wantCounts(t, images, map[string]int{"True": 9, "Unsigned": 1})
	})
}

// A sweep pauses for as long as it worked, so that it leaves at least half of the time to others.
func TestSweepPauses(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 250)
	clock := clocktesting.NewFakeClock(start)
	const took = 300 * time.Millisecond
	images.onList = func(metav1.ListOptions) error {
		clock.Step(took / 10) // of the pages between two pauses
		return nil
	}
	s := sweeper(images, signatures.NewLive(trust(t, key), clock), clock)
	ended := make(chan error, 1)
	go func() { ended <- s.Sweep(t.Context(), false) }()
	for page := int64(1); page <= 2; page++ {
		eventually(t, clock.HasWaiters, "no pause")
		if p := s.Progress(); p.Examined != 100*page || p.Total != 250 || !p.Running {
			t.Errorf("progress %+v", p)
		}
		clock.Step(took - time.Millisecond)
		if !clock.HasWaiters() {
			t.Error("the pause is shorter than the work")
		}
		clock.Step(time.Millisecond)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Whoever changes a policy waits for verdicts: the first 1,000 images are judged without a pause.
// The sweep after that pauses from the beginning.
func TestSweepThatIsAskedForPausesLater(t *testing.T) {
	t.Parallel()
	images := signedImages(t, nil, 0)
	for i := range 1150 {
		name := fmt.Sprintf("sha256:%064x", i)
		images.images[name] = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	clock := clocktesting.NewFakeClock(start)
	images.onList = func(metav1.ListOptions) error {
		clock.Step(time.Millisecond)
		return nil
	}
	s := sweeper(images, signatures.NewLive(nil, clock), clock)
	pauses := func() (at []int64) {
		ended := make(chan error, 1)
		go func() { ended <- s.Sweep(t.Context(), false) }()
		for {
			eventually(t, func() bool { return clock.HasWaiters() || len(ended) > 0 }, "neither a pause nor the end")
			if len(ended) > 0 {
				return at
			}
			at = append(at, s.Progress().Examined)
			clock.Step(time.Minute)
		}
	}
	s.Resync()
	if at := pauses(); !slices.Equal(at, []int64{1000, 1100}) {
		t.Errorf("it pauses after %v", at)
	}
	if at := pauses(); len(at) != 11 || at[0] != 100 {
		t.Errorf("one that nobody asks for pauses after %v", at)
	}
}

// The platforms of a signed index follow its verdict within the sweep that judges it, whichever of
// them is read first.
func TestPlatformsFollowTheirIndexInOneSweep(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 251) // 0, 10, … 250 are not signed
	name := func(i int) string { return fmt.Sprintf("sha256:%064x", i) }
	index := images.images[name(125)]
	index.DockerImageManifest = "{}" // what it lists is as the server has read it
	for _, i := range []int{0, 10, 250} {
		index.DockerImageManifests = append(index.DockerImageManifests, imagev1.ImageManifest{Digest: name(i)})
	}
	images.images[name(10)].DockerImageReference = "registry.example.com/other/app@" + name(10)
	clock := clocktesting.NewFakeClock(start)
	live := signatures.NewLive(trust(t, key), clock)
	s := sweeper(images, live, clock)
	// As the server does.
	images.onUpdate = func(image *imagev1.Image) error {
		if len(image.DockerImageManifests) > 0 {
			s.Follow(image)
		}
		return nil
	}
	for _, step := range []struct {
		name string
		set  *policy.Set
		want string
	}{
		{"trusted", trust(t, key), verdicts.ByIndex}, {"by another key", trust(t, other), verdicts.Unsigned}, {"trusted again", trust(t, key), verdicts.ByIndex},
	} {
		live.Replace(step.set)
		if err := s.Sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		for i, want := range map[int]string{0: step.want, 250: step.want, 10: verdicts.Unsigned, 20: verdicts.Unsigned} {
			image := images.images[name(i)]
			if verified, signers, _ := signatures.Summary(image); verified != want || (want == verdicts.ByIndex) != slices.Equal(signers, []string{"demo"}) {
				t.Errorf("%s: image %d is %s, signed by %v, want %s: %v", step.name, i, verified, signers, want, image.Annotations)
			}
		}
	}
	if v := annotation.Judged(images.images[name(250)].Annotations)["registry.example.com/team/app"]; v.Index != index.Name || v.Reason != "IndexVerified" {
		t.Errorf("%+v", v)
	}
	// A server ended after it judged the index and before it judged what the index lists.
	images.onUpdate = nil
	delete(images.images[name(0)].Annotations, annotation.Verdicts)
	if err := s.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if verified, _, _ := signatures.Summary(images.images[name(0)]); verified != verdicts.ByIndex {
		t.Errorf("it is %s", verified)
	}
}

// Where what a signed index lists cannot be judged after the index has lost its verdict, that is
// tried again soon: until then it has the verdict that the index had.
func TestPlatformsThatCannotFollowTheirIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := signaturestest.NewKey(t, signaturestest.P256)
		images := signedImages(t, key, 5)
		name := func(i int) string { return fmt.Sprintf("sha256:%064x", i) }
		index := images.images[name(1)]
		index.DockerImageManifest, index.DockerImageManifests = "{}", []imagev1.ImageManifest{{Digest: name(0)}}
		s := sweeper(images, signatures.NewLive(trust(t, key), clock.RealClock{}), clock.RealClock{})
		isFull := false
		images.onUpdate = func(image *imagev1.Image) error {
			if len(image.DockerImageManifests) > 0 {
				s.Follow(image) // as the server does
			} else if isFull {
				return errors.New("disk full")
			}
			return nil
		}
		fill := func(full bool) {
			images.mu.Lock()
			defer images.mu.Unlock()
			isFull = full
		}
		ctx, stop := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		runs.Go(func() { s.Run(ctx) })
		t.Cleanup(func() { stop(); runs.Wait() })
		await(t, s, 1)
		wantCounts(t, images, map[string]int{"True": 4, "ByIndex": 1})

		fill(true)
		unsigned, err := images.Get(t.Context(), name(1), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		unsigned.Signatures = nil
		if _, err := images.Update(t.Context(), unsigned, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantCounts(t, images, map[string]int{"True": 3, "Unsigned": 1, "ByIndex": 1})
		fill(false)
		time.Sleep(time.Minute)
		await(t, s, 2)
		wantCounts(t, images, map[string]int{"True": 3, "Unsigned": 2})
	})
}

// A sweep that was asked for judges all Images, whatever their annotations say.
func TestTriggerJudgesEverything(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	images := signedImages(t, key, 10)
	clock := clocktesting.NewFakeClock(start)
	s := sweeper(images, signatures.NewLive(trust(t, key), clock), clock)
	if err := s.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	forged := images.images[fmt.Sprintf("sha256:%064x", 1)]
	content := signaturestest.Marshal(t, other.SimpleSigning(t, forged.Name, "registry.example.com/team/app:v1"))
	forged.Signatures[0].Content = content // as if the disk had changed it
	if err := s.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, images, map[string]int{"True": 9, "Unsigned": 1})
	if err := s.Sweep(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, images, map[string]int{"True": 8, "False": 1, "Unsigned": 1})
}
