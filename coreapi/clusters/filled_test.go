package clusters_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

// After the store of all servers was put back to an earlier state, the pods that it lacks are
// stored again, and those that are gone are deleted again. Until then what runs is unknown.
func TestStoreIsPutBack(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := clusters.Install(scheme); err != nil {
		t.Fatal(err)
	}
	truth := dbtest.NewTruth()
	d := dbtest.OpenOptions(t, db.Options{Dir: t.TempDir(), Truth: truth})
	cluster := clustertest.New(t)
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}},
		}
	}
	clock := clocktesting.NewFakeClock(time.Now())
	c, err := clusters.New(kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{}), scheme, clusters.Options{
		Sources: []clusters.Source{{Name: "prod", Connect: cluster.Config}}, Fills: d.Fills, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	pods := c.Uses().Pods
	names := func() string {
		obj, err := pods.List(context.Background(), &internalversion.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, p := range obj.(*clusters.ClusterPodList).Items {
			all = append(all, p.Spec.Name)
		}
		return strings.Join(all, " ")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { _ = c.Run(ctx, nil) })
	defer following.Wait()
	defer cancel()
	await := func(what, want string) {
		t.Helper()
		got := ""
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
			if got = fmt.Sprint(names(), c.StaleReasons()); got == want {
				return
			}
		}
		t.Fatalf("%s: %s, want %s", what, got, want)
	}
	cluster.Set(pod("gone"))
	cluster.Set(pod("stays"))
	await("at first", "gone stays[]")
	before, err := truth.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Delete(pod("gone"))
	cluster.Set(pod("new"))
	await("later", "new stays[]")
	truth.Restore(before, 1_000_000)
	for begun := time.Now(); len(c.StaleReasons()) == 0; time.Sleep(time.Millisecond) {
		if names(); time.Since(begun) > time.Minute {
			t.Fatalf("the store was put back, and what runs counts as known: %s", names())
		}
	}
	for begun := time.Now(); len(c.StaleReasons()) > 0; time.Sleep(20 * time.Millisecond) {
		if clock.Step(time.Second); time.Since(begun) > time.Minute {
			t.Fatalf("the store was put back, and nothing is read again: %v", c.StaleReasons())
		}
	}
	await("after the store was put back", "new stays[]")
}

// toldOf is an Observer that notes which pods it was told of.
type toldOf struct {
	mu   sync.Mutex
	pods map[string]bool
	away bool
}

func (o *toldOf) Pod(_, _, name string, pod *clusters.ClusterPodSpec) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pods[name] = true; pod == nil {
		delete(o.pods, name)
	}
}

func (*toldOf) Current(string, time.Time) {}

func (o *toldOf) Away(string, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = true
}

func (*toldOf) Forget(context.Context, string, clusters.ClusterRecords) error { return nil }

func (o *toldOf) names() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(o.pods)), " ")
}

// Who observes a follower that did not reach its cluster for a while is told which pods went
// meanwhile, also if another server has deleted them from the store.
func TestGoneWhileAway(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := clusters.Install(scheme); err != nil {
		t.Fatal(err)
	}
	d, cluster, clock := dbtest.Open(t), clustertest.New(t), clocktesting.NewFakeClock(time.Now())
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}}}
	}
	c, err := clusters.New(kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{}), scheme, clusters.Options{
		Sources: []clusters.Source{{Name: "prod", Connect: cluster.Config}}, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	observer := &toldOf{pods: map[string]bool{}}
	var following sync.WaitGroup
	following.Go(func() { _ = c.Run(ctx, observer) })
	defer following.Wait()
	defer cancel()
	await := func(what string, step bool, done func() bool) {
		t.Helper()
		for begun := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
			if step {
				clock.Step(time.Second)
			}
			if time.Since(begun) > time.Minute {
				t.Fatalf("%s: %s %v", what, observer.names(), c.StaleReasons())
			}
		}
	}
	cluster.Set(pod("gone"), pod("stays"))
	await("at first", false, func() bool { return observer.names() == "gone stays" && len(c.StaleReasons()) == 0 })
	cluster.Hang(true)
	await("away", true, func() bool {
		observer.mu.Lock()
		defer observer.mu.Unlock()
		return observer.away
	})
	cluster.Delete(pod("gone"))
	stored, ok, _, err := d.Get(ctx, "/tidewaiter.dev/clusterpods/prod:ns:gone")
	if err != nil || !ok {
		t.Fatalf("what went is not stored: %v", err)
	}
	if _, err := d.Delete(ctx, stored.Key, stored.Rev); err != nil { // by another server
		t.Fatal(err)
	}
	cluster.Hang(false)
	await("back", true, func() bool { return observer.names() == "stays" && len(c.StaleReasons()) == 0 })
}
