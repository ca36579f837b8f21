package runs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/benchtest"
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

// A round of BenchmarkLag is a second of a busy cluster: 200 changes of pods, which are ten
// rollouts of a Deployment of 20 pods. The recorder writes once in it.
const (
	roundChanges = 200
	rolloutPods  = 20
)

// lagging is a follower of a cluster, with a recorder or without.
type lagging struct {
	*heard
	followed     *clusters.Clusters
	cluster      *clustertest.Cluster
	changes      int
	lags, writes []time.Duration         // of this round
	other        clusters.ClusterRecords // was written last
	// of all rounds: the medians of both, the time and the processor time
	lag, write, time, processor []time.Duration
}

// BenchmarkLag measures how long it takes from a change in a cluster until a follower has stored
// it, how long another write to the same database takes meanwhile, such as that of a push, and the
// processor time. Three followers have the same changes, in rounds in turn: one without a recorder,
// one with, and another one without, which shows how far to trust the ratios. The ratios are the
// medians of those of all rounds:
//
//	go test ./internal/controllers/runs -run '^$' -bench Lag -benchtime 150x
func BenchmarkLag(b *testing.B) {
	names := []string{"without", "recording", "control"}
	all := map[string]*lagging{}
	for _, name := range names {
		all[name] = newLagging(b, name == "recording")
	}
	for n := 0; b.Loop(); n++ {
		for i := range names {
			all[names[(i+n)%len(names)]].round(b, n)
		}
	}
	without := all["without"]
	for name, l := range all {
		b.ReportMetric(float64(benchtest.Median(l.lag).Nanoseconds()), "ns/lag-"+name)
		b.ReportMetric(float64(benchtest.Median(l.write).Nanoseconds()), "ns/write-"+name)
		b.ReportMetric(float64(benchtest.Median(l.processor).Nanoseconds())/roundChanges, "ns/processor-"+name)
		if l != without {
			b.ReportMetric(benchtest.Percent(l.lag, without.lag), "%lag-"+name)
			b.ReportMetric(benchtest.Percent(l.write, without.write), "%write-"+name)
			b.ReportMetric(benchtest.Percent(l.time, without.time), "%time-"+name)
			b.ReportMetric(benchtest.Percent(l.processor, without.processor), "%processor-"+name)
		}
	}
	b.ReportMetric(0, "ns/op") // of all three together
}

// round lets changes happen. The recorder writes in the middle, beside them, as [Recorder.Run]
// does: the times for which records are complete every minute, and all verdicts every five.
func (l *lagging) round(b *testing.B, n int) {
	l.lags, l.writes = l.lags[:0], l.writes[:0]
	cost := benchtest.Timed(func() {
		var writing errgroup.Group
		for i := range roundChanges {
			if i == roundChanges/2 && l.recorder != nil {
				writing.Go(func() error { return l.recorder.flush(b.Context(), n%60 == 0, n%300 == 0) })
			}
			l.change(b)
		}
		if err := writing.Wait(); err != nil {
			b.Fatal(err)
		}
	})
	l.time, l.processor = append(l.time, cost.Time), append(l.processor, cost.Processor)
	l.lag, l.write = append(l.lag, benchtest.Median(l.lags)), append(l.write, benchtest.Median(l.writes))
}

// signed finds that everything is signed by one.
type signed struct{}

func (signed) VerdictOf(context.Context, string, string, string) (imageruns.RunVerdict, string) {
	return imageruns.RunVerdict{Verified: "True", Policies: []string{"release"}, Signers: []string{"ann@example.com"}}, ""
}

func (signed) Turned(context.Context, []Turn) {}

func newLagging(b *testing.B, recording bool) *lagging {
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install} {
		if err := install(scheme); err != nil {
			b.Fatal(err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme)
	getter := kubestore.NewGetter(dbtest.Open(b), codecs, kubestore.Options{Serializers: map[string]runtime.StorageSerializer{clusters.GroupVersion.Group: imageruns.NewStorageSerializer(codecs)}})
	l := &lagging{heard: &heard{pods: make(chan struct{}, 1), current: make(chan struct{})}, cluster: clustertest.New(b)}
	var err error
	if l.followed, err = clusters.New(getter, scheme, clusters.Options{Sources: []clusters.Source{{Name: "prod", Connect: l.cluster.Config}}}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	if recording {
		store, err := imageruns.New(getter, scheme)
		if err != nil {
			b.Fatal(err)
		}
		l.recorder = New(Options{Store: store, Clusters: l.followed, Verdicts: signed{}, Clock: clock.RealClock{}})
		if err := l.recorder.load(ctx); err != nil {
			b.Fatal(err)
		}
	}
	running.Go(func() error { return l.followed.Run(ctx, l) })
	b.Cleanup(func() {
		cancel()
		if err := running.Wait(); err != nil {
			b.Error(err)
		}
	})
	<-l.current
	return l
}

// change rolls a pod out, and then writes something else.
func (l *lagging) change(b *testing.B) {
	n := l.changes
	l.changes++
	digest, began := fmt.Sprintf("sha256:%064x", n/rolloutPods), time.Now()
	l.cluster.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("app-5d4f-", n%rolloutPods), UID: "u", Labels: map[string]string{"pod-template-hash": "5d4f"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app-5d4f", Controller: ptr.To(true)}}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", ImageID: "registry.example.com/app@" + digest, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(began)}},
		}}},
	})
	<-l.pods
	l.lags = append(l.lags, time.Since(began))
	began = time.Now()
	next := clusters.ClusterRecords{Until: metav1.NewTime(began)}
	if err := l.followed.SetRecords(b.Context(), "other", next, l.other); err != nil {
		b.Fatal(err)
	}
	l.other = next
	l.writes = append(l.writes, time.Since(began))
}
