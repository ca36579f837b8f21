package runs

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// brokenStore fails writes while broken is true.
type brokenStore struct {
	Store
	broken bool
}

func (s *brokenStore) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if s.broken {
		return nil, false, errors.New("broken")
	}
	return s.Store.Update(ctx, name, info, create, update, force, o)
}

// oneCluster is a world of one cluster that is seen.
func oneCluster(t *testing.T) (*world, *simulated) {
	begun := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	c := &simulated{name: "c", pods: map[podID]*clusters.ClusterPodSpec{}, truth: map[string][]span{}}
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(1, 2)), clock: clocktesting.NewFakeClock(begun), store: newStore(t, dbtest.Open(t)), verdict: map[string]string{},
		known: &knows{stored: map[string]clusters.ClusterRecords{}, seen: map[string]time.Time{"c": begun}}, clusters: []*simulated{c},
	}
	return w, c
}

// A stretch whose end cannot be written is written later, even if the same image runs again by
// then.
func TestEndIsWrittenLate(t *testing.T) {
	w, c := oneCluster(t)
	broken := &brokenStore{Store: w.store}
	w.store = broken
	w.start()
	id := podID{"ns", "app"}
	pass := func(d time.Duration) { w.clock.SetTime(w.now().Add(d)) }
	w.runs(c, id, 0, 0)
	w.flush(true)
	first := w.now()
	broken.broken = true
	pass(time.Hour)
	w.pod(c, id, nil)
	for range 3 {
		_ = w.recorder.flush(t.Context(), true, true)
		pass(2 * pause)
		w.runs(c, id, 0, 0)
	}
	broken.broken = false
	w.flush(true)
	w.flush(true)
	if then := w.at(first); len(then) != 1 {
		t.Errorf("at first ran %v", then)
	}
	between := w.at(first.Add(time.Hour + pause))
	for _, r := range between {
		t.Errorf("between the two ran %+v", r)
	}
	if n := len(w.recorder.clusters["c"].changed); n != 0 {
		t.Errorf("%d are still to be written", n)
	}
}

// After an image was judged again, what runs it is asked about, and nothing else.
func TestRecheck(t *testing.T) {
	w, c := oneCluster(t)
	w.start()
	var askedFor []string
	var mu sync.Mutex // several are asked about at a time
	w.recorder.Verdicts = verdictsOf(func(image string) string {
		mu.Lock()
		defer mu.Unlock()
		askedFor = append(askedFor, image)
		return "True"
	})
	w.runs(c, podID{"ns", "a"}, 0, 0)
	w.runs(c, podID{"ns", "b"}, 1, 1)
	flush := func(want int) {
		t.Helper()
		askedFor = nil
		if err := w.recorder.flush(t.Context(), false, false); err != nil {
			t.Fatal(err)
		}
		if len(askedFor) != want {
			t.Errorf("asked for %v, want %d", askedFor, want)
		}
	}
	flush(2)
	flush(0)
	w.recorder.Recheck(digestOf(1), digestOf(7))
	flush(1)
	flush(0)
}

// After a crash, a stretch does not begin before the one before it ended, though that was stored
// after the time up to which everything was recorded.
func TestNoOverlapAfterACrash(t *testing.T) {
	w, c := oneCluster(t)
	c.skew = -time.Hour
	w.start()
	pass := func(d time.Duration) { w.clock.SetTime(w.now().Add(d)) }
	id := podID{"ns", "app"}
	w.runs(c, id, 0, 1)
	w.flush(true)
	begun := w.now()
	pass(30 * time.Second)
	w.pod(c, id, nil)
	w.flush(false)
	ended := w.now()
	w.dead = true
	pass(2 * time.Minute)
	w.runs(c, id, 0, 1)
	pass(time.Minute)
	w.start()
	w.flush(true)
	if n := len(w.at(begun.Add(10 * time.Second))); n != 1 {
		t.Errorf("%d stretches before the first one ended", n)
	}
	for _, run := range w.at(w.now()) {
		if run.Spec.From.Time.Before(ended) {
			t.Errorf("the second one began at %s, before the first one ended at %s", run.Spec.From, ended)
		}
	}
}

// Until it is known which image has it, a stretch has the digest that the runtime told with the
// repository. That may be a config's; then the image's counts.
func TestDigestOfAConfig(t *testing.T) {
	t.Parallel()
	const image, config, manifest = "registry.example.com/app:v1", "sha256:cfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcf", "sha256:abababababababababababababababababababababababababababababababab"
	started := metav1.Now()
	for name, c := range map[string]struct {
		imageID, first, then string // what is known to run when it begins, and later
		begun                string
	}{
		"a config's, with the repository": {"registry.example.com/app@" + config, config, manifest, config},
		"a config's alone":                {config, "", manifest, ""},
		"a manifest's":                    {"registry.example.com/app@" + manifest, manifest, manifest, manifest},
	} {
		in := newCluster("prod")
		container := &clusters.ClusterPodContainer{Name: "a", Image: image, ImageID: c.imageID, Started: &started}
		k, ok := keyOf("shop", &clusters.ClusterPodSpec{Workload: "Deployment/app"}, container)
		if !ok {
			t.Fatalf("%s: it does not run", name)
		}
		one := in.begin(k, container)
		one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, c.first)
		if got := one.object.Spec.Digest; got != c.begun {
			t.Errorf("%s: it begins as %s, want %s", name, got, c.begun)
		}
		one.dirty = false
		for range 2 {
			one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, c.then)
		}
		if got := one.object.Spec.Digest; got != manifest || one.dirty != (c.begun != manifest) {
			t.Errorf("%s: it is recorded as %s, want %s; written: %v", name, got, manifest, one.dirty)
		}
		one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, "sha256:0000000000000000000000000000000000000000000000000000000000000000")
		if got := one.object.Spec.Digest; got != manifest && c.begun != manifest { // the config of several images
			t.Errorf("%s: what ran becomes %s", name, got)
		}
	}
}
