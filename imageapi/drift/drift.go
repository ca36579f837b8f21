// Package drift knows which tags lead to something else than the pods run that name them. It finds
// that out when a tag moves and when what pods run changes, so a table or a metric that shows it
// reads nothing.
package drift

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
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

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
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

// Options are all required.
type Options struct {
	Index Index
	// Client is that of the server itself.
	Client Client
	// Find finds out what pods run that name a tag.
	Find func(ctx context.Context, tag reference.Reference) (answers.Drift, error)
	// Notify is called when pods begin to differ from where a tag leads: once for each image that
	// the tag leads to.
	Notify func(tag *imagev1.ImageTag, message string)
	Clock  clock.WithDelayedExecution
	// Gauge counts the outdated pods of each cluster; see [NewGauge].
	Gauge *metrics.GaugeVec
}

// Tracker knows which tags pods name that lead elsewhere now. Its size is bounded by the tags that
// pods name. It is safe for concurrent use.
type Tracker struct {
	Options
	started time.Time
	wake    chan struct{} // holds a token when a tag is to be looked at

	mu       sync.Mutex
	dirty    map[string]bool // tags to be looked at
	drifted  map[string]drifted
	images   map[string]map[string]int // pods, by the digest that they run and by tag
	reported map[string]string         // the digest that Notify was given, by tag
	known    bool                      // all tags have been looked at once
}

// drifted is a tag that leads elsewhere than to what pods run.
type drifted struct {
	byCluster, byDigest map[string]int
}

const (
	again       = 5 * time.Minute // between two looks at all tags
	pause       = time.Second     // before a watch that ended, or a look that failed
	maxReported = 10_000          // tags whose last report is remembered
)

// New returns a Tracker that knows nothing until it is run.
func New(o Options) *Tracker {
	t := &Tracker{Options: o, started: o.Clock.Now(), wake: make(chan struct{}, 1), dirty: map[string]bool{}, drifted: map[string]drifted{}, images: map[string]map[string]int{}, reported: map[string]string{}}
	return t
}

// NewGauge returns a gauge for [Options], which the caller registers.
func NewGauge() *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Name: "outdated_pods",
		Help:           "Known pods of a followed cluster that name a tag but run a different image than it leads to now. A pod counts once for each of its tags.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cluster"})
}

// Recheck has tags looked at soon.
func (t *Tracker) Recheck(all []string) {
	t.mu.Lock()
	for _, tag := range all {
		t.dirty[tag] = true
	}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Naming counts the outdated pods that name a tag. known is false before all tags have been looked
// at.
func (t *Tracker) Naming(tag reference.Reference) (n int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pods := range t.drifted[tag.String()].byCluster {
		n += pods
	}
	return n, t.known
}

// Pods counts all outdated pods of which is known. A pod that names several tags counts for each.
func (t *Tracker) Pods() (n int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.drifted {
		for _, pods := range d.byCluster {
			n += pods
		}
	}
	return n, t.known
}

// Running counts the outdated pods that run one of some digests. A pod that names several tags
// counts for each.
func (t *Tracker) Running(digests []string) (n int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, digest := range digests {
		digest, _, _ = strings.Cut(digest, "@")
		for _, pods := range t.images[digest] {
			n += pods
		}
	}
	return n, t.known
}

// Run looks at tags until ctx is done.
func (t *Tracker) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { t.followMoves(ctx) })
	for {
		t.checkDue(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-t.Clock.After(again):
			t.Recheck(t.Index.Tags()) // mirrors lead where other tags do
		}
	}
}

// followMoves has tags looked at that move.
func (t *Tracker) followMoves(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.watch(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("Comparing moved tags with running pods failed, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-t.Clock.After(pause):
		}
	}
}

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
	t.Recheck(t.Index.Tags()) // what moved before
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.ResultChan():
			tag, ok := event.Object.(*imagev1.ImageTag)
			if !ok {
				return nil // the watch has ended, or is too old
			}
			if ref, ok := tags.Reference(tag); ok && t.Index.Names(ref.String()) {
				t.Recheck([]string{ref.String()})
			}
		}
	}
}

// checkDue looks at the tags that are due.
func (t *Tracker) checkDue(ctx context.Context) {
	synced := t.Index.Synced()
	t.mu.Lock()
	due, first := t.dirty, synced && !t.known
	t.dirty = map[string]bool{}
	t.mu.Unlock()
	if first {
		for _, tag := range t.Index.Tags() {
			due[tag] = true
		}
	}
	var failed []string
	for _, tag := range slices.Sorted(maps.Keys(due)) {
		if ctx.Err() != nil {
			return
		}
		if err := t.lookAt(ctx, tag); err != nil {
			failed = append(failed, tag)
		}
	}
	t.mu.Lock()
	t.known = t.known || synced && len(failed) == 0
	t.Gauge.Reset()
	all := map[string]int{}
	for _, d := range t.drifted {
		for cluster, n := range d.byCluster {
			all[cluster] += n
		}
	}
	for cluster, n := range all {
		t.Gauge.WithLabelValues(cluster).Set(float64(n))
	}
	unknown := !t.known
	t.mu.Unlock()
	if len(failed) > 0 || unknown {
		t.Clock.AfterFunc(pause, func() { t.Recheck(failed) })
	}
}

// lookAt finds out what is known of a tag.
func (t *Tracker) lookAt(ctx context.Context, tag string) error {
	ref, err := reference.Parse(tag)
	if err != nil {
		return nil // nothing leads there
	}
	found, err := t.Find(ctx, ref)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for digest := range t.drifted[tag].byDigest {
		if delete(t.images[digest], tag); len(t.images[digest]) == 0 {
			delete(t.images, digest)
		}
	}
	delete(t.drifted, tag)
	if len(found.ByDigest) == 0 {
		return nil
	}
	t.drifted[tag] = drifted{found.ByCluster, found.ByDigest}
	for digest, n := range found.ByDigest {
		if t.images[digest] == nil {
			t.images[digest] = map[string]int{}
		}
		t.images[digest][tag] = n
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
		t.Notify(found.Tag, text)
	}
	return nil
}

// maxNamed is how many clusters a message names.
const maxNamed = 5

// Message says in a sentence what pods run that name a tag, and counts them; pods is 0 if they run
// what the tag leads to.
func Message(tag string, found answers.Drift) (text string, pods int) {
	if len(found.ByDigest) == 0 {
		return "", 0
	}
	clusters := slices.Sorted(maps.Keys(found.ByCluster))
	for _, n := range found.ByCluster {
		pods += n
	}
	if more := len(clusters) - maxNamed; more > 0 {
		clusters = append(clusters[:maxNamed], fmt.Sprintf("%d more", more))
	}
	most := slices.MaxFunc(slices.Sorted(maps.Keys(found.ByDigest)), func(a, b string) int { return cmp.Compare(found.ByDigest[a], found.ByDigest[b]) })
	others := ""
	if n := len(found.ByDigest) - 1; n > 0 {
		others = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s leads to %s, but %d pods of %s that name it run %s%s", tag, reference.ShortDigest(found.Now), pods, strings.Join(clusters, ", "), reference.ShortDigest(most), others), pods
}
