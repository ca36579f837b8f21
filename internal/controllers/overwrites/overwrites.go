// Package overwrites knows which tags have moved although they must not. It follows the tags that
// lead elsewhere than they did first, and asks of each whether a rule forbids that.
package overwrites

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

// Client reads ImageTags.
type Client interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
	WatchTags(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Answers say how tags have moved.
type Answers interface {
	// Overwritten returns how a tag has moved although it must not; nil if it has not.
	Overwritten(ctx context.Context, tag *imagev1.ImageTag) (*answers.Overwritten, error)
}

// Notifier passes on what a Tracker finds.
type Notifier interface {
	// Overwritten gets a tag that is seen to move although it must not.
	Overwritten(tag *imagev1.ImageTag, message string)
	// Turned gets the digest to which such a tag moved, when that may have another verdict for the tag
	// now.
	Turned(digest string)
}

// Options are all required.
type Options struct {
	Client Client
	// Answers say how a tag has moved: an [answers.Answerer].
	Answers  Answers
	Notifier Notifier
	Clock    clock.WithTicker
	// Gauge has the number of such tags; see [NewGauge].
	Gauge *metrics.Gauge
}

// Tag is a tag that has moved although it must not.
type Tag struct {
	Reference string `json:"reference"`
	answers.Overwritten
}

// Tracker knows these tags. It is safe for concurrent use.
type Tracker struct {
	Options
	started time.Time
	recheck chan struct{} // holds a token if rules may have changed

	mu    sync.Mutex
	found map[string]Tag // by the name of the ImageTag
	known bool           // all tags have been read once
}

const (
	again = 5 * time.Minute // between two looks at all tags
	page  = 500             // tags read at a time
	// MaxFound bounds the tags that are kept, some 10 MB. Further ones are not counted.
	MaxFound = 20_000
)

// New returns a Tracker. It knows nothing until Run.
func New(o Options) *Tracker {
	return &Tracker{Options: o, started: o.Clock.Now(), recheck: make(chan struct{}, 1), found: map[string]Tag{}}
}

// NewGauge returns a gauge for [Options], which the caller registers.
func NewGauge() *metrics.Gauge {
	return meter.Gauge("", "overwritten_tags", "Tags that have moved although the configuration or a policy forbids that, until somebody accepts the move or they move back.")
}

// Recheck makes the Tracker look at all tags soon, because rules may have changed.
func (t *Tracker) Recheck() {
	select {
	case t.recheck <- struct{}{}:
	default:
	}
}

// Tags returns the tags that moved last, at most most, and how many there are. known is false until
// all tags have been read once.
func (t *Tracker) Tags(most int) (all []Tag, n int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all = slices.SortedFunc(maps.Values(t.found), func(a, b Tag) int {
		return cmp.Or(b.Since.Compare(a.Since.Time), cmp.Compare(a.Reference, b.Reference))
	})
	return all[:min(len(all), most)], len(t.found), t.known
}

// Run follows tags until ctx is done.
func (t *Tracker) Run(ctx context.Context) error {
	reconcile.Keep(ctx, "following tags that must not move", t.Clock, t.follow)
	return nil
}

// moved selects the tags that lead elsewhere than they did first.
var moved = fields.OneTermEqualSelector(selectors.TagMoved, "true").String()

// follow reads all tags, and then follows those that move until something fails.
func (t *Tracker) follow(ctx context.Context) error {
	version, err := t.readAll(ctx)
	if err != nil {
		return err
	}
	w, err := t.Client.WatchTags(ctx, metav1.ListOptions{ResourceVersion: version, FieldSelector: moved})
	if err != nil {
		return err
	}
	defer w.Stop()
	next := t.Clock.After(again)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.recheck:
		case <-next:
			next = t.Clock.After(again)
		case event, ok := <-w.ResultChan():
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			tag, is := event.Object.(*imagev1.ImageTag)
			if !ok || !is {
				return nil // the server ends a watch after a while
			}
			if event.Type == watch.Deleted {
				t.put(tag, nil, true)
			} else if err := t.look(ctx, tag, true); err != nil {
				return err
			}
			t.measure()
			continue
		}
		if _, err := t.readAll(ctx); err != nil {
			return err
		}
	}
}

// readAll looks at all tags that moved, and returns the version at which it read them.
func (t *Tracker) readAll(ctx context.Context) (version string, err error) {
	seen := map[string]bool{}
	err = pages.Each(ctx, metav1.ListOptions{Limit: page, FieldSelector: moved}, t.Client.ListTags, func(list *imagev1.ImageTagList) error {
		version = cmp.Or(version, list.ResourceVersion) // a watch from here reports what moves meanwhile
		for i := range list.Items {
			seen[list.Items[i].Name] = true
			if err := t.look(ctx, &list.Items[i], false); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, to := range t.forget(seen) {
		t.Notifier.Turned(to)
	}
	t.measure()
	return version, nil
}

// forget drops the tags that were not seen when all were read, and returns where they led: the
// watch reports such a tag later, or missed it.
func (t *Tracker) forget(seen map[string]bool) (led []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = true
	maps.DeleteFunc(t.found, func(name string, tag Tag) bool {
		if !seen[name] {
			led = append(led, tag.To)
		}
		return !seen[name]
	})
	return led
}

func (t *Tracker) measure() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Gauge.Set(float64(len(t.found)))
}

// look asks of a tag whether a rule forbids its move.
func (t *Tracker) look(ctx context.Context, tag *imagev1.ImageTag, changed bool) error {
	how, err := t.Answers.Overwritten(ctx, tag)
	if err == nil {
		t.put(tag, how, changed)
	}
	return err
}

// put notes how a tag moved; nil is that it may be where it is. changed is true if the tag itself
// was written, and not a rule.
func (t *Tracker) put(tag *imagev1.ImageTag, how *answers.Overwritten, changed bool) {
	t.mu.Lock()
	had, was := t.found[tag.Name]
	switch {
	case how == nil:
		delete(t.found, tag.Name)
	case was || len(t.found) < MaxFound:
		ref, _ := tags.Reference(tag)
		t.found[tag.Name] = Tag{ref.String(), *how}
	}
	t.mu.Unlock()
	switch {
	case how == nil:
		if was {
			t.Notifier.Turned(had.To)
		}
	case was && had.To == how.To && had.Since.Equal(&how.Since):
	default:
		t.Notifier.Turned(how.To)
		// Moves before the start were reported by the previous server.
		if changed || !how.Since.Time.Before(t.started.Truncate(time.Second)) {
			t.Notifier.Overwritten(tag, how.Message)
		}
	}
}
