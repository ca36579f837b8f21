package runs

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

// heard is an Observer that passes on what it is told, if there is a recorder, and then says so.
type heard struct {
	recorder *Recorder // may be nil
	pods     chan struct{}
	current  chan struct{}
}

func (h *heard) Pod(cluster, namespace, name string, pod *clusters.ClusterPodSpec) {
	if h.recorder != nil {
		h.recorder.Pod(cluster, namespace, name, pod)
	}
	h.pods <- struct{}{}
}

func (h *heard) Current(cluster string, now time.Time) {
	if h.recorder != nil {
		h.recorder.Current(cluster, now)
	}
	close(h.current)
}

func (h *heard) Away(cluster string, seen time.Time) {
	if h.recorder != nil {
		h.recorder.Away(cluster, seen)
	}
}

func (h *heard) Forget(context.Context, string, clusters.ClusterRecords) error { return nil }

// BenchmarkLag measures how long it takes from a change in a cluster until a follower has stored
// it, and how long another write to the same database takes meanwhile, with recording and without,
// in turn. Each change begins a stretch, so that recording has more to do than in a real cluster.
func BenchmarkLag(b *testing.B) {
	for round := range 3 {
		for _, recording := range []bool{false, true} {
			b.Run(fmt.Sprintf("Round=%d/Recording=%t", round, recording), func(b *testing.B) { benchmarkLag(b, recording) })
		}
	}
}

func benchmarkLag(b *testing.B, recording bool) {
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install} {
		if err := install(scheme); err != nil {
			b.Fatal(err)
		}
	}
	getter := kubestore.NewGetter(dbtest.Open(b), serializer.NewCodecFactory(scheme), kubestore.Options{})
	cluster := clustertest.New(b)
	h := &heard{pods: make(chan struct{}, 1000), current: make(chan struct{})}
	if recording {
		h.recorder = New(clock.RealClock{})
	}
	followed, err := clusters.New(getter, scheme, clusters.Options{Sources: []clusters.Source{{Name: "prod", Connect: cluster.Config}}, Observer: h})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	running := 1
	go func() { done <- followed.Run(ctx) }()
	if recording {
		store, err := imageruns.New(getter, scheme)
		if err != nil {
			b.Fatal(err)
		}
		h.recorder.Options = Options{Store: store, Clusters: followed, VerdictOf: func(context.Context, string, string, string) (imageruns.RunVerdict, string) {
			return imageruns.RunVerdict{Verified: "True", Policies: []string{"release"}, Signers: []string{"ann@example.com"}}, ""
		}}
		running++
		go func() { done <- h.recorder.Run(ctx) }()
	}
	<-h.current
	var writes time.Duration
	n := 0
	for b.Loop() {
		n++
		started := metav1.Now()
		cluster.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", n%500), UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: fmt.Sprintf("registry.example.com/app@sha256:%064x", n), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}}}})
		<-h.pods
		b.StopTimer()
		began := time.Now()
		if err := followed.SetRecords(ctx, "other", clusters.ClusterRecords{Until: metav1.NewTime(began)}); err != nil {
			b.Fatal(err)
		}
		writes += time.Since(began)
		b.StartTimer()
	}
	b.ReportMetric(float64(writes.Nanoseconds())/float64(n), "ns/write")
	cancel()
	for range running {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}
