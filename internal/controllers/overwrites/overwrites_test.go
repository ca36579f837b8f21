package overwrites_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/controllers/overwrites"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// world has tags of which some must not move.
type world struct {
	mu     sync.Mutex
	tags   map[string]*imagev1.ImageTag // by tag
	rules  string                       // the tags that must not move
	fails  bool
	watch  *watch.FakeWatcher
	turned chan string // digits of digests, and how their verdicts turned
}

func (w *world) ListTags(_ context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := &imagev1.ImageTagList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, tag := range w.tags {
		if tags.Overwritten(tag) != nil && o.FieldSelector == "moved=true" {
			list.Items = append(list.Items, *tag)
		}
	}
	return list, nil
}

func (w *world) WatchTags(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.ResourceVersion != "7" || o.FieldSelector != "moved=true" {
		return nil, fmt.Errorf("watch %+v", o)
	}
	w.watch = watch.NewFakeWithChanSize(100, false)
	return w.watch, nil
}

func (w *world) Overwritten(_ context.Context, tag *imagev1.ImageTag) (*answers.Overwritten, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails {
		w.fails = false
		return nil, errors.New("the policies cannot be read")
	}
	move := tags.Overwritten(tag)
	if move == nil || !strings.Contains(w.rules, tag.Spec.Name) {
		return nil, nil
	}
	return &answers.Overwritten{From: move.From, To: move.To, Since: metav1.NewTime(move.At), Message: tag.Spec.Name + " moved"}, nil
}

// lead has a tag lead to an image, and tells the watcher.
func (w *world) lead(t *testing.T, name, digit string, at time.Time) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	ref := reference.Reference{Host: "r.example.com", Repository: "app", Tag: name}
	tag, before := w.tags[name], false
	if tag == nil {
		tag = tags.New(ref)
	} else {
		tag, before = tag.DeepCopy(), tags.Overwritten(tag) != nil
	}
	tags.Lead(tag, ref, "sha256:"+strings.Repeat(digit, 64), metav1.NewTime(at))
	w.tags[name] = tag
	after := tags.Overwritten(tag) != nil
	switch {
	case w.watch == nil:
	case after:
		w.watch.Modify(tag)
	case before:
		w.watch.Delete(tag)
	}
}

// accept accepts where a tag leads, and tells the watcher, which gets the tag as it was.
func (w *world) accept(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.tags[name]
	w.tags[name] = before.DeepCopy()
	tags.AcceptMove(w.tags[name], "ann", "", time.Now())
	w.watch.Delete(before)
}

func (w *world) GetTag(_ context.Context, name string, _ metav1.GetOptions) (*imagev1.ImageTag, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tag := range w.tags {
		if tag.Name == name {
			return tag, nil
		}
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("imagetags"), name)
}

// UnderTag has it that every image is verified, except under a tag that moved to it and must not.
func (w *world) UnderTag(_ context.Context, tag *imagev1.ImageTag, digest string) (*imagev1.Image, []signatures.Change, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := signatures.Change{HeldVerdict: annotation.HeldVerdict{Place: tag.Spec.Name, Verdict: annotation.Verdict{Verified: "True"}}, Before: "True", Former: annotation.Verdict{Verified: "True"}}
	if strings.Contains(w.rules, tag.Spec.Name) && tags.Away(tag, digest) != nil {
		c.Verdict = annotation.Verdict{Verified: "False", Reason: answers.ReasonTagMoved}
	}
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}}, []signatures.Change{c}, nil
}

// notices are the messages that a Tracker passes on, and the verdicts that turned by moves.
type notices struct {
	told, turned chan string
}

func (n notices) Overwritten(_ *imagev1.ImageTag, message string) { n.told <- message }

func (n notices) Turned(digest string, _ *imagev1.Image, turned []signatures.Change) {
	text := digest[7:8]
	for _, c := range turned {
		text += fmt.Sprint(" ", c.Place, " ", c.Before, " ", c.Verified)
	}
	n.turned <- text
}

// What must not move and has is known while it is so: from before the start, by a watch, and when
// rules change. Moves are told once, those from before the start not at all, and whoever asks for
// verdicts learns of each turn.
func TestTracker(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	w := &world{tags: map[string]*imagev1.ImageTag{}, rules: "v1 v2", fails: true, turned: make(chan string, 100)}
	w.lead(t, "v1", "1", begun.Add(-2*time.Hour))
	w.lead(t, "v1", "2", begun.Add(-time.Hour))
	w.lead(t, "v2", "1", begun.Add(-time.Hour))
	w.lead(t, "latest", "1", begun.Add(-time.Hour))
	w.lead(t, "latest", "2", begun.Add(-time.Minute))
	clock := testingclock.NewFakeClock(begun)
	told, rules := make(chan string, 100), reconcile.NewSignal()
	tracker := overwrites.New(overwrites.Options{
		Client: w, Answers: w, Clock: clock, Rules: rules, Gauge: overwrites.NewGauge(),
		Notifier: notices{told, w.turned},
	})
	if _, _, known := tracker.Tags(1); known {
		t.Error("it is known before anything was read")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = tracker.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	// await waits for a turn, steps the clock while the tracker rests, and compares what is known.
	await := func(when, turned string, want ...string) {
		t.Helper()
		for patience := time.After(time.Minute); ; {
			select {
			case got := <-w.turned:
				if got != turned {
					t.Errorf("%s: what has image %s turned, want %s", when, got, turned)
				}
			case <-patience:
				t.Fatalf("%s: nothing turned", when)
			default:
				clock.Step(time.Second)
				continue
			}
			break
		}
		for {
			var names []string
			all, n, known := tracker.Tags(10)
			for _, tag := range all {
				names = append(names, strings.TrimPrefix(tag.Reference, "r.example.com/app:"))
			}
			if known && n == len(want) && slices.Equal(names, want) {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("%s: %v, %v", when, names, known)
			}
			clock.Step(time.Second)
		}
	}
	await("before the start", "2", "v1")
	w.lead(t, "v2", "3", begun.Add(time.Minute))
	await("moved", "3 v2 True False", "v2", "v1")
	if got := <-told; got != "v2 moved" {
		t.Errorf("it is told that %s", got)
	}
	w.lead(t, "v2", "1", begun.Add(2*time.Minute))
	await("moved back", "3", "v1")
	w.mu.Lock()
	w.rules = "latest"
	w.mu.Unlock()
	rules.Send()
	want := []string{"2 latest True False", "2 v1 False True"}
	for range 2 { // in either order
		select {
		case got := <-w.turned:
			if !slices.Contains(want, got) {
				t.Errorf("by the changed rules %s turned", got)
			}
		case <-time.After(time.Minute):
			t.Fatal("nothing turned when the rules changed")
		}
	}
	if all, n, _ := tracker.Tags(10); n != 1 || all[0].Reference != "r.example.com/app:latest" {
		t.Errorf("by the changed rules it is %+v", all)
	}
	w.accept("latest")
	await("accepted", "2 latest False True")
	select {
	case got := <-told:
		t.Errorf("it is also told that %s", got)
	default:
	}
}

// A tag that moved back while nobody watched has turned, too.
func TestMovedBackUnseen(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	w := &world{tags: map[string]*imagev1.ImageTag{}, rules: "v1", turned: make(chan string, 100)}
	w.lead(t, "v1", "1", begun.Add(-2*time.Hour))
	w.lead(t, "v1", "2", begun.Add(-time.Hour))
	rules := reconcile.NewSignal()
	tracker := overwrites.New(overwrites.Options{
		Client: w, Answers: w, Clock: testingclock.NewFakeClock(begun), Rules: rules, Gauge: overwrites.NewGauge(),
		Notifier: notices{make(chan string, 100), w.turned},
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = tracker.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	if got := <-w.turned; got != "2" {
		t.Fatalf("what has image %s turned", got)
	}
	w.mu.Lock()
	delete(w.tags, "v1")
	w.mu.Unlock()
	rules.Send()
	if got := <-w.turned; got != "2" {
		t.Errorf("after it moved back, what has image %s turned", got)
	}
}
