package kubestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod := obj.(*example.Pod)
	return pod.Labels, fields.Set{"spec.nodeName": pod.Spec.NodeName, "metadata.name": pod.Name}, nil
}

func onNode(node string, indexed bool) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("spec.nodeName", node), GetAttrs: podAttrs}
	if indexed {
		p.IndexFields = []string{"spec.nodeName"}
	}
	return p
}

// TestIndexedList compares lists with and without an index at every revision, while objects are
// created, moved and deleted. It counts the objects that they read.
func TestIndexedList(t *testing.T) {
	ctx := context.Background()
	f := setup(t, nodeNameIndex, func(cfg *Config) {
		cfg.Indexers = cache.Indexers{
			"f:spec.nodeName": func(any) ([]string, error) { t.Error("the trigger of the same name goes first"); return nil, nil },
			"l:app":           func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Labels["app"]}, nil },
		}
	})
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	start := f.db.Revision()
	for range 200 {
		name := fmt.Sprintf("pod-%02d", rnd.IntN(20))
		key := "/pods/ns/" + name
		if rnd.IntN(4) == 0 {
			if err := f.Delete(ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil && !storage.IsNotFound(err) {
				t.Fatal(err)
			}
			continue
		}
		err := f.GuaranteedUpdate(ctx, key, &example.Pod{}, true, nil, storage.SimpleUpdate(func(runtime.Object) (runtime.Object, error) {
			return &example.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": fmt.Sprint(rnd.IntN(2))}},
				Spec:       example.PodSpec{NodeName: fmt.Sprintf("node-%d", rnd.IntN(4))},
			}, nil
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(pred storage.SelectionPredicate, rev int64, limit int64) (out []example.Pod, reads uint64) {
		opts := storage.ListOptions{Recursive: true, Predicate: pred}
		if rev != 0 {
			opts.ResourceVersion, opts.ResourceVersionMatch = fmt.Sprint(rev), metav1.ResourceVersionMatchExact
		}
		opts.Predicate.Limit = limit
		f.transformer.GetReadsAndReset()
		for {
			page := &example.PodList{}
			if err := f.GetList(ctx, "/pods/", opts, page); err != nil {
				t.Fatal(err)
			}
			out = append(out, page.Items...)
			if page.Continue == "" {
				return out, f.transformer.GetReadsAndReset()
			}
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
			opts.Predicate.Continue = page.Continue
		}
	}
	for rev := start; rev <= f.db.Revision(); rev += 5 {
		for _, node := range []string{"node-0", "node-3", "node-x", ""} {
			for _, limit := range []int64{0, 2} {
				got, reads := list(onNode(node, true), rev, limit)
				want, _ := list(onNode(node, false), rev, limit)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("%q at %d, limit %d: with index differs:\n%s", node, rev, limit, diff)
				}
				if limit == 0 && reads != uint64(len(got)) {
					t.Errorf("%q at %d: read %d objects for %d results", node, rev, reads, len(got))
				}
			}
		}
	}
	byLabel := storage.SelectionPredicate{Label: labels.SelectorFromSet(labels.Set{"app": "1"}), Field: fields.Everything(), GetAttrs: podAttrs, IndexLabels: []string{"app"}}
	got, reads := list(byLabel, 0, 0)
	if reads != uint64(len(got)) || len(got) == 0 {
		t.Errorf("by label: read %d objects for %d results", reads, len(got))
	}
}

// TestIndexIsBuiltFromStored declares an index when objects are stored already.
func TestIndexIsBuiltFromStored(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	plain := setupOn(t, dbtest.OpenOptions(t, db.Options{Dir: dir}))
	for i := range 20 {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}, Spec: example.PodSpec{NodeName: fmt.Sprintf("node-%d", i%4)}}
		if err := plain.Create(ctx, fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	plain.db.Close()
	f := setupOn(t, dbtest.OpenOptions(t, db.Options{Dir: dir}), nodeNameIndex)
	for deadline := time.Now().Add(time.Minute); !f.indexes[0].db.Ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the index is not built in time")
		}
	}
	f.transformer.GetReadsAndReset()
	list := &example.PodList{}
	if err := f.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: onNode("node-1", true)}, list); err != nil {
		t.Fatal(err)
	}
	if reads := f.transformer.GetReadsAndReset(); len(list.Items) != 5 || reads != 5 {
		t.Errorf("%d pods, %d read; want 5 and 5", len(list.Items), reads)
	}
}

// TestMeaningOfAnIndex: if the version of an index's meaning changes, the index is built again and
// used for the same field.
func TestMeaningOfAnIndex(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	open := func(name, prefix string) *fixture {
		return setupOn(t, dbtest.OpenOptions(t, db.Options{Dir: dir}), func(cfg *Config) {
			// not nil: an index is built while the fixture is made
			cfg.Triggers = storage.IndexerFuncs{}
			cfg.Indexers = cache.Indexers{name: func(obj any) ([]string, error) { return []string{prefix + obj.(*example.Pod).Spec.NodeName}, nil }}
		})
	}
	f := open("f:spec.nodeName", "old-")
	for i := range 4 {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}, Spec: example.PodSpec{NodeName: fmt.Sprintf("node-%d", i%2)}}
		if err := f.Create(ctx, fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	f.db.Close()
	f = open("f:spec.nodeName"+meaningMark+"2", "")
	for _, ix := range f.indexes {
		for deadline := time.Now().Add(time.Minute); !ix.db.Ready(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the index is not built in time")
			}
		}
	}
	list := &example.PodList{}
	f.transformer.GetReadsAndReset()
	if err := f.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: onNode("node-1", true)}, list); err != nil {
		t.Fatal(err)
	}
	if reads := f.transformer.GetReadsAndReset(); len(list.Items) != 2 || reads != 2 {
		t.Errorf("%d pods, %d read; want 2 and 2", len(list.Items), reads)
	}
}
