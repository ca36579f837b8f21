package runs

import (
	"context"
	"errors"
	"fmt"
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
	w.recorder.Recheck(imageruns.BySweep, digestOf(1), digestOf(7))
	flush(1)
	flush(0)
}

// versioned answers with a verdict by a version of a policy.
type versioned struct {
	verdictsOf
	mu                sync.Mutex
	verified, version string
}

func (v *versioned) VerdictOf(context.Context, string, string, string) (imageruns.RunVerdict, string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return imageruns.RunVerdict{Verified: v.verified, Policies: []string{"ours"}, PolicyVersions: []string{v.version}}, ""
}

// A recorded change has its cause: a policy that was edited since the verdict was read last, also
// by another server; or what had it read. An edit that changed no verdict is not the cause of a
// later change, and is not written.
func TestCauseIsRecorded(t *testing.T) {
	w, c := oneCluster(t)
	store := &counted{Store: w.store}
	w.store = store
	says := &versioned{verified: "True", version: "1"}
	start := func() {
		w.start()
		w.recorder.Verdicts = says
	}
	start()
	w.runs(c, podID{"ns", "a"}, 0, 0)
	flush := func(again bool) {
		t.Helper()
		w.clock.SetTime(w.now().Add(time.Second))
		if err := w.recorder.flush(t.Context(), false, again); err != nil {
			t.Fatal(err)
		}
	}
	flush(false)
	image, former := digestOf(0), w.recorder
	for _, step := range []struct {
		what, verified, version string
		read                    func()
		want                    string // "" if nothing is recorded
	}{
		{"a sweep", "False", "1", func() { w.recorder.Recheck(imageruns.BySweep, image); flush(false) }, string(imageruns.BySweep)},
		{"an edit", "True", "2", func() { w.recorder.Recheck(imageruns.BySweep, image); flush(false) }, "the policy ours changed"},
		{"an edit that changes nothing", "True", "3", func() { w.recorder.Recheck(imageruns.BySweep, image); flush(false) }, ""},
		{"a write after it", "False", "3", func() { w.recorder.Recheck(imageruns.ByWrite, image); flush(false) }, string(imageruns.ByWrite)},
		{"a tag, also as part of a write", "True", "3", func() {
			w.recorder.Recheck("", image)
			w.recorder.Recheck(imageruns.ByTag, image)
			w.recorder.Recheck("", image)
			flush(false)
		}, string(imageruns.ByTag)},
		{"a write that has no other reason", "False", "3", func() { w.recorder.Recheck("", image); flush(true) }, string(imageruns.ByWrite)},
		{"two at once", "True", "3", func() {
			w.recorder.Recheck(imageruns.ByTag, image)
			w.recorder.Recheck(imageruns.BySweep, image)
			flush(false)
		}, string(imageruns.BySeveral)},
		{"a reading of all", "False", "3", func() { flush(true) }, string(imageruns.ByReading)},
		{"the next server", "True", "3", func() { start(); flush(false) }, string(imageruns.ByAbsence)},
		{"the next server, after an edit", "False", "4", func() { start(); flush(false) }, "the policy ours changed"},
		{"another one, after one more", "True", "5", func() { former = w.recorder; start(); flush(false) }, "the policy ours changed"},
		{"the former server again", "False", "5", func() {
			former.stop()
			w.recorder = former
			w.load()
			flush(false)
		}, string(imageruns.ByAbsence)},
	} {
		says.mu.Lock()
		says.verified, says.version = step.verified, step.version
		says.mu.Unlock()
		writes := store.writes
		step.read()
		for _, run := range w.at(w.now()) {
			all := run.Status.Verdicts
			if last := all[len(all)-1]; step.want != "" && (last.Verified != step.verified || last.Cause != step.want || last.PolicyVersions[0] != step.version) {
				t.Errorf("%s: %+v, want %s", step.what, last, step.want)
			}
			if all[0].Cause != "" {
				t.Errorf("the first verdict followed none, and has the cause %s", all[0].Cause)
			}
		}
		if got := store.writes - writes; got > 0 != (step.want != "") {
			t.Errorf("%s: %d writes", step.what, got)
		}
	}
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

// What begins after a stretch ended at the end of a gap begins after that, also if the gap has
// grown since: the server was killed again, and found the cluster away when it started.
func TestNoOverlapAfterAGap(t *testing.T) {
	w, c := oneCluster(t)
	c.skew = -time.Hour
	w.start()
	pass := func(d time.Duration) { w.clock.SetTime(w.now().Add(d)) }
	id := podID{"ns", "app"}
	w.runs(c, id, 0, 1)
	w.flush(true)
	w.dead = true
	pass(3 * time.Hour)
	w.pod(c, id, nil)
	w.start()
	w.flush(true)
	ended := w.now()
	w.dead, c.away = true, true
	pass(10 * time.Minute)
	w.start()
	w.flush(true)
	w.dead, c.away = true, false
	pass(10 * time.Minute)
	w.runs(c, id, 0, 1)
	pass(10 * time.Minute)
	w.start()
	w.flush(true)
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
		one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, c.first, imageruns.ByWrite)
		if got := one.object.Spec.Digest; got != c.begun {
			t.Errorf("%s: it begins as %s, want %s", name, got, c.begun)
		}
		one.dirty = false
		for range 2 {
			one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, c.then, imageruns.ByWrite)
		}
		if got := one.object.Spec.Digest; got != manifest || one.dirty != (c.begun != manifest) {
			t.Errorf("%s: it is recorded as %s, want %s; written: %v", name, got, manifest, one.dirty)
		}
		one.verdict(imageruns.RunVerdict{Verified: "Unknown"}, "sha256:0000000000000000000000000000000000000000000000000000000000000000", imageruns.ByWrite)
		if got := one.object.Spec.Digest; got != manifest && c.begun != manifest { // the config of several images
			t.Errorf("%s: what ran becomes %s", name, got)
		}
	}
}

// counted is a Store that counts writes.
type counted struct {
	Store
	mu     sync.Mutex
	writes int
}

func (s *counted) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	return s.Store.Update(ctx, name, info, create, update, force, o)
}

// A rollout is a few writes, however many pods it has: one where a stretch begins, one where its
// number of pods has grown for a minute, and one where it ends.
func TestWritesOfARollout(t *testing.T) {
	w, c := oneCluster(t)
	store := &counted{Store: w.store}
	w.store = store
	w.start()
	const pods = 1000
	for version := range 2 {
		for n := range pods {
			w.clock.SetTime(w.now().Add(30 * time.Millisecond))
			w.runs(c, podID{"ns", fmt.Sprint("app-", n)}, 0, version)
			if n%20 == 0 {
				if err := w.recorder.flush(t.Context(), false, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.flush(true)
	}
	if store.writes > 2*2+1 {
		t.Errorf("two rollouts of %d pods were %d writes", pods, store.writes)
	}
	runs := w.at(w.now())
	for _, run := range runs {
		if run.Status.MostPods != pods {
			t.Errorf("%d pods ran it at once at most, and %d did", run.Status.MostPods, pods)
		}
	}
	if len(runs) != 1 {
		t.Errorf("in the end ran %d", len(runs))
	}
}

// Of many verdicts the first one and the newest are kept, and how many are not.
func TestVerdictsThatAreKept(t *testing.T) {
	w, c := oneCluster(t)
	w.start()
	const all = maxVerdicts + 5
	image := "registry.example.com/app0:v1"
	for n := range all {
		w.verdict[image] = []string{"True", "False"}[n%2]
		if w.clock.SetTime(w.now().Add(time.Minute)); n == 0 {
			w.runs(c, podID{"ns", "app"}, 0, 0)
		}
		w.flush(true)
	}
	for _, run := range w.at(w.now()) {
		got := run.Status.Verdicts
		if len(got) != maxVerdicts || run.Status.VerdictsDropped != all-maxVerdicts {
			t.Fatalf("%d verdicts are kept and %d are not, of %d", len(got), run.Status.VerdictsDropped, all)
		}
		if first := w.knew(image, run.Spec.From.Time); got[0].Verified != first || !got[0].Since.Equal(&run.Spec.From) {
			t.Errorf("the first is %v", got[0])
		}
		for i, v := range got[1:] {
			if want := w.now().Add(-time.Duration(maxVerdicts-2-i) * time.Minute); !v.Since.Time.Equal(want) || v.Verified != w.knew(image, want) {
				t.Errorf("verdict %d is %v, want that of %s", i+1, v, want)
			}
		}
		return
	}
	t.Error("nothing ran")
}

// Who has recorded, and does not know yet that another server does by now, writes nothing more.
// What the other one has ended stays so.
func TestFormerLeaderWritesNothing(t *testing.T) {
	w, c := oneCluster(t)
	w.start()
	former := w.recorder
	id := podID{"ns", "app"}
	w.runs(c, id, 0, 0)
	w.flush(true)
	w.verdict["registry.example.com/app0:v1"] = "False" // is not written yet
	former.ask(t.Context(), true)
	w.clock.SetTime(w.now().Add(time.Minute))
	w.start() // another one
	w.clock.SetTime(w.now().Add(time.Minute))
	w.pod(c, id, nil)
	w.flush(true)
	ended := w.now()
	if err := former.flush(t.Context(), true, true); !errors.Is(err, clusters.ErrRecordsChanged) {
		t.Errorf("the former leader writes: %v", err)
	}
	w.clock.SetTime(w.now().Add(time.Hour))
	w.flush(true)
	if ran := w.at(ended.Add(time.Minute)); len(ran) != 0 {
		t.Errorf("after its end ran %v", ran)
	}
}

// A server that was killed just after it began has stored since when it records, and not until
// when. What the next one cannot know is then a gap from that beginning, and ends.
func TestKilledJustAfterItBegan(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} { // the former server's clock
		w, c := oneCluster(t)
		began := w.now()
		w.known.stored["c"] = clusters.ClusterRecords{Since: metav1.NewTime(began.Add(ahead))}
		w.clock.SetTime(began.Add(time.Minute))
		w.start()
		w.runs(c, podID{"ns", "app"}, 0, 0)
		w.flush(true)
		w.clock.SetTime(began.Add(2 * time.Minute))
		w.flush(true)
		records := w.known.stored["c"]
		if n := len(records.Unseen); n != 1 || records.Unseen[0].Until == nil || records.Unseen[0].From.IsZero() || records.Unseen[0].Until.Before(&records.Unseen[0].From) {
			t.Errorf("ahead by %s: the gaps are %v", ahead, records.Unseen)
		}
	}
}

// A server whose clock was ahead leaves no record of a time that is to come, and what follows is
// recorded when it is.
func TestClockThatWasAhead(t *testing.T) {
	w, c := oneCluster(t)
	begun := w.now()
	w.clock.SetTime(begun.Add(time.Hour))
	w.start()
	w.flush(true)
	w.clock.SetTime(begun)
	w.start()
	w.clock.SetTime(begun.Add(time.Minute))
	w.runs(c, podID{"ns", "app"}, 0, 0)
	w.flush(true)
	w.clock.SetTime(begun.Add(2 * time.Minute))
	w.flush(true)
	if n := len(w.at(begun.Add(90 * time.Second))); n != 1 {
		t.Errorf("%d stretches after it began", n)
	}
	records := w.known.stored["c"]
	if at := begun.Add(-time.Second); len(records.GapsIn(at, at)) != 1 || records.Until.After(w.now()) {
		t.Errorf("the records of a clock that was ahead: %+v", records)
	}
	for _, g := range records.Unseen {
		if g.Until != nil && g.Until.Before(&g.From) {
			t.Errorf("a gap ends before it begins: %v", g)
		}
	}
}
