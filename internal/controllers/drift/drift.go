// Package drift finds tags that lead to another image than the one that their pods run. It compares
// them whenever a tag moves or the pods change, so tables and metrics that show the result read
// nothing.
package drift

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// Index knows the tags that pods name.
type Index interface {
	Tags() []string
	Names(tag string) bool
	// Synced reports whether all stored pods are known.
	Synced() bool
}

// Client reads ImageTags.
type Client interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
	WatchTags(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Answers are what pods run and name: [answers.Answerer] gives them.
type Answers interface {
	// Drift returns what the pods that name a tag run.
	Drift(ctx context.Context, tag reference.Reference) (answers.Drift, error)
	// DriftOf is Drift with the pods that name the tag on a mirror. A pod that has several of its
	// names counts once.
	DriftOf(ctx context.Context, tag reference.Reference) (answers.Drift, error)
	// NamesOf returns a tag and its names on mirrors: pods that have any of these name the tag.
	NamesOf(tag reference.Reference) []reference.Reference
}

// Notifier passes on what a Tracker finds.
type Notifier interface {
	// Outdated gets a tag when pods begin to differ from it: once for each image to which it leads.
	Outdated(tag *imagev1.ImageTag, message string)
}

// Options are all required.
type Options struct {
	Index Index
	// Client is the server's own client.
	Client   Client
	Answers  Answers
	Notifier Notifier
	Clock    clock.WithTicker
	// Gauge has the number of outdated pods of each cluster, and UnknownGauge the number of pods that
	// may be outdated; see [NewGauge] and [NewUnknownGauge].
	Gauge, UnknownGauge *metrics.GaugeVec
	// Clusters are the names of the clusters for which the gauges have a number, zero if Answers have
	// none. Until all tags have been compared once, the gauges have no numbers.
	Clusters []string
}

// Tracker knows the tags that pods name and that lead to another image now, or may. Its size is
// bounded by the number of tags that pods name. It is safe for concurrent use.
type Tracker struct {
	Options
	started time.Time
	queue   *reconcile.Controller[string]

	mu       sync.Mutex
	drifted  map[string]answers.Drift     // tags that lead elsewhere than to what pods run, or may
	images   map[string]map[string]Counts // pods, by the digest that they run and by tag
	reported map[string]string            // the digest that Notify was given, by tag
	known    bool                         // all tags have been compared once
}

// Counts are the numbers of pods that run another image than their tag leads to, and of pods that
// may. A pod that names several tags counts for each.
type Counts struct{ Outdated, Unknown int }

func (c *Counts) add(more Counts) {
	c.Outdated += more.Outdated
	c.Unknown += more.Unknown
}

const (
	again       = 5 * time.Minute // between two comparisons of all tags
	pause       = time.Second     // the same until all pods are known
	maxWaiting  = 10_000          // tags that wait to be compared
	maxReported = 10_000          // tags whose last report is remembered
)

// New returns a Tracker. It knows nothing until Run.
func New(o Options) *Tracker {
	t := &Tracker{Options: o, started: o.Clock.Now(), drifted: map[string]answers.Drift{}, images: map[string]map[string]Counts{}, reported: map[string]string{}}
	t.queue = reconcile.New(t, reconcile.Options[string]{Task: "comparing tags with what pods run", Max: maxWaiting, All: all, Clock: o.Clock})
	return t
}

// NewGauge returns a gauge for [Options], which the caller registers.
func NewGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "outdated_pods", "Known pods of a cluster that name a tag but run a different image than it leads to now. A pod counts once for each of its tags.", "cluster")
}

// NewUnknownGauge returns another gauge for [Options], which the caller registers.
func NewUnknownGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "outdated_unknown_pods", "Known pods of a cluster of which it is not known whether they run a different image than their tag leads to now. A pod counts once for each of its tags.", "cluster")
}

// Recheck makes the Tracker compare tags soon.
func (t *Tracker) Recheck(tags []string) {
	for _, tag := range tags {
		t.queue.Add(tag)
	}
}

// Naming returns the counts of the pods that name a tag, or its name on a mirror. A pod counts
// once. known is false before all tags have been compared.
func (t *Tracker) Naming(ctx context.Context, tag reference.Reference) (n Counts, known bool) {
	n, names, known := t.byName(tag)
	if names < 2 {
		return n, known
	}
	// one pod may have several of these names
	found, err := t.Answers.DriftOf(ctx, tag)
	if err != nil {
		return Counts{}, false
	}
	return countsOf(found), known
}

// byName sums the counts of the names of a tag that pods have and that lead elsewhere, or may.
func (t *Tracker) byName(tag reference.Reference) (n Counts, names int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range t.Answers.NamesOf(tag) {
		if d, has := t.drifted[name.String()]; has {
			n.add(countsOf(d))
			names++
		}
	}
	return n, names, t.known
}

// Pods returns the counts of all known pods.
func (t *Tracker) Pods() (n Counts, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.drifted {
		n.add(countsOf(d))
	}
	return n, t.known
}

func countsOf(d answers.Drift) Counts { return Counts{d.Outdated.Pods(), d.Unknown.Pods()} }

// Running returns the counts of the pods that run one of digests.
func (t *Tracker) Running(digests []string) (n Counts, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, digest := range digests {
		digest, _, _ = strings.Cut(digest, "@")
		for _, pods := range t.images[digest] {
			n.add(pods)
		}
	}
	return n, t.known
}

// Run compares tags until ctx is done.
func (t *Tracker) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { reconcile.Keep(ctx, "following tags that move", t.Clock, t.watch) })
	t.queue.Add(all)
	return t.queue.Run(ctx)
}

// watch queues tags that move.
func (t *Tracker) watch(ctx context.Context) error {
	list, err := t.Client.ListTags(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	w, err := t.Client.WatchTags(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	t.queue.Add(all) // tags may have moved before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.ResultChan():
			tag, ok := event.Object.(*imagev1.ImageTag)
			if !ok {
				return nil // the watch has ended, or is too old
			}
			ref, ok := tags.Reference(tag)
			if !ok {
				continue
			}
			for _, name := range t.Answers.NamesOf(ref) { // a tag of a mirror moves with the tag of its source
				if t.Index.Names(name.String()) {
					t.queue.Add(name.String())
				}
			}
		}
	}
}

// all is the key of all tags that pods name.
const all = ""

// Reconcile implements [reconcile.Reconciler]: it compares one tag, or all.
func (t *Tracker) Reconcile(ctx context.Context, tag string) (next time.Duration, err error) {
	defer t.measure()
	if tag != all {
		return 0, t.lookAt(ctx, tag)
	}
	synced := t.Index.Synced()
	for _, tag := range t.Index.Tags() {
		if failed := t.lookAt(ctx, tag); failed != nil {
			err = failed
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known = t.known || synced && err == nil; !t.known {
		return pause, err
	}
	return again, err
}

// measure updates the gauges.
func (t *Tracker) measure() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(t.Gauge, func(d answers.Drift) map[string]int { return d.Outdated.ByCluster })
	t.set(t.UnknownGauge, func(d answers.Drift) map[string]int { return d.Unknown.ByCluster })
}

// set sets a gauge to the sums over all tags. The caller holds mu.
func (t *Tracker) set(gauge *metrics.GaugeVec, of func(answers.Drift) map[string]int) {
	gauge.Reset()
	pods := map[string]int{}
	if t.known {
		for _, cluster := range t.Clusters {
			pods[cluster] = 0
		}
	}
	for _, d := range t.drifted {
		for cluster, n := range of(d) {
			pods[cluster] += n
		}
	}
	for cluster, n := range pods {
		gauge.WithLabelValues(cluster).Set(float64(n))
	}
}

// lookAt compares one tag.
func (t *Tracker) lookAt(ctx context.Context, tag string) error {
	ref, err := reference.Parse(tag)
	if err != nil {
		return nil // no pod names such a tag
	}
	found, err := t.Answers.Drift(ctx, ref)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	had := t.drifted[tag]
	for _, count := range []usage.Count{had.Outdated, had.Unknown} {
		for digest := range count.ByDigest {
			if delete(t.images[digest], tag); len(t.images[digest]) == 0 {
				delete(t.images, digest)
			}
		}
	}
	if delete(t.drifted, tag); countsOf(found) == (Counts{}) {
		return nil
	}
	t.drifted[tag] = found
	add := func(count usage.Count, of func(n int) Counts) {
		for digest, n := range count.ByDigest {
			if t.images[digest] == nil {
				t.images[digest] = map[string]Counts{}
			}
			all := t.images[digest][tag]
			all.add(of(n))
			t.images[digest][tag] = all
		}
	}
	add(found.Outdated, func(n int) Counts { return Counts{Outdated: n} })
	add(found.Unknown, func(n int) Counts { return Counts{Unknown: n} })
	if len(found.Outdated.ByDigest) == 0 {
		return nil
	}
	if t.reported[tag] == found.Now {
		return nil
	}
	if len(t.reported) >= maxReported {
		clear(t.reported)
	}
	t.reported[tag] = found.Now
	// Differences at the start were reported by the previous server.
	if since := found.Tag.Status.Items[0].Created; t.known || !since.Time.Before(t.started.Truncate(time.Second)) {
		text, _ := Message(tag, found)
		t.Notifier.Outdated(found.Tag, text)
	}
	return nil
}

// maxNamed is how many clusters a message names.
const maxNamed = 5

// Message describes in a sentence what the pods that name a tag run. pods is their number, 0 if
// they run what the tag leads to.
func Message(tag string, found answers.Drift) (text string, pods int) {
	if len(found.Outdated.ByDigest) == 0 {
		return "", 0
	}
	clusters := slices.Sorted(maps.Keys(found.Outdated.ByCluster))
	pods = found.Outdated.Pods()
	if more := len(clusters) - maxNamed; more > 0 {
		clusters = append(clusters[:maxNamed], fmt.Sprintf("%d more", more))
	}
	most := slices.MaxFunc(slices.Sorted(maps.Keys(found.Outdated.ByDigest)), func(a, b string) int { return cmp.Compare(found.Outdated.ByDigest[a], found.Outdated.ByDigest[b]) })
	others := ""
	if n := len(found.Outdated.ByDigest) - 1; n > 0 {
		others = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s leads to %s, but %s %s%s under its name in %s", tag, reference.ShortDigest(found.Now), table.Clause(pods, "pod", "run"), reference.ShortDigest(most), others, strings.Join(clusters, ", ")), pods
}
