package reverify_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// world is a store whose changes are told, and a tally of it.
type world struct {
	*store
	*reverify.Sweeper
	live *signatures.Live
	key  *signaturestest.Key

	mu      sync.Mutex
	changed []change
	lost    bool
	ready   chan struct{}

	known     map[string]bool // that the tally has
	forgets   bool
	begun     int
	published int
	ends      int
}

// change is a change of an image.
type change struct {
	name string
	rev  int64
}

// Update is part of reverify.Images.
func (w *world) Update(ctx context.Context, image *imagev1.Image, o metav1.UpdateOptions) (*imagev1.Image, error) {
	updated, err := w.store.Update(ctx, image, o)
	if err == nil && updated.ResourceVersion != image.ResourceVersion {
		rev, _ := strconv.ParseInt(updated.ResourceVersion, 10, 64)
		w.tell(false, change{image.Name, rev})
	}
	return updated, err
}

// Since is part of reverify.Changes.
func (w *world) Since(_ context.Context, visit func(namespace, name string, rev int64)) (lost bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changed {
		visit("", c.name, c.rev)
	}
	lost, w.lost, w.changed = w.lost, false, nil
	if lost {
		err = errors.New("lost")
	}
	return lost, err
}

// Ready is part of reverify.Changes.
func (w *world) Ready() <-chan struct{} { return w.ready }

func (w *world) tell(lost bool, changes ...change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed, w.lost = append(w.changed, changes...), w.lost || lost
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// put stores an image, or removes the one of the name.
func (w *world) put(name string, is bool) {
	w.store.mu.Lock()
	if is {
		w.images[name] = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}}
	} else {
		delete(w.images, name)
	}
	w.store.mu.Unlock()
	w.tell(false, change{name: name, rev: -1})
}

type worldTally struct{ *world }

func (w worldTally) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = map[string]bool{}
	w.begun++
}
func (w worldTally) Resume() bool { return !w.forgets }
func (w worldTally) Count(image *imagev1.Image) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[image.Name] = true
}
func (w worldTally) Gone(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, name)
}
func (w worldTally) End(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ends++; err == nil {
		w.published = len(w.known)
	}
}

// counts returns how many images were counted last, by how many counts and sweeps.
func (w *world) counts() (published, ends, sweeps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published, w.ends, w.begun
}

// watched runs a Sweeper over n images, until the test ends.
func watched(t *testing.T, n int) *world {
	t.Helper()
	return watchedBy(t, n, func(w *world) reverify.Tally { return worldTally{w} })
}

// watchedBy is watched with a tally of the test's own.
func watchedBy(t *testing.T, n int, tally func(*world) reverify.Tally) *world {
	t.Helper()
	key := signaturestest.NewKey(t, signaturestest.P256)
	images, live := signedImages(t, key, n), signatures.NewLive(nil, clock.RealClock{})
	images.judge = live
	w := &world{store: images, live: live, key: key, ready: make(chan struct{}, 1)}
	w.Sweeper = reverify.New(reverify.Options{Images: w, Policies: live, Tally: tally(w), Changes: w})
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { stop(); runs.Wait() })
	synctest.Wait()
	return w
}

// What changes is counted a second after nothing changes any more, by itself: no other image is
// read for it, and none while an import goes on.
func TestRunCountsWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, 10)
		for i := range 1500 { // for 75 seconds, with a pause of half a second now and then
			w.put(fmt.Sprintf("new-%d", i), true)
			time.Sleep(time.Duration(1+i%250/249*499) * time.Millisecond)
			if n, ends, _ := w.counts(); ends > 1 {
				t.Fatalf("after %d changes %d images are counted, although it goes on", i, n)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n, ends, sweeps := w.counts(); n != 1510 || ends != 2 || sweeps != 1 {
			t.Errorf("%d of 1510 images are counted, by %d counts with %d sweeps", n, ends, sweeps)
		}
		w.put("new-7", false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n, _, sweeps := w.counts(); n != 1509 || sweeps != 1 {
			t.Errorf("%d of 1509 images are counted, with %d sweeps", n, sweeps)
		}
	})
}

// Within seconds after an import the summary has all of its images, and their verdicts sum up to
// them, although no sweep follows.
func TestAnImportIsCountedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := inventory.New(inventory.Options{Clock: clock.RealClock{}})
		w := watchedBy(t, 10, func(*world) reverify.Tally { return counter })
		for imported := range 1500 {
			w.put(fmt.Sprintf("new-%d", imported), true)
			time.Sleep(2 * time.Millisecond)
		}
		before := counter.Summary().ImagesAsOf.Time
		time.Sleep(3 * time.Second)
		synctest.Wait()
		s, sum := counter.Summary(), int64(0)
		for _, n := range s.Verified {
			sum += n
		}
		if s.Images != 1510 || sum != s.Images || !s.ImagesAsOf.After(before) || w.Progress().Sweep != 1 {
			t.Errorf("of 1510 images the summary has %d, %v, as of %v (before %v), after sweep %d", s.Images, s.Verified, s.ImagesAsOf, before, w.Progress().Sweep)
		}
	})
}

// Changed images are read many at a time, and one by one only beside a damaged one, which is not
// counted.
func TestRunCountsManyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, 10)
		add := func(from int, damaged ...string) (gets int) {
			w.store.mu.Lock()
			w.damaged, w.gets = damaged, 0
			w.store.mu.Unlock()
			for i := range 100 {
				w.put(fmt.Sprintf("new-%d", from+i), true)
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			return w.gets
		}
		if gets := add(0); gets > 0 {
			t.Errorf("%d of 100 changed images were read one by one", gets)
		}
		if gets := add(100, "new-150"); gets == 0 || gets > 10 {
			t.Errorf("beside a damaged image %d of 100 were read one by one, want at most 10", gets)
		}
		if n, _, sweeps := w.counts(); n != 209 || sweeps != 1 {
			t.Errorf("%d of 209 images are counted, with %d sweeps", n, sweeps)
		}
	})
}

// A few changes are counted although they never cease, and many after some minutes.
func TestRunCountsWhatNeverCeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, 10)
		for i := range 20 {
			w.put(fmt.Sprintf("few-%d", i), true)
			time.Sleep(500 * time.Millisecond)
		}
		if n, _, _ := w.counts(); n < 20 {
			t.Errorf("%d images are counted", n)
		}
		for i := range 3000 {
			w.put(fmt.Sprintf("many-%d", i), true)
			time.Sleep(5 * time.Millisecond)
		}
		before, _, _ := w.counts()
		for range 2 * 5 * 60 * 10 {
			w.tell(false, change{"many-1", -1})
			time.Sleep(100 * time.Millisecond)
		}
		if n, _, sweeps := w.counts(); n != 3030 || sweeps != 1 {
			t.Errorf("%d of 3030 images are counted (%d before), with %d sweeps", n, before, sweeps)
		}
	})
}

// If it is not known what has changed, or the tally has not remembered enough, a sweep counts.
func TestRunSweepsForWhatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, 10)
		for range 2 {
			w.store.mu.Lock()
			w.images["other"] = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
			w.store.mu.Unlock()
			w.tell(true)
			time.Sleep(3 * time.Second)
		}
		w.forgets = true
		w.put("more", true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n, _, sweeps := w.counts(); n != 12 || sweeps != 4 {
			t.Errorf("%d of 12 images are counted, with %d sweeps", n, sweeps)
		}
		w.forgets = false
		for i := range 12_000 {
			w.put(fmt.Sprintf("mass-%d", i), true)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n, _, sweeps := w.counts(); n != 12_012 || sweeps != 5 {
			t.Errorf("%d of 12012 images are counted, with %d sweeps", n, sweeps)
		}
	})
}

// What a sweep writes itself is counted by it, however much that is: neither a count nor another
// sweep follows, and what changes afterwards is counted by itself.
func TestRunDoesNotCountItsOwnWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 300
		w := watched(t, all)
		w.live.Replace(trust(t, w.key))
		w.Resync()
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := w.Progress(); p.Sweep != 2 || p.Running || p.Changed != all {
			t.Fatalf("the sweep for other policies is %+v", p)
		}
		if n, ends, _ := w.counts(); n != all || ends != 2 {
			t.Errorf("of %d images %d are counted, by %d counts", all, n, ends)
		}
		w.put("afterwards", true)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n, ends, sweeps := w.counts(); n != all+1 || ends != 3 || sweeps != 2 {
			t.Errorf("of %d images %d are counted, by %d counts with %d sweeps", all+1, n, ends, sweeps)
		}
	})
}

// Whatever changes, while sweeps run or not, the counts are those of a new count soon after.
func TestCountsFollowRandomChanges(t *testing.T) {
	seed := rand.Uint64()
	synctest.Test(t, func(t *testing.T) {
		r, w := rand.New(rand.NewPCG(seed, 0)), watched(t, 300)
		for range 50 {
			for range r.IntN(100) {
				w.put(fmt.Sprintf("image-%d", r.IntN(500)), r.IntN(3) > 0)
				time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
			}
			if r.IntN(3) == 0 {
				w.Trigger()
			}
			if r.IntN(5) > 0 {
				continue
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			w.store.mu.Lock()
			want := len(w.images)
			w.store.mu.Unlock()
			if n, _, _ := w.counts(); n != want {
				t.Fatalf("seed %d: %d of %d images are counted", seed, n, want)
			}
		}
	})
}
