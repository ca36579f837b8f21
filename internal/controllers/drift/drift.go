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
	// Running counts the pods that name one of some tags, or any if none is given. A pod counts once.
	Running(tags []string, as func(usage.Tagged) usage.Run) (outdated, unknown usage.Count)
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
	drifted  map[string]answers.Drift       // tags that lead elsewhere than to what pods run, or may
	images   map[string]map[string]struct{} // these tags, by the digests that pods run and they lead to
	unread   map[string]struct{}            // tags whose last comparison failed
	reported map[string]string              // the digest that Notify was given, by tag
	known    bool                           // all tags have been compared once
	pods     Counts                         // of all known pods
	due      time.Time                      // when the pods may be counted again
}

// Counts are the numbers of pods that run another image than their tag leads to, and of other pods,
// which may. A pod counts once, however many tags it names.
type Counts struct{ Outdated, Unknown int }

const (
	again       = 5 * time.Minute // between two comparisons of all tags
	pause       = time.Second     // the same until all pods are known
	maxWaiting  = 10_000          // tags that wait to be compared
	maxReported = 10_000          // tags whose last report is remembered
	rest        = 50              // pause between two counts of all pods, in times that a count takes
)

// New returns a Tracker. It knows nothing until Run.
func New(o Options) *Tracker {
	t := &Tracker{Options: o, started: o.Clock.Now(), drifted: map[string]answers.Drift{}, images: map[string]map[string]struct{}{}, unread: map[string]struct{}{}, reported: map[string]string{}}
	t.queue = reconcile.New(t, reconcile.Options[string]{Task: "comparing tags with what pods run", Max: maxWaiting, All: all, Clock: o.Clock})
	return t
}

// NewGauge returns a gauge for [Options], which the caller registers.
func NewGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "outdated_pods", "Known pods of a cluster that name a tag but run a different image than it leads to now. A pod counts once.", "cluster")
}

// NewUnknownGauge returns another gauge for [Options], which the caller registers.
func NewUnknownGauge() *metrics.GaugeVec {
	return meter.GaugeVec("", "outdated_unknown_pods", "Known pods of a cluster of which it is not known whether they run a different image than their tag leads to now. A pod counts once.", "cluster")
}

// Recheck makes the Tracker compare tags soon.
func (t *Tracker) Recheck(tags []string) {
	for _, tag := range tags {
		t.queue.Add(tag)
	}
}

// RecheckImage makes the Tracker soon compare the tags that lead to an image with the pods that run
// another image. It is called when the image is stored: only then is it known whether it is an
// index that lists the other image.
func (t *Tracker) RecheckImage(digest string) {
	t.mu.Lock()
	tags := slices.Collect(maps.Keys(t.images[digest]))
	t.mu.Unlock()
	t.Recheck(tags)
}

// Naming returns the counts of the pods that name a tag, or its name on a mirror. known is false
// before all tags have been compared.
func (t *Tracker) Naming(tag reference.Reference) (n Counts, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for _, name := range t.Answers.NamesOf(tag) {
		_, unread := t.unread[name.String()]
		if _, has := t.drifted[name.String()]; has || unread {
			names = append(names, name.String())
		}
	}
	return t.count(names, t.run), t.known
}

// Pods returns the counts of all known pods.
func (t *Tracker) Pods() (n Counts, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods, t.known
}

// Running returns the counts of the pods that run one of digests.
func (t *Tracker) Running(digests []string) (n Counts, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted, tags := map[string]bool{}, maps.Clone(t.unread)
	for _, digest := range digests {
		digest, _, _ = strings.Cut(digest, "@")
		wanted[digest] = true
		maps.Copy(tags, t.images[digest])
	}
	return t.count(slices.Collect(maps.Keys(tags)), func(one usage.Tagged) usage.Run {
		run := t.run(one)
		if !wanted[run.Digest] {
			return usage.Run{}
		}
		return run
	}), t.known
}

// run is what a container runs, by the last comparison of its tag. The caller holds mu.
func (t *Tracker) run(one usage.Tagged) usage.Run {
	run, compared := t.drifted[one.Tag].Runs[one.Digest]
	if _, unread := t.unread[one.Tag]; unread && !compared {
		return usage.Run{Digest: one.Digest, State: usage.Unknown}
	}
	return run
}

// count counts the pods that name one of some tags. The caller holds mu.
func (t *Tracker) count(tags []string, run func(usage.Tagged) usage.Run) Counts {
	if len(tags) == 0 {
		return Counts{}
	}
	outdated, unknown := t.Index.Running(tags, run)
	return Counts{outdated.Pods(), unknown.Pods()}
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

// Keys that are no tags: of all tags that pods name, and of the number of pods.
const (
	all    = ""
	number = "pods"
)

// Reconcile implements [reconcile.Reconciler]: it compares one tag, or all, or counts the pods.
func (t *Tracker) Reconcile(ctx context.Context, tag string) (next time.Duration, err error) {
	switch tag {
	case number:
		t.mu.Lock()
		defer t.mu.Unlock()
		if next = t.due.Sub(t.Clock.Now()); next > 0 {
			return next, nil
		}
		t.measure()
		return 0, nil
	case all:
		return t.lookAtAll(ctx)
	}
	t.queue.Add(number)
	return 0, t.lookAt(ctx, tag)
}

// lookAtAll compares all tags that pods name, and counts the pods.
func (t *Tracker) lookAtAll(ctx context.Context) (next time.Duration, err error) {
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
	t.known = t.known || synced && err == nil
	if t.measure(); !t.known {
		return pause, err
	}
	return again, err
}

// measure counts all known pods, for the gauges, too. The caller holds mu.
func (t *Tracker) measure() {
	begun := t.Clock.Now()
	var outdated, unknown usage.Count
	if len(t.drifted)+len(t.unread) > 0 {
		outdated, unknown = t.Index.Running(nil, t.run)
	}
	t.pods = Counts{outdated.Pods(), unknown.Pods()}
	t.set(t.Gauge, outdated)
	t.set(t.UnknownGauge, unknown)
	t.due = t.Clock.Now().Add(rest * t.Clock.Since(begun))
}

// set sets a gauge. The caller holds mu.
func (t *Tracker) set(gauge *metrics.GaugeVec, pods usage.Count) {
	gauge.Reset()
	if t.known {
		for _, cluster := range t.Clusters {
			gauge.WithLabelValues(cluster).Set(0)
		}
	}
	for cluster, n := range pods.ByCluster {
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
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.unread[tag] = struct{}{}
		return err
	}
	delete(t.unread, tag)
	for _, digest := range about(t.drifted[tag]) {
		if delete(t.images[digest], tag); len(t.images[digest]) == 0 {
			delete(t.images, digest)
		}
	}
	if delete(t.drifted, tag); found.Outdated.Pods()+found.Unknown.Pods() == 0 {
		return nil
	}
	t.drifted[tag] = found
	for _, digest := range about(found) {
		if t.images[digest] == nil {
			t.images[digest] = map[string]struct{}{}
		}
		t.images[digest][tag] = struct{}{}
	}
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

// about are the digests that a comparison is about: what pods run, and where the tag leads.
func about(d answers.Drift) []string {
	digests := []string{d.Now}
	for _, run := range d.Runs {
		digests = append(digests, run.Digest)
	}
	return digests
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
