package kubestore

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// podStrategy is the smallest strategy that a registry accepts.
type podStrategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (podStrategy) NamespaceScoped() bool                                                 { return true }
func (podStrategy) PrepareForCreate(context.Context, runtime.Object)                      {}
func (podStrategy) Validate(context.Context, runtime.Object) field.ErrorList              { return nil }
func (podStrategy) WarningsOnCreate(context.Context, runtime.Object) []string             { return nil }
func (podStrategy) Canonicalize(runtime.Object)                                           {}
func (podStrategy) AllowCreateOnUpdate(context.Context) bool                              { return false }
func (podStrategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object)               {}
func (podStrategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList { return nil }
func (podStrategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string      { return nil }
func (podStrategy) AllowUnconditionalUpdate(context.Context) bool                         { return true }

// TestGetter runs a registry of Kubernetes on the database.
func TestGetter(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.Logger = slog.New(slog.DiscardHandler) })
	g := NewGetter(d, codecs, Options{})
	resource := schema.GroupResource{Group: example.GroupName, Resource: "pods"}
	if g.Store(resource) != nil {
		t.Error("there is a store before a registry asked for it")
	}
	strategy := podStrategy{scheme, names.SimpleNameGenerator}
	pods := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &example.Pod{} },
		NewListFunc:               func() runtime.Object { return &example.PodList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: schema.GroupResource{Group: example.GroupName, Resource: "pod"},
		CreateStrategy:            strategy, UpdateStrategy: strategy, DeleteStrategy: strategy,
		TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	if err := pods.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g}); err != nil {
		t.Fatal(err)
	}
	defer pods.DestroyFunc()
	if g.Store(resource) == nil {
		t.Error("no store after a registry asked for it")
	}

	ctx := request.WithNamespace(t.Context(), "ns")
	// Watch from a revision: a watch without one lists first, at a time that the test cannot know.
	empty, err := pods.List(ctx, &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := pods.Watch(ctx, &metainternalversion.ListOptions{FieldSelector: fields.Everything(), ResourceVersion: empty.(*example.PodList).ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created, err := pods.Create(ctx, &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "ns"}}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if rv := created.(*example.Pod).ResourceVersion; rv == "" || rv == "0" {
		t.Errorf("created with resourceVersion %q", rv)
	}
	if _, err := pods.Create(ctx, &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "ns"}}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created again: %v, want AlreadyExists", err)
	}

	kv, ok, _, err := d.Get(ctx, "/"+example.GroupName+"/pods/ns/one")
	if err != nil || !ok {
		t.Fatalf("stored under another key: %v, %v", ok, err)
	}
	var stored struct{ Kind, APIVersion string }
	if err := json.Unmarshal(kv.Value, &stored); err != nil || stored.Kind != "Pod" || stored.APIVersion != example.GroupName+"/v1" {
		t.Errorf("stored as %s (%v), want JSON of v1", kv.Value, err)
	}

	update := func(rv string) error {
		_, _, err := pods.Update(ctx, "one", rest.DefaultUpdatedObjectInfo(&example.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "ns", ResourceVersion: rv, Labels: map[string]string{"a": "b"}},
		}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	if err := update("1"); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v, want Conflict", err)
	}
	if err := update(created.(*example.Pod).ResourceVersion); err != nil {
		t.Error(err)
	}
	got, err := pods.Get(ctx, "one", &metav1.GetOptions{})
	if err != nil || got.(*example.Pod).Labels["a"] != "b" {
		t.Errorf("get: %v, %v", got, err)
	}
	list, err := pods.List(ctx, &metainternalversion.ListOptions{})
	if err != nil || len(list.(*example.PodList).Items) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, _, err := pods.Delete(ctx, "one", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(ctx, "one", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of the deleted: %v, want NotFound", err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		select {
		case ev := <-w.ResultChan():
			if ev.Type != want || object(ev).(*example.Pod).Name != "one" {
				t.Errorf("event %v of %v, want %v", ev.Type, ev.Object, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no %v event", want)
		}
	}
}
