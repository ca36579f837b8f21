package coreapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/coreapi"
	recorder "github.com/tidewaiter/tidewaiter/coreapi/events"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

func TestRecorderAggregates(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	recorder, err := recorder.NewRecorder(ctx, s.config, legacyscheme.Scheme, "importer", nil)
	if err != nil {
		t.Fatal(err)
	}
	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cluster-scoped", UID: "1"}}
	for range 3 {
		recorder.Event(about, corev1.EventTypeNormal, "Imported", "imported app:1")
	}
	eventually(t, "one event that counts three", func() (bool, any) {
		list, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=cluster-scoped,reason=Imported"})
		if err != nil || len(list.Items) != 1 {
			return false, fmt.Sprint(list, err)
		}
		e := list.Items[0]
		return e.Count == 3 && e.Source.Component == "importer", e
	})
}

// A recorder whose server does not answer drops events rather than wait.
func TestRecorderNeverBlocks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hang := make(chan struct{})
	defer close(hang)
	recorder, err := recorder.NewRecorder(ctx, &rest.Config{Host: "http://192.0.2.1", Dial: hangingDial(hang)}, legacyscheme.Scheme, "importer", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 5000 { // five times the queue
			recorder.Event(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}, corev1.EventTypeNormal, "Imported", "x")
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("recording blocks while the server hangs")
	}
}

func TestEventSeriesIsOneObjectInBothGroups(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	made, err := s.CoreV1().Pods("team").Create(t.Context(), pod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	defer broadcaster.Shutdown()
	recorder := broadcaster.NewRecorder(legacyscheme.Scheme, "example.com/controller")
	for range 2 {
		recorder.Eventf(made, nil, corev1.EventTypeWarning, "Failing", "Pulling", "again and again")
	}
	var found eventsv1.Event
	eventually(t, "an event with a series of two", func() (bool, any) {
		list, err := s.EventsV1().Events("team").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return false, fmt.Sprint(list, err)
		}
		found = list.Items[0]
		return found.Series != nil && found.Series.Count == 2, found
	})
	core, err := s.CoreV1().Events("team").Get(t.Context(), found.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if core.UID != found.UID || core.Message != found.Note || core.InvolvedObject.Name != "a" || core.Series == nil || core.ResourceVersion != found.ResourceVersion {
		t.Errorf("in core/v1 the event reads %+v, in events.k8s.io/v1 %+v", core, found)
	}
	if err := s.EventsV1().Events("team").Delete(t.Context(), found.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := s.CoreV1().Events("team").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("deleted in one group, the other has %v, %v", list.Items, err)
	}
}

func TestEventsRunOut(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{EventTTL: 2 * time.Second})
	none, err := s.CoreV1().Events("team").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.CoreV1().Events("team").Watch(t.Context(), metav1.ListOptions{ResourceVersion: none.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := s.CoreV1().Events("team").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "short"},
		InvolvedObject: corev1.ObjectReference{Namespace: "team", Name: "a"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		select {
		case e := <-w.ResultChan():
			if e.Type != want {
				t.Fatalf("watch says %s %v, want %s", e.Type, e.Object, want)
			}
		case <-time.After(patience):
			t.Fatalf("no %s", want)
		}
	}
	if list, err := s.CoreV1().Events("team").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("after its time there is %v, %v", list.Items, err)
	}
}

// After a flush, what was recorded can be read; events carry what identify
// knows of the object.
func TestRecorderFlushes(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	recorder, err := recorder.NewRecorder(ctx, s.config, legacyscheme.Scheme, "importer", func(_ context.Context, about *corev1.ObjectReference) {
		about.UID = types.UID("uid-of-" + about.Name)
	})
	if err != nil {
		t.Fatal(err)
	}
	const events = 10 // twice this is fewer than the recorder takes at once
	for i := range events {
		about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: fmt.Sprint(i)}
		recorder.Event(about, corev1.EventTypeNormal, "Imported", "x")
		recorder.Event(about, corev1.EventTypeNormal, "Imported", "x")
	}
	recorder.Flush()
	list, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Imported"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Count != 2 || string(e.InvolvedObject.UID) != "uid-of-"+e.InvolvedObject.Name {
			t.Errorf("event about %+v counts %d, want 2", e.InvolvedObject, e.Count)
		}
	}
	if len(list.Items) != events {
		t.Errorf("%d events after the flush, want %d", len(list.Items), events)
	}
}

// The Events that were written last are listed first, wherever their names are, in both groups.
func TestNewestEvents(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{NewestFirst: kubestore.NewestFirst})
	events := func(namespace string) string {
		t.Helper()
		list, err := s.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "newest=3"})
		if err != nil || list.Continue != "" || list.RemainingItemCount != nil || list.ResourceVersion == "" {
			t.Fatalf("%v: %+v", err, list)
		}
		var names []string
		for _, e := range list.Items {
			names = append(names, e.Name)
		}
		return strings.Join(names, " ")
	}
	if got := events("team"); got != "" {
		t.Errorf("where there are none, there are %s", got)
	}
	for _, name := range []string{"c", "e", "a", "b", "d"} {
		if _, err := s.CoreV1().Events("team").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: corev1.ObjectReference{Namespace: "team", Name: "x"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := events(metav1.NamespaceAll); got != "d b a" {
		t.Errorf("the newest are %s", got)
	}
	if _, err := s.CoreV1().Events("team").Patch(t.Context(), "e", types.MergePatchType, []byte(`{"count": 2}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := events("team"); got != "e d b" {
		t.Errorf("after e happened again, the newest are %s", got)
	}
	if list, err := s.EventsV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "newest=1"}); err != nil || len(list.Items) != 1 || list.Items[0].Name != "e" {
		t.Errorf("in the other group the newest are %v, %v", list, err)
	}
	if list, err := s.EventsV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "regarding.name=x"}); err != nil || len(list.Items) != 5 {
		t.Errorf("by Kubernetes' own field there are %v, %v", list, err)
	}
	for _, selector := range []string{"newest=0", "newest=501", "newest=x", "newest=1,type=Normal", "newest!=1"} {
		if list, err := s.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: selector}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v, %v", selector, list.Items, err)
		}
	}
	if _, err := s.CoreV1().Events("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "newest=1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("watching the newest: %v", err)
	}
	if err := s.CoreV1().Events("team").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "newest=1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("deleting the newest: %v", err)
	}
	if got := events("team"); got != "e d b" {
		t.Errorf("at the end the newest are %s", got)
	}
}
