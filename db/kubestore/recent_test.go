package kubestore

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// count adds one to an annotation.
func count(obj runtime.Object) (runtime.Object, error) {
	pod := obj.(*example.Pod)
	n, _ := strconv.Atoi(pod.Annotations["count"])
	pod.Annotations = map[string]string{"count": strconv.Itoa(n + 1)}
	return pod, nil
}

func (f *fixture) count(t *testing.T, key string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := f.GuaranteedUpdate(t.Context(), key, out, false, nil, storage.SimpleUpdate(count), nil); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUpdatesBeginWithTheLastWrite: an update after a write reads nothing from the database, even
// if callers change the objects that they got. It does see other writers' changes.
func TestUpdatesBeginWithTheLastWrite(t *testing.T) {
	ctx := context.Background()
	f := setup(t)
	other := setupOn(t, f.db) // does not know f's writes
	const key = "/pods/ns/a"
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	if err := f.Create(ctx, key, pod, pod, 0); err != nil {
		t.Fatal(err)
	}
	pod.Annotations = map[string]string{"count": "100"}
	f.transformer.GetReadsAndReset()
	for want := 1; want <= 3; want++ {
		out := f.count(t, key)
		if out.Annotations["count"] != strconv.Itoa(want) {
			t.Fatalf("after %d updates: %v", want, out.Annotations)
		}
		out.Annotations["count"] = "100"
	}
	if reads := f.transformer.GetReadsAndReset(); reads != 0 {
		t.Errorf("three updates read %d times", reads)
	}
	other.count(t, key)
	if out := f.count(t, key); out.Annotations["count"] != "5" {
		t.Errorf("after another store's update: %v", out.Annotations)
	}
	if err := other.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := f.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(count), nil)
	if !storage.IsNotFound(err) {
		t.Errorf("updating what another store has deleted: %v", err)
	}
	pod.ResourceVersion = ""
	if err := f.Create(ctx, key, pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	f.count(t, key)
	if err := f.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tries := 0
	err = f.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		tries++
		return count(obj)
	}), nil)
	if !storage.IsNotFound(err) || tries > 0 {
		t.Errorf("updating a deleted object: %v, after %d tries", err, tries)
	}
}

// TestUpdatesMeet: no concurrent update is lost.
func TestUpdatesMeet(t *testing.T) {
	ctx := context.Background()
	f := setup(t)
	const key, writers, updates = "/pods/ns/a", 8, 50
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	if err := f.Create(ctx, key, pod, &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range updates {
				if err := f.GuaranteedUpdate(ctx, key, &example.Pod{}, false, nil, storage.SimpleUpdate(count), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if out := f.count(t, key); out.Annotations["count"] != strconv.Itoa(writers*updates+1) {
		t.Errorf("%d updates count to %v", writers*updates+1, out.Annotations)
	}
}

// TestRecentsAreBounded: the cache is bounded, and pop returns only an object of the requested
// type.
func TestRecentsAreBounded(t *testing.T) {
	var r recents
	pods := reflect.TypeFor[example.Pod]()
	held := func() (bytes int) {
		for _, m := range []map[string]*state{r.young, r.old} {
			for key, st := range m {
				bytes += len(key) + len(st.data)
			}
		}
		return bytes
	}
	data := []byte(strings.Repeat("x", 1000))
	for i := range 10_000 {
		r.add(fmt.Sprintf("/pods/%d", i%3000), &example.Pod{}, int64(i), data)
		if n := held(); n > recentBytes {
			t.Fatalf("%d bytes are held", n)
		}
	}
	r.add("/pods/large", &example.Pod{}, 1, make([]byte, recentObjectBytes))
	if r.pop("/pods/large", pods) != nil {
		t.Error("a large object is cached")
	}
	r.add("/pods/a", &example.Pod{}, 20_000, data)
	r.add("/pods/a", &example.Pod{}, 19_999, data)
	if r.pop("/pods/a", reflect.TypeFor[example.PodList]()) != nil {
		t.Error("an object of another type is returned")
	}
	r.add("/pods/a", &example.Pod{}, 20_000, data)
	r.add("/pods/a", &example.Pod{}, 19_999, data)
	if st := r.pop("/pods/a", pods); st == nil || st.rev != 20_000 || st.current {
		t.Errorf("of two concurrent writes, the later one is not cached: %+v", st)
	}
	if r.pop("/pods/a", pods) != nil {
		t.Error("an object is returned twice")
	}
}
