package kubestore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func benchSetup(b *testing.B, change ...func(*Config)) *fixture {
	d := dbtest.Open(b, func(o *db.Options) { o.Logger = slog.New(slog.DiscardHandler) })
	return setupOn(b, d, change...)
}

func benchPod(i int) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprintf("pod-%07d", i),
		Labels:      map[string]string{"app": fmt.Sprint(i % 200)},
		Annotations: map[string]string{"payload": strings.Repeat("x", 16<<10)},
	}}
}

func benchKey(i int) string { return fmt.Sprintf("/pods/ns/pod-%07d", i) }

func benchFill(b *testing.B, f *fixture, objects int) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(objects); i = next.Add(1) - 1 {
				if err := f.Create(context.Background(), benchKey(int(i)), benchPod(int(i)), nil, 0); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkStore measures the store with objects of 16 KiB.
func BenchmarkStore(b *testing.B) {
	ctx := context.Background()
	const objects = 2000
	b.Run("Op=Create/Writers=16", func(b *testing.B) {
		f := benchSetup(b)
		var n atomic.Int64
		b.ReportAllocs()
		b.SetParallelism(8)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				i := int(n.Add(1))
				if err := f.Create(ctx, benchKey(i), benchPod(i), &example.Pod{}, 0); err != nil {
					b.Error(err)
				}
			}
		})
	})
	f := benchSetup(b)
	benchFill(b, f, objects)
	b.Run(fmt.Sprintf("Op=Get/Objects=%d", objects), func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			if err := f.Get(ctx, benchKey(i%objects), storage.GetOptions{}, &example.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(fmt.Sprintf("Op=List/Objects=%d", objects), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list := &example.PodList{}
			if err := f.GetList(ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil || len(list.Items) != objects {
				b.Fatal(len(list.Items), err)
			}
		}
	})
	b.Run(fmt.Sprintf("Op=ListByLabel/Objects=%d/Matches=%d", objects, objects/200), func(b *testing.B) {
		pred := storage.SelectionPredicate{Label: labels.SelectorFromSet(labels.Set{"app": "7"}), Field: fields.Everything(), GetAttrs: podAttrs}
		b.ReportAllocs()
		for b.Loop() {
			list := &example.PodList{}
			if err := f.GetList(ctx, "/pods/", storage.ListOptions{Predicate: pred, Recursive: true}, list); err != nil || len(list.Items) != objects/200 {
				b.Fatal(len(list.Items), err)
			}
		}
	})
	for _, watchers := range []int{1, 100} {
		b.Run(fmt.Sprintf("Op=Watch/Watchers=%d", watchers), func(b *testing.B) { benchWatch(b, watchers) })
	}
}

// BenchmarkUpdate updates small objects repeatedly, like Leases, with and without the cached object
// of the last update.
func BenchmarkUpdate(b *testing.B) {
	for _, recent := range []bool{true, false} {
		b.Run(fmt.Sprintf("Recent=%v", recent), func(b *testing.B) {
			if !recent {
				defer func(was int) { recentObjectBytes = was }(recentObjectBytes)
				recentObjectBytes = 0
			}
			f := benchSetup(b)
			pod := benchPod(0)
			pod.Annotations = nil
			if err := f.Create(b.Context(), benchKey(0), pod, nil, 0); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				err := f.GuaranteedUpdate(b.Context(), benchKey(0), &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
					obj.(*example.Pod).Spec.NodeName = fmt.Sprint(n)
					return obj, nil
				}), nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchWatch counts one operation for each event delivered to all watchers.
func benchWatch(b *testing.B, watchers int) {
	f := benchSetup(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range watchers {
		w, err := f.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: fmt.Sprint(f.db.Revision()), Predicate: storage.Everything, Recursive: true})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			for range b.N {
				if ev := <-w.ResultChan(); ev.Type != watch.Added {
					b.Errorf("event %v", ev)
					return
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	benchFill(b, f, b.N)
	wg.Wait()
	b.ReportMetric(float64(b.N*watchers)/b.Elapsed().Seconds(), "events/s")
}

// The upstream benchmarks, with a tenth of upstream's sizes to fit a small machine. Names and
// -benchtime can be compared between commits.

func upstreamData() (storagetesting.BenchmarkData, string) {
	const namespaces, pods, nodes = 50, 300, 500
	return storagetesting.PrepareBenchmarkData(namespaces, pods, nodes),
		fmt.Sprintf("Namespaces=%d/Pods=%d/Nodes=%d", namespaces, namespaces*pods, nodes)
}

func nodeNameIndex(cfg *Config) {
	cfg.Triggers = storage.IndexerFuncs{"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }}
}

func BenchmarkUpstreamWriteThroughput(b *testing.B) {
	data, name := upstreamData()
	b.Run(name, func(b *testing.B) {
		storagetesting.RunBenchmarkWriteThroughput(context.Background(), b, benchSetup(b), data, false, nil)
	})
}

func BenchmarkUpstreamStoreList(b *testing.B) {
	data, name := upstreamData()
	for _, indexed := range []bool{false, true} {
		b.Run(fmt.Sprintf("Index=%v/%s", indexed, name), func(b *testing.B) {
			f := benchSetup(b)
			if indexed {
				f = benchSetup(b, nodeNameIndex)
			}
			if err := storagetesting.PrecreateBenchmarkPods(context.Background(), f, data); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			storagetesting.RunBenchmarkStoreList(context.Background(), b, f, data, indexed)
		})
	}
}

func BenchmarkUpstreamStoreStats(b *testing.B) {
	data, name := upstreamData()
	b.Run(name, func(b *testing.B) {
		f := benchSetup(b)
		if err := storagetesting.PrecreateBenchmarkPods(context.Background(), f, data); err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		storagetesting.RunBenchmarkStoreStats(context.Background(), b, f)
	})
}
