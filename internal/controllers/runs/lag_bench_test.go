package runs

import (
	"context"
	"fmt"
	"slices"
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

// lagging is a follower of a cluster, with a recorder or without.
type lagging struct {
	*heard
	followed     *clusters.Clusters
	cluster      *clustertest.Cluster
	lags, writes []time.Duration
	other        clusters.ClusterRecords // was written last
}

// BenchmarkLag measures how long it takes from a change in a cluster until a follower has stored
// it, and how long another write to the same database takes meanwhile, such as that of a push: the
// medians, with recording and without. Both have the same changes, in turn, so that other load on
// the machine meets both: rollouts of a Deployment of 20 pods, one after the other.
func BenchmarkLag(b *testing.B) {
	all := map[string]*lagging{"without": newLagging(b, false), "recording": newLagging(b, true)}
	for n := 0; b.Loop(); n++ {
		for _, name := range [][]string{{"without", "recording"}, {"recording", "without"}}[n%2] {
			all[name].change(b, n)
		}
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Nanoseconds())
	}
	lag, write := map[string]float64{}, map[string]float64{}
	for name, l := range all {
		lag[name], write[name] = median(l.lags), median(l.writes)
		b.ReportMetric(lag[name], "ns/lag-"+name)
		b.ReportMetric(write[name], "ns/write-"+name)
	}
	b.ReportMetric(100*(lag["recording"]/lag["without"]-1), "%lag")
	b.ReportMetric(100*(write["recording"]/write["without"]-1), "%write")
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
	getter := kubestore.NewGetter(dbtest.Open(b), serializer.NewCodecFactory(scheme), kubestore.Options{})
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
		running.Go(func() error { return l.recorder.Run(ctx) })
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
func (l *lagging) change(b *testing.B, n int) {
	digest, began := fmt.Sprintf("sha256:%064x", n/20), time.Now()
	l.cluster.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("app-5d4f-", n%20), UID: "u", Labels: map[string]string{"pod-template-hash": "5d4f"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app-5d4f", Controller: ptr.To(true)}}},
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
