package drift_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// unstarted is the digest of pods that do not tell what they run.
const unstarted = ""

// world has tags, and pods that name them.
type world struct {
	mu     sync.Mutex
	synced bool
	leads  map[string]*imagev1.ImageTag
	runs   map[string]map[string]int // pods of the cluster prod, by tag and by digest
	fail   error
	watch  *watch.FakeWatcher
	events []string
}

func (w *world) Tags() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.runs))
}

func (w *world) Names(tag string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[tag] != nil
}

func (w *world) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

func (w *world) ListTags(context.Context, metav1.ListOptions) (*imagev1.ImageTagList, error) {
	return &imagev1.ImageTagList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}, nil
}

func (w *world) WatchTags(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.ResourceVersion != "7" {
		return nil, fmt.Errorf("watch from %q", o.ResourceVersion)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watch = watch.NewFake()
	return w.watch, nil
}

func (w *world) NamesOf(tag reference.Reference) []reference.Reference {
	return []reference.Reference{tag}
}

func (w *world) DriftOf(ctx context.Context, ref reference.Reference) (answers.Drift, error) {
	return w.Drift(ctx, ref)
}

func (w *world) Drift(_ context.Context, ref reference.Reference) (answers.Drift, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tag := w.leads[ref.String()]
	count := func() usage.Count { return usage.Count{ByCluster: map[string]int{}, ByDigest: map[string]int{}} }
	d := answers.Drift{Tag: tag, Outdated: count(), Unknown: count()}
	d.Now, _ = tags.Now(tag)
	for digest, n := range w.runs[ref.String()] {
		of := d.Outdated
		switch digest {
		case d.Now:
			continue
		case unstarted:
			of = d.Unknown
		}
		of.ByCluster["prod"] += n
		of.ByDigest[digest] = n
	}
	return d, w.fail
}

// move has a tag lead elsewhere, and tells of it unless quiet.
func (w *world) move(t *testing.T, text, digest string, at time.Time) {
	t.Helper()
	ref, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	tag := w.leads[text]
	if tag == nil {
		tag = tags.New(ref)
	} else {
		tag = tag.DeepCopy()
	}
	tags.Lead(tag, ref, digest, metav1.NewTime(at))
	w.leads[text] = tag
	to := w.watch
	w.mu.Unlock()
	if to != nil {
		to.Modify(tag)
	}
}

func (w *world) Outdated(_ *imagev1.ImageTag, message string) { w.events = append(w.events, message) }

func digestOf(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// What runs and is not what its tag leads to is counted when a tag moves and when pods change. Of
// each move one Event tells, however often the pods are looked at.
func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const v1, v2 = "registry.example.com/app:v1", "registry.example.com/app:v2"
		first, second, third := digestOf("1"), digestOf("2"), digestOf("3")
		w := &world{leads: map[string]*imagev1.ImageTag{}, runs: map[string]map[string]int{v1: {first: 2}, v2: {first: 1}}}
		w.move(t, v1, second, time.Now().Add(-time.Hour)) // before the server started
		w.move(t, v2, first, time.Now().Add(-time.Hour))
		registry := metrics.NewKubeRegistry()
		gauge, unknownGauge := drift.NewGauge(), drift.NewUnknownGauge()
		registry.MustRegister(gauge, unknownGauge)
		tracker := drift.New(drift.Options{
			Index: w, Client: w, Answers: w, Clock: clock.RealClock{},
			Notifier: w, Gauge: gauge, UnknownGauge: unknownGauge, Clusters: []string{"prod", "quiet"},
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = tracker.Run(ctx); close(ended) }()
		want := func(when string, known bool, ofV1, ofV2, ofFirst int, events ...string) {
			t.Helper()
			synctest.Wait()
			for text, n := range map[string]int{v1: ofV1, v2: ofV2} {
				ref, _ := reference.Parse(text)
				if got, isKnown := tracker.Naming(ctx, ref); got.Outdated != n || isKnown != known || got.Unknown != w.runs[text][unstarted] {
					t.Errorf("%s: %s has pods %+v, known %v", when, text, got, isKnown)
				}
			}
			if got, _ := tracker.Running([]string{first + "@linux/amd64", third}); got.Outdated != ofFirst {
				t.Errorf("%s: of the first run %+v", when, got)
			}
			if !slices.Equal(w.events, events) {
				t.Errorf("%s: told of %q", when, w.events)
			}
			w.events = nil
			gathered, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			byCluster, unknown := map[string]float64{}, map[string]float64{}
			for _, family := range gathered {
				of := byCluster
				if strings.Contains(family.GetName(), "unknown") {
					of = unknown
				}
				for _, m := range family.Metric {
					of[m.Label[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
			if _, shown := unknown["quiet"]; unknown["prod"] != float64(w.runs[v1][unstarted]+w.runs[v2][unstarted]) || shown != known {
				t.Errorf("%s: the metric of what is unknown is %v", when, unknown)
			}
			// A cluster without outdated pods has a zero once that is known, and nothing before.
			if zero, shown := byCluster["quiet"]; byCluster["prod"] != float64(ofV1+ofV2) || zero != 0 || shown != known {
				t.Errorf("%s: the metric is %v", when, byCluster)
			}
		}
		want("before the pods are read", false, 2, 0, 2)
		w.mu.Lock()
		w.synced = true
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		want("what was so before the start", true, 2, 0, 2)
		w.move(t, v2, second, time.Now())
		moved := v2 + " leads to sha256:222222222222, but 1 pod runs sha256:111111111111 under its name in prod"
		want("a tag moves", true, 2, 1, 3, moved)
		w.mu.Lock()
		w.runs[v2] = map[string]int{first: 3, third: 1}
		w.mu.Unlock()
		tracker.Recheck([]string{v2})
		want("more pods", true, 2, 4, 6)
		w.mu.Lock()
		w.runs[v2] = map[string]int{first: 3, third: 1, unstarted: 2}
		w.mu.Unlock()
		tracker.Recheck([]string{v2})
		want("others may", true, 2, 4, 6)
		if pods, _ := tracker.Pods(); pods != (drift.Counts{Outdated: 6, Unknown: 2}) {
			t.Errorf("all pods are %+v", pods)
		}
		w.move(t, v2, third, time.Now())
		want("it moves on", true, 2, 3, 5, strings.NewReplacer("sha256:222222222222", "sha256:333333333333", "1 pod runs", "3 pods run").Replace(moved))
		w.mu.Lock()
		w.runs[v2] = map[string]int{third: 4, unstarted: 2}
		w.fail = errors.New("cannot be read")
		w.mu.Unlock()
		tracker.Recheck([]string{v2})
		want("while it cannot be read", true, 2, 3, 5)
		w.mu.Lock()
		w.fail = nil
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		want("the pods follow", true, 2, 0, 2)
		w.mu.Lock()
		w.runs[v2] = map[string]int{first: 1}
		w.mu.Unlock()
		tracker.Recheck([]string{v2})
		want("one is started with the old image again", true, 2, 1, 3) // of this move was told
		w.mu.Lock()
		w.watch.Stop()
		w.watch = nil
		w.mu.Unlock()
		synctest.Wait()
		w.move(t, v1, third, time.Now())
		time.Sleep(2 * time.Second)
		want("it moved while nobody watched", true, 2, 1, 3, strings.NewReplacer(v2, v1, "222222222222", "333333333333", "1 pod runs", "2 pods run").Replace(moved))
		stop()
		<-ended
	})
}

// mirrored is a world in which a tag has a name on a mirror.
type mirrored struct {
	*world
	name string
}

func (m mirrored) NamesOf(tag reference.Reference) []reference.Reference {
	name, _ := reference.Parse(m.name)
	return []reference.Reference{tag, name}
}

// A pod that names a tag and the tag's name on a mirror is one pod.
func TestNamesOfOneTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const source, mirror = "registry.example.com/app:v1", "mirror.example.com/app:v1"
		w := &world{synced: true, leads: map[string]*imagev1.ImageTag{}, runs: map[string]map[string]int{source: {digestOf("1"): 1}, mirror: {digestOf("1"): 1}}}
		for _, name := range []string{source, mirror} {
			w.move(t, name, digestOf("2"), time.Now().Add(-time.Hour))
		}
		tracker := drift.New(drift.Options{
			Index: w, Client: w, Answers: mirrored{w, mirror}, Clock: clock.RealClock{}, Notifier: w,
			Gauge: drift.NewGauge(), UnknownGauge: drift.NewUnknownGauge(),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = tracker.Run(ctx); close(ended) }()
		synctest.Wait()
		ref, _ := reference.Parse(source)
		if got, known := tracker.Naming(ctx, ref); got != (drift.Counts{Outdated: 1}) || !known {
			t.Errorf("%+v, known %v", got, known)
		}
		w.fail = errors.New("the database is gone")
		if got, known := tracker.Naming(ctx, ref); got != (drift.Counts{}) || known {
			t.Errorf("without an answer %+v, known %v", got, known)
		}
		stop()
		<-ended
	})
}
