package kubestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestFullDisk: writes on a full disk are 503 with the reason, reads go on.
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

// TestRequestThatHasEnded: who goes away gets an error with an API form. One without is logged as a
// fault of the server.
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

// TestDamagedObject damages one object of three in the file.
func TestDamagedObject(t *testing.T) {
	unsafeDeletion(t, true)
	ctx := context.Background()
	d := dbtest.Open(t)
	f := setupOn(t, d)
	start := d.Revision()
	for _, name := range []string{"a", "b", "c"} {
		if err := f.Create(ctx, "/pods/ns/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	dbtest.Damage(t, d, "/pods/ns/b")
	store := corruptReporter{f.Store}

	err := store.Get(ctx, "/pods/ns/b", storage.GetOptions{}, &example.Pod{})
	var se *storage.StorageError
	if !errors.As(err, &se) || se.Code != storage.ErrCodeCorruptObj || !strings.Contains(err.Error(), "checksum") || !strings.Contains(err.Error(), "ignoreStoreReadError") {
		t.Errorf("get: %v, want a corrupt object and why", err)
	}
	err = store.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError || len(status.Status().Details.Causes) != 1 ||
		status.Status().Details.Causes[0].Field != "/pods/ns/b" {
		t.Errorf("list: %v, want a status naming the one object", err)
	}
	// A list in pages is told how to go on behind it.
	page := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	page.Predicate.Limit = 2
	err = store.GetList(ctx, "/pods/", page, &example.PodList{})
	if !errors.As(err, &status) || status.Status().Continue == "" {
		t.Fatalf("a page: %v, want a status with a token", err)
	}
	page.Predicate.Continue = status.Status().Continue
	rest := &example.PodList{}
	if err := store.GetList(ctx, "/pods/", page, rest); err != nil || len(rest.Items) != 1 || rest.Items[0].Name != "c" {
		t.Errorf("behind the damaged object: %v, %v", rest.Items, err)
	}
	w, err := store.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: fmt.Sprint(start)})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()

	if err := store.Delete(ctx, "/pods/ns/b", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err == nil {
		t.Error("an ordinary deletion of a damaged object succeeded")
	}
	if err := store.Delete(ctx, "/pods/ns/b", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{ExpectTransformOrDecodeError: true}); err != nil {
		t.Errorf("unsafe deletion: %v", err)
	}
	list := &example.PodList{}
	if err := store.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil || len(list.Items) != 2 {
		t.Errorf("list afterwards: %d objects, %v; want 2", len(list.Items), err)
	}
	if err := d.Compact(ctx, d.Revision()); err != nil {
		// so that the check at the end finds a whole file
		t.Fatal(err)
	}
}

func growPod(obj runtime.Object) (runtime.Object, error) {
	pod := obj.(*example.Pod)
	pod.Annotations["b"] = strings.Repeat("y", 200000)
	return pod, nil
}
