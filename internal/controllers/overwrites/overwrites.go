// Package overwrites finds tags that moved although a rule forbids it. It follows all tags that no
// longer lead to their first image, and checks each of them against the rules.
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
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Client reads ImageTags.
type Client interface {
	GetTag(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.ImageTag, error)
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
	WatchTags(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Answers knows how tags have moved.
type Answers interface {
	// Overwritten returns how a tag has moved although it must not; nil if it has not.
	Overwritten(ctx context.Context, tag *imagev1.ImageTag) (*answers.Overwritten, error)
	// UnderTag returns the Image of a digest and its verdicts for a tag, and, as the former ones,
	// those as if the tag had not moved; nil if the Image is not stored.
	UnderTag(ctx context.Context, tag *imagev1.ImageTag, digest string) (*imagev1.Image, []signatures.Change, error)
}

// Notifier passes on what a Tracker finds.
type Notifier interface {
	// Overwritten gets a tag that is seen to move although it must not.
	Overwritten(tag *imagev1.ImageTag, message string)
	// Turned is called when the image to which such a tag moved may have another verdict under the tag
	// now. It gets the digest, the image (nil if not stored), and the verdicts known to have turned.
	Turned(digest string, image *imagev1.Image, turned []signatures.Change)
}

// Options are all required.
type Options struct {
	Client Client
	// Answers knows how a tag has moved: an [answers.Answerer].
	Answers  Answers
	Notifier Notifier
	Clock    clock.WithTicker
	// Rules is sent when rules may have changed: the Tracker then looks at all tags soon.
	Rules reconcile.Signal
	// Gauge has the number of such tags; see [NewGauge].
	Gauge *metrics.Gauge
}

// Tag is a tag that has moved although it must not.
type Tag struct {
	Reference string `json:"reference"`
	answers.Overwritten
	places []string // where the verdict on what it leads to is due to the move
}

// Tracker knows these tags. It is safe for concurrent use.
type Tracker struct {
	Options
	started time.Time
	queue   *reconcile.Controller[string] // names of ImageTags, and all

	mu    sync.Mutex
	found map[string]Tag // by the name of the ImageTag
	known bool           // all tags have been read once
}

const (
	all        = ""              // the key of all tags
	again      = 5 * time.Minute // between two looks at all tags
	page       = 500             // tags read at a time
	maxWaiting = 10_000          // tags that wait to be looked at
	// MaxFound bounds the tags that are kept, some 10 MB. Further ones are not counted.
	MaxFound = 20_000
)

// New returns a Tracker. It knows nothing until Run.
func New(o Options) *Tracker {
	t := &Tracker{Options: o, started: o.Clock.Now(), found: map[string]Tag{}}
	t.queue = reconcile.New(t, reconcile.Options[string]{Task: "looking at tags that must not move", Max: maxWaiting, All: all, Signals: map[string]<-chan struct{}{all: o.Rules}, Clock: o.Clock})
	return t
}

// NewGauge returns a gauge for [Options], which the caller registers.
func NewGauge() *metrics.Gauge {
	return meter.Gauge("", "overwritten_tags", "Tags that have moved although the configuration or a policy forbids that, until somebody accepts the move or they move back.")
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
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { reconcile.Keep(ctx, "following tags that must not move", t.Clock, t.watch) })
	return t.queue.Run(ctx)
}

// moved selects the tags that lead elsewhere than they did first.
var moved = fields.OneTermEqualSelector(selectors.TagMoved, "true").String()

// watch queues the tags that move until something fails.
func (t *Tracker) watch(ctx context.Context) error {
	list, err := t.Client.ListTags(ctx, metav1.ListOptions{Limit: 1, FieldSelector: moved})
	if err != nil {
		return err
	}
	w, err := t.Client.WatchTags(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: moved})
	if err != nil {
		return err
	}
	defer w.Stop()
	t.queue.Add(all) // what moved before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			tag, is := event.Object.(*imagev1.ImageTag)
			if !ok || !is {
				return nil // the server ends a watch after a while
			}
			t.queue.Add(tag.Name) // "deleted" can mean that it is not moved any more
		}
	}
}

// Reconcile implements [reconcile.Reconciler]: it reads one tag, or all tags.
func (t *Tracker) Reconcile(ctx context.Context, name string) (next time.Duration, err error) {
	defer t.measure()
	if name == all {
		return again, t.readAll(ctx)
	}
	return 0, t.lookAgain(ctx, name)
}

// readAll reads all tags that moved.
func (t *Tracker) readAll(ctx context.Context) error {
	seen := map[string]bool{}
	err := pages.Each(ctx, metav1.ListOptions{Limit: page, FieldSelector: moved}, t.Client.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			seen[list.Items[i].Name] = true
			if err := t.look(ctx, &list.Items[i], false); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.readUnseen(ctx, seen)
}

// readUnseen reads the known tags that readAll did not see: the watch reports such a tag later, or
// missed it.
func (t *Tracker) readUnseen(ctx context.Context, seen map[string]bool) error {
	t.mu.Lock()
	t.known = true
	names := slices.DeleteFunc(slices.Collect(maps.Keys(t.found)), func(name string) bool { return seen[name] })
	t.mu.Unlock()
	for _, name := range names {
		if err := t.lookAgain(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// lookAgain reads a tag and compares it with what is known.
func (t *Tracker) lookAgain(ctx context.Context, name string) error {
	tag, err := t.Client.GetTag(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		if err == nil {
			err = t.look(ctx, tag, true)
		}
		return err
	}
	t.mu.Lock()
	had, was := t.found[name]
	delete(t.found, name)
	t.mu.Unlock()
	if was {
		t.Notifier.Turned(had.To, nil, nil)
	}
	return nil
}

func (t *Tracker) measure() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Gauge.Set(float64(len(t.found)))
}

// look checks whether a rule forbids the move of a tag. changed is true if the tag was written, and
// false if a rule changed.
func (t *Tracker) look(ctx context.Context, tag *imagev1.ImageTag, changed bool) error {
	how, err := t.Answers.Overwritten(ctx, tag)
	if err != nil {
		return err
	}
	t.mu.Lock()
	had, was := t.found[tag.Name]
	// Moves before the start were reported by the previous server.
	isNews := changed || how != nil && !how.Since.Time.Before(t.started.Truncate(time.Second))
	turns := isNews || t.known && (was || len(t.found) < MaxFound)
	t.mu.Unlock()
	if how == nil && !was {
		return nil
	}
	led, moved := had.To, false
	if how != nil {
		led, moved = how.To, !was || had.To != how.To || !had.Since.Equal(&how.Since)
	}
	image, under, err := t.Answers.UnderTag(ctx, tag, led)
	if err != nil {
		return err
	}
	if had.To != led {
		had.places = nil
	}
	places, turned := compare(had.places, under)
	if !turns {
		turned = nil
	}
	t.put(tag, how, places)
	if moved || how == nil || len(turned) > 0 {
		t.Notifier.Turned(led, image, turned)
	}
	if moved && isNews {
		t.Notifier.Overwritten(tag, how.Message)
	}
	return nil
}

// compare returns the places whose verdict is now due to the tag's move, and the verdicts that have
// changed since the places were before.
func compare(before []string, under []signatures.Change) (places []string, turned []signatures.Change) {
	for _, c := range under {
		was := slices.Contains(before, c.Place)
		switch {
		case c.Reason == answers.ReasonTagMoved:
			if places = append(places, c.Place); !was {
				turned = append(turned, c)
			}
		case was && c.Verified != verdicts.VerifiedFalse:
			c.Former.Reason, c.Former.Verified, c.Before = answers.ReasonTagMoved, verdicts.VerifiedFalse, verdicts.VerifiedFalse
			turned = append(turned, c)
		}
	}
	return places, turned
}

// put notes how a tag moved; nil is that it may be where it is.
func (t *Tracker) put(tag *imagev1.ImageTag, how *answers.Overwritten, places []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if how == nil {
		delete(t.found, tag.Name)
		return
	}
	if _, was := t.found[tag.Name]; was || len(t.found) < MaxFound {
		ref, _ := tags.Reference(tag)
		t.found[tag.Name] = Tag{ref.String(), *how, places}
	}
}
