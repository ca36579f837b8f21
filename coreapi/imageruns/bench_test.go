package imageruns

import (
	"context"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/benchtest"
)

func openStore(t testing.TB, dir string) (*genericregistry.Store, *db.DB) {
	t.Helper()
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	return storeOver(t, d, true), d
}

// storeOver returns the storage over a database, as the server has it or with the API machinery's
// readers.
func storeOver(t testing.TB, d *db.DB, plain bool) *genericregistry.Store {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs, o := serializer.NewCodecFactory(scheme), kubestore.Options{}
	if plain {
		o.Serializers = map[string]runtime.StorageSerializer{clusters.GroupVersion.Group: NewStorageSerializer(codecs)}
	}
	s, err := New(kubestore.NewGetter(d, codecs, o), scheme)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// BenchmarkFirstPage measures the first page of 500 of each kind of question among the records of
// 400 days, stretches of a minute to a year: the medians of time and of processor time, and how
// many times as much of both the same takes with the API machinery's readers, asked in turn.
func BenchmarkFirstPage(b *testing.B) {
	for _, records := range []int{200_000, 1_000_000} {
		b.Run(fmt.Sprintf("Records=%d", records), func(b *testing.B) { benchmarkFirstPage(b, records) })
	}
}

func benchmarkFirstPage(b *testing.B, records int) {
	const originals = 1000
	rnd, begun, dir := rand.New(rand.NewPCG(1, 2)), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), b.TempDir()
	s, d := openStore(b, dir)
	ctx := genericapirequest.WithNamespace(context.Background(), "ns")
	for i := range originals {
		from := begun.Add(time.Duration(rnd.IntN(400*24*60)) * time.Minute)
		until := metav1.NewTime(from.Add(time.Minute << rnd.IntN(20)))
		app := i % 200
		run := &ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%s-%012d", from.Format("20060102t150405z"), i)}, Spec: ImageRunSpec{
			Cluster: fmt.Sprint("c", i%10), Workload: fmt.Sprint("Deployment/app", app), Container: "main", Image: fmt.Sprintf("registry.example.com/team/app%d:v%d", app, i),
			ImageID: fmt.Sprintf("registry.example.com/team/app%d@sha256:%064x", app, i), Digest: fmt.Sprintf("sha256:%064x", i), From: metav1.NewTime(from),
		}, Status: ImageRunStatus{Until: &until, MostPods: 3, Verdicts: []RunVerdict{{Since: metav1.NewTime(from), Verified: "True", Policies: []string{"signed"}, Signers: []string{"https://example.com/signer"}}}}}
		info := rest.DefaultUpdatedObjectInfo(run)
		if _, _, err := s.Update(ctx, run.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
	names := make([]string, records-originals)
	for i := range names {
		from := begun.Add(time.Duration(rnd.IntN(400*24*60)) * time.Minute)
		names[i] = fmt.Sprintf("%s-%012d", from.Format("20060102t150405z"), originals+i)
	}
	slices.Sort(names) // as a server writes them
	dbtest.Multiply(b, dir, "/tidewaiter.dev/imageruns/ns/", names)
	plain, d := openStore(b, dir)
	without := storeOver(b, d, false)
	// A database that is opened reads all keys once, which takes processor time.
	for benchtest.Timed(func() { time.Sleep(200 * time.Millisecond) }).Processor > 20*time.Millisecond {
	}
	all := genericapirequest.WithNamespace(b.Context(), metav1.NamespaceAll)
	names = nil
	b.Run("Heap", func(b *testing.B) { // what stays in memory
		for b.Loop() {
			if _, err := plain.List(all, &internalversion.ListOptions{Limit: 500}); err != nil {
				b.Fatal(err)
			}
		}
		goruntime.GC()
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB")
		b.ReportMetric(0, "ns/op")
	})
	for name, set := range map[string]fields.Set{
		"image": {"image": fmt.Sprintf("sha256:%064x", 7)}, "repository": {"image": "registry.example.com/team/app7"}, "workload": {"workload": "app7"}, "cluster": {"cluster": "c7"},
		"at": {"at": "2026-11-24T16:45:00Z"}, "five days": {"from": "2026-11-24T16:45:00Z", "until": "2026-11-29T16:45:00Z"}, "workload at": {"workload": "app7", "at": "2026-11-24T16:45:00Z"},
		"namespace": {"metadata.namespace": "ns"},
	} {
		b.Run("By="+name, func(b *testing.B) {
			var times, processor [2][]time.Duration // of plain, and without
			for n := 0; b.Loop(); n++ {
				for i := range 2 {
					i = (i + n) % 2
					cost := benchtest.Timed(func() {
						obj, err := []*genericregistry.Store{plain, without}[i].List(all, &internalversion.ListOptions{FieldSelector: set.AsSelector(), Limit: 500})
						if err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(float64(len(obj.(*ImageRunList).Items)), "rows")
					})
					times[i], processor[i] = append(times[i], cost.Time), append(processor[i], cost.Processor)
				}
			}
			b.ReportMetric(0, "ns/op") // of both
			b.ReportMetric(benchtest.Median(times[0]).Seconds()*1000, "ms")
			b.ReportMetric(benchtest.Median(processor[0]).Seconds()*1000, "ms-processor")
			b.ReportMetric(1+benchtest.Percent(times[1], times[0])/100, "without/with")
			b.ReportMetric(1+benchtest.Percent(processor[1], processor[0])/100, "processor")
		})
	}
}
