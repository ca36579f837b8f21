package runs

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// knows is a Clusters that keeps records in memory.
type knows struct {
	stored map[string]clusters.ClusterRecords
	seen   map[string]time.Time
}

func (k *knows) Names() []string { return slices.Sorted(maps.Keys(k.seen)) }

func (k *knows) Records(context.Context) (map[string]clusters.ClusterRecords, error) {
	all := map[string]clusters.ClusterRecords{}
	for name, r := range k.stored {
		all[name] = *r.DeepCopy()
	}
	return all, nil
}

func (k *knows) SetRecords(_ context.Context, cluster string, r clusters.ClusterRecords, known ...clusters.ClusterRecords) error {
	if !slices.ContainsFunc(known, k.stored[cluster].Same) {
		return clusters.ErrRecordsChanged
	}
	k.stored[cluster] = *r.DeepCopy()
	return nil
}

func (k *knows) Seen(cluster string) time.Time { return k.seen[cluster] }

// simulated is a cluster with pods, a follower of it, and what really ran.
type simulated struct {
	name   string
	pods   map[podID]*clusters.ClusterPodSpec
	skew   time.Duration // of its clock
	away   bool
	told   map[podID]*clusters.ClusterPodSpec // what the follower has reported
	truth  map[string][]span                  // what ran, by workload and digest
	unseen []span                             // when nobody saw it
}

// span is a time; until is zero while it goes on.
type span struct{ from, until time.Time }

func (s span) has(t time.Time) bool {
	return !t.Before(s.from) && (s.until.IsZero() || t.Before(s.until))
}

// world is a recorder that is killed and started again, and clusters.
type world struct {
	t        *testing.T
	rand     *rand.Rand
	clock    *clocktesting.FakeClock
	store    Store
	known    *knows
	recorder *Recorder
	dead     bool
	clusters []*simulated
	verdict  map[string]string // by image
	judged   map[string][]judged
}

// judged is a verdict that the recorder was told, and when.
type judged struct {
	at   time.Time
	word string
}

// knew returns the verdict for an image that the recorder was told last before a time.
func (w *world) knew(image string, at time.Time) (word string) {
	for _, j := range w.judged[image] {
		if !j.at.After(at) {
			word = j.word
		}
	}
	return word
}

func newStore(t testing.TB, d *db.DB) Store {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	getter := kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{})
	store, err := imageruns.New(getter, scheme)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func digestOf(n int) string { return fmt.Sprintf("sha256:%064x", n+1) }

func (w *world) now() time.Time { return w.clock.Now() }

// verdictsOf returns the verdict for an image.
type verdictsOf func(image string) string

func (v verdictsOf) VerdictOf(_ context.Context, _, image, _ string) (imageruns.RunVerdict, string) {
	return imageruns.RunVerdict{Verified: v(image)}, ""
}

func (verdictsOf) Turned(context.Context, []Turn) {}

func (w *world) start() {
	w.recorder = New(Options{Store: w.store, Clusters: w.known, Verdicts: verdictsOf(func(image string) string { return w.verdict[image] }), Clock: w.clock})
	w.dead = false
	// the follower lists its pods before or after the recorder has read what is stored
	early := w.rand.IntN(2) == 0
	if !early {
		w.load()
	}
	for _, c := range w.clusters {
		c.told = map[podID]*clusters.ClusterPodSpec{}
		if !c.away {
			w.current(c)
		}
	}
	if early {
		w.load()
	}
}

func (w *world) load() {
	if err := w.recorder.load(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

// current lets a follower report all pods of its cluster.
func (w *world) current(c *simulated) {
	for id := range c.told {
		if c.pods[id] == nil {
			w.recorder.Pod(c.name, id.namespace, id.name, nil)
		}
	}
	c.told = map[podID]*clusters.ClusterPodSpec{}
	for id, p := range c.pods {
		w.recorder.Pod(c.name, id.namespace, id.name, p)
		c.told[id] = p
	}
	w.recorder.Current(c.name, w.now())
	w.known.seen[c.name] = w.now()
	if n := len(c.unseen); n > 0 && c.unseen[n-1].until.IsZero() {
		c.unseen[n-1].until = w.now()
	}
}

func (w *world) flush(all bool) {
	if w.dead {
		return
	}
	for _, c := range w.clusters {
		if !c.away {
			w.known.seen[c.name] = w.now()
		}
	}
	if err := w.recorder.flush(context.Background(), all, true); err != nil {
		w.t.Fatal(err)
	}
	w.noteVerdicts()
}

// noteVerdicts notes what the recorder was told.
func (w *world) noteVerdicts() {
	if w.judged == nil {
		w.judged = map[string][]judged{}
	}
	for image, word := range w.verdict {
		if w.knew(image, w.now()) != word {
			w.judged[image] = append(w.judged[image], judged{w.now(), word})
		}
	}
}

func truthKey(namespace string, p *clusters.ClusterPodSpec) string {
	return namespace + " " + p.Workload + " " + p.Containers[0].Image + " " + p.Containers[0].ImageID
}

// note compares what runs with what was noted.
func (w *world) note(c *simulated) {
	running := map[string]bool{}
	for id, p := range c.pods {
		if p.Finished == nil && p.Containers[0].Started != nil {
			running[truthKey(id.namespace, p)] = true
		}
	}
	for k, spans := range c.truth {
		if last := &spans[len(spans)-1]; last.until.IsZero() && !running[k] {
			last.until = w.now()
		}
	}
	for k := range running {
		if spans := c.truth[k]; len(spans) == 0 || !spans[len(spans)-1].until.IsZero() {
			c.truth[k] = append(spans, span{from: w.now()})
		}
	}
}

// miss notes that a cluster is not seen from a time on.
func (w *world) miss(c *simulated, from time.Time) {
	if n := len(c.unseen); n == 0 || !c.unseen[n-1].until.IsZero() {
		c.unseen = append(c.unseen, span{from: from})
	}
}

// pod makes or replaces a pod; nil deletes it.
func (w *world) pod(c *simulated, id podID, p *clusters.ClusterPodSpec) {
	if p == nil {
		delete(c.pods, id)
	} else {
		c.pods[id] = p
	}
	w.note(c)
	if c.away || w.dead {
		return
	}
	w.recorder.Pod(c.name, id.namespace, id.name, p)
	if p == nil {
		delete(c.told, id)
	} else {
		c.told[id] = p
	}
}

func (w *world) runs(c *simulated, id podID, app, version int) {
	w.pod(c, id, w.running(c, id, app, version))
}

// running is a pod that runs a version of an app since now.
func (w *world) running(c *simulated, id podID, app, version int) *clusters.ClusterPodSpec {
	image := fmt.Sprintf("registry.example.com/app%d:v1", app)
	started := metav1.NewTime(w.now().Add(c.skew))
	return &clusters.ClusterPodSpec{
		Cluster: c.name, Namespace: id.namespace, Name: id.name, Workload: fmt.Sprintf("Deployment/app%d", app), Since: started,
		Containers: []clusters.ClusterPodContainer{{Name: "main", Image: image, ImageID: fmt.Sprintf("registry.example.com/app%d@%s", app, digestOf(version)), Started: &started}},
	}
}

// happens lets something happen to a pod of a cluster, or to the policies.
func (w *world) happens(c *simulated, set func(*simulated, podID, *clusters.ClusterPodSpec)) {
	app := w.rand.IntN(4)
	id := podID{fmt.Sprintf("ns%d", app%2), fmt.Sprintf("app%d-%d", app, w.rand.IntN(3))}
	switch w.rand.IntN(9) {
	case 0, 1, 2, 3: // a rollout, or a moved tag
		set(c, id, w.running(c, id, app, w.rand.IntN(3)))
	case 4, 5: // scaled down
		set(c, id, nil)
	case 6: // finished
		if p := c.pods[id]; p != nil && p.Finished == nil {
			p = p.DeepCopy()
			at := metav1.NewTime(w.now().Add(c.skew))
			p.Finished = &at
			set(c, id, p)
		}
	case 7: // a pod that waits for its image
		set(c, id, &clusters.ClusterPodSpec{Workload: fmt.Sprintf("Deployment/app%d", app), Containers: []clusters.ClusterPodContainer{{Name: "main", Image: "registry.example.com/app:v1", Waiting: "ImagePullBackOff"}}})
	case 8: // a policy changes, or a key is revoked
		image := fmt.Sprintf("registry.example.com/app%d:v1", app)
		w.verdict[image] = []string{"True", "False", "Unsigned"}[w.rand.IntN(3)]
	}
}

// step is something that happens.
func (w *world) step() {
	c := w.clusters[w.rand.IntN(len(w.clusters))]
	switch w.rand.IntN(12) {
	case 8: // the cluster goes away, or comes back
		if c.away = !c.away; c.away {
			w.miss(c, w.now())
			if !w.dead {
				w.recorder.Away(c.name, w.now())
			}
		} else if !w.dead {
			w.current(c)
		}
	case 9: // the server is killed, or starts
		if w.dead {
			w.start()
		} else if w.rand.IntN(3) == 0 {
			w.dead = true
			for _, c := range w.clusters {
				// everything up to the last confirmation is recorded
				w.miss(c, w.known.stored[c.name].Until.Time)
			}
		}
	case 10:
		w.flush(true)
	default:
		w.happens(c, w.pod)
	}
}

// at asks what ran at a time.
func (w *world) at(t time.Time) map[string]imageruns.ImageRun {
	obj, err := w.store.List(genericapirequest.WithNamespace(context.Background(), metav1.NamespaceAll), &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("at", t.UTC().Format(time.RFC3339))})
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]imageruns.ImageRun{}
	for _, r := range obj.(*imageruns.ImageRunList).Items {
		k := r.Spec.Cluster + " " + r.Namespace + " " + r.Spec.Workload + " " + r.Spec.Image + " " + r.Spec.ImageID
		if other, twice := found[k]; twice {
			w.t.Errorf("two stretches of %s at %s: from %s until %s, and from %s until %s", k, t, other.Spec.From, other.Status.Until, r.Spec.From, r.Status.Until)
		}
		found[k] = r
	}
	return found
}

var (
	oracles    = flag.Int("oracles", 2, "how many random histories TestOracle has")
	oracleSeed = flag.Uint64("oracle-seed", 0, "the seed of the only history of TestOracle; 0 for random ones")
)

// What is recorded is what ran, with the verdict that was known, at every moment that was seen; and
// each moment that was not is said to be so. Clusters go away, the server is killed, clocks are
// wrong. The name of a subtest is the seed of its history.
func TestOracle(t *testing.T) {
	for range *oracles {
		seed := cmp.Or(*oracleSeed, rand.Uint64())
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testOracle(t, seed) })
	}
}

// newWorld is a world of three clusters without a recorder. The clocks of two are wrong.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 0)), clock: clocktesting.NewFakeClock(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)), verdict: map[string]string{}}
	for app := range 4 {
		w.verdict[fmt.Sprintf("registry.example.com/app%d:v1", app)] = "NoPolicy"
	}
	for i, skew := range []time.Duration{0, time.Hour, -time.Hour} {
		w.clusters = append(w.clusters, &simulated{name: fmt.Sprint("c", i), skew: skew, pods: map[podID]*clusters.ClusterPodSpec{}, truth: map[string][]span{}})
	}
	return w
}

func testOracle(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	begun := w.now()
	w.store = newStore(t, dbtest.Open(t))
	w.known = &knows{stored: map[string]clusters.ClusterRecords{}, seen: map[string]time.Time{}}
	for _, c := range w.clusters {
		w.known.seen[c.name] = begun
	}
	w.start()
	w.flush(true)
	for range 400 {
		w.clock.SetTime(w.now().Add(time.Duration(2+w.rand.IntN(1800)) * time.Second))
		w.step()
		w.flush(false)
	}
	if w.dead {
		w.start()
	}
	for _, c := range w.clusters {
		if c.away {
			c.away = false
			w.current(c)
		}
	}
	w.flush(true)
	w.check(begun, w.known)
}

// check compares what is recorded of 500 moments with what ran then.
func (w *world) check(begun time.Time, known Clusters) {
	w.t.Helper()
	stored, err := known.Records(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	length := int(w.now().Sub(begun) / time.Second)
	seen, unseen, verdictsSeen := 0, 0, 0
	for range 500 {
		at := begun.Add(time.Duration(w.rand.IntN(length)) * time.Second)
		found := w.at(at)
		for _, c := range w.clusters {
			records := stored[c.name]
			said := len(records.GapsIn(at, at)) > 0
			missed := slices.ContainsFunc(c.unseen, func(s span) bool { return s.has(at) })
			if missed && !said {
				w.t.Errorf("%s was not seen at %s, which is not said: %v", c.name, at, records.Unseen)
			}
			if missed || said {
				unseen++
				continue
			}
			seen++
			for k, spans := range c.truth {
				ran := slices.ContainsFunc(spans, func(s span) bool { return s.has(at) })
				// a pause of less than a minute is part of a stretch
				paused := slices.ContainsFunc(spans, func(s span) bool {
					return !s.until.IsZero() && !at.Before(s.until) && at.Sub(s.until) < pause
				})
				// a clock that is behind is believed by as much as changes may be late
				behind := c.skew < 0 && slices.ContainsFunc(spans, func(s span) bool {
					return !s.until.IsZero() && s.until.Sub(at) > 0 && s.until.Sub(at) <= lag || s.from.Sub(at) > 0 && s.from.Sub(at) <= lag
				})
				run, is := found[c.name+" "+k]
				if is != ran && !(is && paused) && !behind {
					w.t.Errorf("%s %s at %s: recorded %t, ran %t: %v", c.name, k, at, is, ran, spans)
				}
				if is && ran {
					got, want := imageruns.At(&run, at).Verified, w.knew(run.Spec.Image, at)
					// it may be unknown: once dropped, and before the first one by a clock that is behind
					unknown := got == verdicts.VerifiedUnknown && (run.Status.VerdictsDropped > 0 || behind || at.Before(run.Status.Verdicts[0].Since.Time) && c.skew < 0)
					if verdictsSeen++; got != want && !unknown {
						w.t.Errorf("%s %s at %s: recorded is the verdict %s, known was %s: %v", c.name, k, at, got, want, run.Status.Verdicts)
					}
				}
			}
			for k := range found {
				if rest, ok := strings.CutPrefix(k, c.name+" "); ok && c.truth[rest] == nil {
					w.t.Errorf("%s never ran", k)
				}
			}
		}
	}
	if seen < 100 || unseen < 20 || verdictsSeen < 100 {
		w.t.Errorf("%d moments were seen and %d were not: the test shows little", seen, unseen)
	}
	w.t.Logf("%d seen, %d unseen, %d verdicts", seen, unseen, verdictsSeen)
}
