package imageapi_test

import (
	"fmt"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// leaveOut takes from the histories of a stream, as oc adm prune images does, what it is told.
func leaveOut(stream *imagev1.ImageStream, out ...int) *imagev1.ImageStream {
	stream = stream.DeepCopy()
	var left []imagev1.NamedTagEventList
	for _, tag := range stream.Status.Tags {
		var items []imagev1.TagEvent
		for _, item := range tag.Items {
			gone := false
			for _, n := range out {
				gone = gone || item.Image == digestOf(n)
			}
			if !gone {
				items = append(items, item)
			}
		}
		if tag.Items = items; len(items) > 0 {
			left = append(left, tag)
		}
	}
	stream.Status.Tags = left
	return stream
}

// What a tag led to before can be taken out of its history, by who prunes. Where it leads now
// stays, and what pods use.
func TestHistoriesAreShortened(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil, 2: nil, 3: nil, 4: nil, 5: nil})
	tag := tags.New(s.ref)
	for n := 1; n <= 5; n++ {
		tag = s.lead(tag, digestOf(n), "push "+fmt.Sprint(n))
	}
	app := s.mustCreateStream(stream("app", repository))
	p.use(digestOf(2))
	shortened := func(stream *imagev1.ImageStream, want string) {
		t.Helper()
		got, err := s.updateStream(s.streamStatus, stream)
		if err != nil || history(got, "v1") != want || history(s.stream("app"), "v1") != want {
			t.Fatalf("answered %v, %v; then it is %s, want %s", got, err, history(s.stream("app"), "v1"), want)
		}
	}
	p.doubts = []string{"prod is away"}
	shortened(leaveOut(app, 1, 2, 3), "5 4 3 2 1")
	p.doubts = nil
	shortened(leaveOut(app, 1, 2, 3), "5 4 2")
	stored := func() *imagev1.ImageTag {
		t.Helper()
		obj, err := s.tags.Get(inNamespace(tags.Namespace, s.asUser), tags.Name(s.ref), &metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*imagev1.ImageTag)
	}
	if by := stored().Annotations[tags.By]; by != `["alice, push 5","alice, push 4","alice, push 2"]` {
		t.Errorf("recorded by %s", by)
	}
	shortened(leaveOut(s.stream("app"), 5, 4, 2), "5 2")
	shortened(leaveOut(s.stream("app"), 5), "5 2")

	// What moved since the writer has read it stays.
	read := s.stream("app")
	s.lead(s.lead(stored(), digestOf(3), "push"), digestOf(4), "push")
	p.use()
	shortened(leaveOut(read, 2), "4 3 5")

	// Anything else is refused as before.
	for what, change := range map[string]func(*imagev1.NamedTagEventList){
		"order":   func(tag *imagev1.NamedTagEventList) { tag.Items[0], tag.Items[1] = tag.Items[1], tag.Items[0] },
		"another": func(tag *imagev1.NamedTagEventList) { tag.Items[1].Image = digestOf(9) },
		"more":    func(tag *imagev1.NamedTagEventList) { tag.Items = append(tag.Items, tag.Items[0]) },
		"name":    func(tag *imagev1.NamedTagEventList) { tag.Tag = "v2" },
	} {
		evil := s.stream("app")
		change(&evil.Status.Tags[0])
		if _, err := s.updateStream(s.streamStatus, evil); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// A look at the registry changes conditions between what a writer reads and writes. What is
	// written of them is not kept.
	stale := s.stream("app")
	stale.Status.Tags[0].Conditions = []imagev1.TagEventCondition{{Type: "x"}}
	if _, err := s.updateStream(s.streamStatus, stale); err != nil {
		t.Errorf("other conditions: %v", err)
	}
	if got := s.stream("app").Status.Tags[0].Conditions; len(got) != 0 {
		t.Errorf("conditions are %v", got)
	}
}

// What a stream itself has of a history is shortened, too, but not where it begins to follow a
// registry: what that led to before would come back.
func TestOwnHistoriesAreShortened(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil, 2: nil, 3: nil, 7: nil, 8: nil, 9: nil})
	tag := s.lead(tags.New(s.ref), digestOf(1), "push")
	tag = s.lead(tag, digestOf(2), "push")
	s.mustCreateStream(stream("later", "", "v1", "DockerImage/"+s.ref.String()))
	app := s.mustCreateStream(stream("app", "", "v1", "DockerImage/"+repository+"@"+digestOf(7)))
	for _, from := range []string{repository + "@" + digestOf(8), repository + "@" + digestOf(9), s.ref.String()} {
		app.Spec.Tags[0].From.Name = from
		app.Spec.Tags[0].Generation = nil
		var err error
		if app, err = s.updateStream(s.streams, app); err != nil {
			t.Fatal(err)
		}
	}
	// after what the stream has
	s.seconds += int64(time.Since(time.Unix(1700000000, 0)) / time.Second)
	s.lead(tag, digestOf(3), "push")
	if got := history(s.stream("app"), "v1"); got != "3 2 9 8 7" {
		t.Fatalf("history is %s", got)
	}
	got, err := s.updateStream(s.streamStatus, leaveOut(s.stream("app"), 2, 8, 7))
	if err != nil || history(got, "v1") != "3 2 9" || history(s.stream("app"), "v1") != "3 2 9" {
		t.Errorf("answered %v, %v; it is %s", got, err, history(s.stream("app"), "v1"))
	}
	if got, err = s.updateStream(s.streamStatus, leaveOut(s.stream("later"), 2)); err != nil || history(got, "v1") != "3 2" {
		t.Errorf("of what has followed since 2: %v, %v", got, err)
	}
}

// Who may not shorten what others see, too, does not.
func TestHistoriesOfOthersStay(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, allow{"default/registry.example.com--team--app"})
	tag := s.lead(tags.New(s.ref), digestOf(1), "push")
	s.lead(tag, digestOf(2), "push")
	app := s.mustCreateStream(stream("app", repository))
	got, err := s.updateStream(s.streamStatus, leaveOut(app, 1))
	if err != nil || history(got, "v1") != "2 1" {
		t.Errorf("%v, %v", got, err)
	}
}
