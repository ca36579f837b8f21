package kubestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestFullDisk: on a full disk, writes fail with 503 and the reason, and reads succeed.
func TestFullDisk(t *testing.T) {
	ctx := context.Background()
	d := dbtest.Open(t, func(o *db.Options) { o.MaxPageCount = 150; o.Logger = slog.New(slog.DiscardHandler) })
	f := setupOn(t, d)
	var err error
	stored := 0
	for i := range 1000 {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), Annotations: map[string]string{"a": strings.Repeat("x", 4000)}}}
		if err = f.Create(ctx, fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			break
		}
		stored++
	}
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "full") {
		t.Fatalf("after %d objects: %v, want 503 and why", stored, err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds == 0 {
		t.Errorf("no Retry-After in %#v", err)
	}
	list := &example.PodList{}
	if err := f.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil || len(list.Items) != stored {
		t.Errorf("list on a full disk: %d of %d, %v", len(list.Items), stored, err)
	}
	err = f.GuaranteedUpdate(ctx, "/pods/ns/0", &example.Pod{}, false, nil, storage.SimpleUpdate(growPod), nil)
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("update on a full disk: %v, want 503", err)
	}
}

// TestRequestThatHasEnded: a request whose client goes away ends with an API error. Any other error
// would be logged as a fault of the server.
func TestRequestThatHasEnded(t *testing.T) {
	f := setupOn(t, dbtest.Open(t))
	if err := f.Create(t.Context(), "/pods/ns/a", &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}, nil, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"get":    f.Get(ctx, "/pods/ns/a", storage.GetOptions{}, &example.Pod{}),
		"list":   f.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}),
		"update": f.GuaranteedUpdate(ctx, "/pods/ns/a", &example.Pod{}, false, nil, storage.SimpleUpdate(growPod), nil),
		"delete": f.Delete(ctx, "/pods/ns/a", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}),
		"create": f.Create(ctx, "/pods/ns/b", &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}}, nil, 0),
	} {
		if status := apierrors.APIStatus(nil); err != nil && (!errors.As(err, &status) || !errors.Is(err, context.Canceled)) {
			t.Errorf("%s: %T %[2]v, want an API error that is context.Canceled", what, err)
		}
	}
}

// TestDamagedObject: requests report an object that is damaged in the file by name; other objects
// can be read, and the damaged one can be deleted.
func TestDamagedObject(t *testing.T) {
	unsafeDeletion(t, true)
	d := dbtest.Open(t, func(o *db.Options) { o.ChangelogBytes = 1 }) // watches read the file
	f := setupOn(t, d)
	f.createPods(t, "a")
	before := d.Revision()
	f.createPods(t, "b", "c")
	dbtest.Damage(t, d, "/pods/ns/b")
	f.passesOver(t, d, before, "checksum")
}

// TestUnreadableInSharedStore: an object that the shared store cannot read is treated like one that
// is damaged in the file.
func TestUnreadableInSharedStore(t *testing.T) {
	unsafeDeletion(t, true)
	truth := dbtest.NewTruth()
	d := dbtest.Open(t, func(o *db.Options) { o.Truth = truth; o.Logger = slog.New(slog.DiscardHandler) })
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := setupOn(t, d)
	f.createPods(t, "a")
	before := d.Revision()
	truth.PutUnreadable("/pods/ns/b", []byte{7})
	f.createPods(t, "c")
	f.passesOver(t, d, before, "etcd has a value of /pods/ns/b")
}

func (f *fixture) createPods(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := f.Create(t.Context(), "/pods/ns/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// passesOver expects that, among the pods a, b and c, b cannot be read. Only requests that reach b
// fail, with its name and the reason: gets of b, lists and pages with b, and watches that come to
// b. Pages continue after b. before is a revision between the creations of a and b.
func (f *fixture) passesOver(t *testing.T, d *db.DB, before int64, why string) {
	t.Helper()
	const bad = "/pods/ns/b"
	ctx, store := t.Context(), corruptReporter{f.Store}
	all := storage.ListOptions{Recursive: true, Predicate: storage.Everything}

	err := store.Get(ctx, bad, storage.GetOptions{}, &example.Pod{})
	var se *storage.StorageError
	if !errors.As(err, &se) || se.Code != storage.ErrCodeCorruptObj || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "ignoreStoreReadError") {
		t.Errorf("get: %v, want a corrupt object and why", err)
	}
	if err := store.Get(ctx, "/pods/ns/c", storage.GetOptions{}, &example.Pod{}); err != nil {
		t.Errorf("an object beside it: %v", err)
	}

	var status apierrors.APIStatus
	err = store.GetList(ctx, "/pods/", all, &example.PodList{})
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError || len(status.Status().Details.Causes) != 1 || status.Status().Details.Causes[0].Field != bad {
		t.Errorf("list: %v, want a status that names the one object", err)
	}
	page := all
	page.Predicate.Limit = 2
	err = store.GetList(ctx, "/pods/", page, &example.PodList{})
	if !errors.As(err, &status) || status.Status().Continue == "" || !strings.Contains(err.Error(), bad) {
		t.Fatalf("a page: %v, want a status with a token", err)
	}
	page.Predicate.Continue = status.Status().Continue
	rest := &example.PodList{}
	if err := store.GetList(ctx, "/pods/", page, rest); err != nil || len(rest.Items) != 1 || rest.Items[0].Name != "c" {
		t.Errorf("the page after it: %v, %v", rest.Items, err)
	}
	page = all
	page.Predicate.Limit, rest = 1, &example.PodList{}
	if err := store.GetList(ctx, "/pods/", page, rest); err != nil || rest.Continue == "" || len(rest.Items) != 1 || rest.Items[0].Name != "a" {
		t.Errorf("the page before it: %v, %v", rest.Items, err)
	}

	watch := func(key string, o storage.ListOptions) (events []string) {
		t.Helper()
		until, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		w, err := store.Watch(until, key, o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			events = append(events, string(e.Type))
			if e.Type == "ERROR" && !strings.Contains(fmt.Sprint(e.Object), bad) {
				t.Errorf("a watch of %s does not name it: %v", key, e.Object)
			}
			if e.Type == "ERROR" || key != "/pods/" {
				return events
			}
		}
		return append(events, "end")
	}
	since := all
	since.ResourceVersion = fmt.Sprint(before)
	if got := fmt.Sprint(watch("/pods/", since)); got != "[ERROR]" {
		t.Errorf("a watch of all got %s", got)
	}
	withInitial := all
	initial := true
	withInitial.SendInitialEvents, withInitial.Predicate.AllowWatchBookmarks = &initial, true
	if got := fmt.Sprint(watch("/pods/", withInitial)); got != "[ADDED ERROR]" {
		t.Errorf("a watch that lists got %s", got)
	}
	since.Recursive = false
	if got := fmt.Sprint(watch("/pods/ns/c", since)); got != "[ADDED]" {
		t.Errorf("a watch of another pod got %s", got)
	}

	if err := store.Delete(ctx, bad, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err == nil {
		t.Error("an ordinary deletion succeeded")
	}
	if err := store.Delete(ctx, bad, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{ExpectTransformOrDecodeError: true}); err != nil {
		t.Errorf("unsafe deletion: %v", err)
	}
	list := &example.PodList{}
	if err := store.GetList(ctx, "/pods/", all, list); err != nil || len(list.Items) != 2 {
		t.Errorf("list afterwards: %d objects, %v; want 2", len(list.Items), err)
	}
	if err := d.Compact(ctx, d.Revision()); err != nil { // so that the check at the end finds an intact file
		t.Fatal(err)
	}
}

func growPod(obj runtime.Object) (runtime.Object, error) {
	pod := obj.(*example.Pod)
	pod.Annotations["b"] = strings.Repeat("y", 200000)
	return pod, nil
}
