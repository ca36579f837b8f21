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
	"k8s.io/component-base/metrics/testutil"
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
	runs   map[string]map[string]int // pods of the cluster prod with one container, by tag and by digest
	pods   [][]usage.Tagged          // further ones, with their containers
	fail   error
	lost   map[string]bool // digests that are not stored: they may be indexes
	watch  *watch.FakeWatcher
	events []string
}

func (w *world) Tags() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Collect(maps.Keys(w.runs))
	for _, p := range w.pods {
		for _, one := range p {
			all = append(all, one.Tag)
		}
	}
	return all
}

func (w *world) Names(tag string) bool {
	return slices.Contains(w.Tags(), tag)
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

// Running is part of Index.
func (w *world) Running(tags []string, as func(usage.Tagged) usage.Run) (outdated, unknown usage.Count) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running(tags, as)
}

func (w *world) running(tags []string, as func(usage.Tagged) usage.Run) (outdated, unknown usage.Count) {
	count := func() usage.Count { return usage.Count{ByCluster: map[string]int{}, ByDigest: map[string]int{}} }
	counts := map[usage.State]usage.Count{usage.Current: count(), usage.Unknown: count(), usage.Outdated: count()}
	add := func(pods int, containers ...usage.Tagged) {
		var worst usage.Run
		for _, one := range containers {
			if run := as(one); (tags == nil || slices.Contains(tags, one.Tag)) && run.State > worst.State {
				worst = run
			}
		}
		counts[worst.State].ByCluster["prod"] += pods
		counts[worst.State].ByDigest[worst.Digest] += pods
	}
	for tag, of := range w.runs {
		for digest, pods := range of {
			add(pods, usage.Tagged{Tag: tag, Digest: digest})
		}
	}
	for _, containers := range w.pods {
		add(1, containers...)
	}
	return counts[usage.Outdated], counts[usage.Unknown]
}

func (w *world) Drift(_ context.Context, ref reference.Reference) (answers.Drift, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tag := w.leads[ref.String()]
	d := answers.Drift{Tag: tag, Runs: map[string]usage.Run{}}
	d.Now, _ = tags.Now(tag)
	d.Outdated, d.Unknown = w.running([]string{ref.String()}, func(one usage.Tagged) usage.Run {
		state := usage.Outdated
		switch {
		case one.Digest == d.Now:
			state = usage.Current
		case one.Digest == unstarted || w.lost[d.Now]:
			state = usage.Unknown
		}
		if one.Tag == ref.String() {
			d.Runs[one.Digest] = usage.Run{Digest: one.Digest, State: state}
		}
		return usage.Run{Digest: one.Digest, State: state}
	})
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
				if got, isKnown := tracker.Naming(ref); got.Outdated != n || isKnown != known || got.Unknown != w.runs[text][unstarted] {
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
		want("while it cannot be read, what was read counts", true, 2, 0, 2)
		w.mu.Lock()
		w.runs[v2] = map[string]int{second: 4, unstarted: 2}
		w.mu.Unlock()
		tracker.Recheck([]string{v2})
		synctest.Wait()
		ref, _ := reference.Parse(v2)
		if got, _ := tracker.Naming(ref); got != (drift.Counts{Unknown: 6}) {
			t.Errorf("what has not been compared counts as %+v", got)
		}
		if got, _ := tracker.Running([]string{second}); got != (drift.Counts{Unknown: 4}) {
			t.Errorf("an image that has not been compared counts as %+v", got)
		}
		w.mu.Lock()
		w.fail = nil
		w.runs[v2] = map[string]int{third: 4, unstarted: 2}
		w.mu.Unlock()
		time.Sleep(4 * time.Second)
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

// A pod is one pod, however many tags and names of them it has: what is outdated decides for it.
func TestAPodCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const source, mirror, other = "registry.example.com/app:v1", "mirror.example.com/app:v1", "registry.example.com/sidecar:v1"
		one, two, now := digestOf("1"), digestOf("2"), digestOf("3")
		w := &world{synced: true, leads: map[string]*imagev1.ImageTag{}, pods: [][]usage.Tagged{
			{{Tag: source, Digest: one}, {Tag: mirror, Digest: one}}, {{Tag: source, Digest: one}, {Tag: other, Digest: one}},
			{{Tag: source, Digest: one}, {Tag: other, Digest: unstarted}}, {{Tag: source, Digest: now}, {Tag: other, Digest: unstarted}}, {{Tag: other, Digest: two}, {Tag: source, Digest: now}},
		}}
		for _, name := range []string{source, mirror, other} {
			w.move(t, name, now, time.Now().Add(-time.Hour))
		}
		registry := metrics.NewKubeRegistry()
		gauge, unknownGauge := drift.NewGauge(), drift.NewUnknownGauge()
		registry.MustRegister(gauge, unknownGauge)
		tracker := drift.New(drift.Options{
			Index: w, Client: w, Answers: mirrored{w, mirror}, Clock: clock.RealClock{}, Notifier: w, Gauge: gauge, UnknownGauge: unknownGauge,
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = tracker.Run(ctx); close(ended) }()
		defer func() { stop(); <-ended }()
		expect := func(outdated, unknown int) {
			t.Helper()
			synctest.Wait()
			if got, known := tracker.Pods(); got != (drift.Counts{Outdated: outdated, Unknown: unknown}) || !known {
				t.Errorf("all pods are %+v, known %v", got, known)
			}
			for g, n := range map[*metrics.GaugeVec]int{gauge: outdated, unknownGauge: unknown} {
				if got, err := testutil.GetGaugeMetricValue(g.WithLabelValues("prod")); err != nil || got != float64(n) {
					t.Errorf("the metric is %v, want %d: %v", got, n, err)
				}
			}
		}
		expect(4, 1)
		ref, _ := reference.Parse(source)
		if got, known := tracker.Naming(ref); got != (drift.Counts{Outdated: 3}) || !known {
			t.Errorf("of %s there are %+v, known %v", source, got, known)
		}
		for digest, want := range map[string]drift.Counts{one: {Outdated: 3}, two: {Outdated: 1}, now: {}, unstarted: {Unknown: 2}} {
			if got, known := tracker.Running([]string{digest}); got != want || !known {
				t.Errorf("%q is run by %+v, known %v, want %+v", digest, got, known, want)
			}
		}
		w.mu.Lock()
		w.lost = map[string]bool{now: true}
		w.mu.Unlock()
		tracker.RecheckImage(now)
		expect(0, 5)
		w.mu.Lock()
		w.lost = nil
		w.mu.Unlock()
		tracker.RecheckImage(now)
		expect(4, 1)
		w.move(t, other, one, time.Now())
		expect(4, 1)
		w.move(t, source, one, time.Now())
		expect(3, 1) // the two that run what it led to, and the one that has the name of the mirror
		w.mu.Lock()
		w.pods = w.pods[:1]
		w.mu.Unlock()
		tracker.Recheck([]string{source, other})
		expect(1, 0)
	})
}
