package coreapi_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

// following is a server that follows clusters until stop is called.
type following struct {
	*server
	stopFollowing func()
}

func follow(t *testing.T, d *db.DB, sources ...clusters.Source) *following {
	t.Helper()
	// A second of the clock passes in about a tenth of a second, and none while a cluster is asked.
	clock := testclock.NewFakeClock(time.Now())
	var asking asking
	for i := range sources {
		connect := sources[i].Connect
		sources[i].Connect = func() (*rest.Config, error) {
			config, err := connect()
			if err != nil {
				return nil, err
			}
			config = rest.CopyConfig(config)
			config.Wrap(asking.wrap)
			return config, nil
		}
	}
	s := startOn(t, d, coreapi.Options{Clusters: clusters.Options{Sources: sources, Clock: clock}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			<-ticker.C
			if asking.n.Load() == 0 {
				clock.Step(10 * time.Millisecond)
			}
		}
	})
	running.Go(func() {
		if err := s.api.Clusters.Run(ctx, nil); err != nil {
			t.Error(err)
		}
	})
	f := &following{s, func() { cancel(); running.Wait() }}
	t.Cleanup(f.stopFollowing)
	return f
}

// asking counts the requests that are not answered yet.
type asking struct{ n atomic.Int64 }

type asked struct {
	http.RoundTripper
	*asking
}

func (a *asking) wrap(rt http.RoundTripper) http.RoundTripper { return &asked{rt, a} }

// RoundTrip is part of http.RoundTripper.
func (a *asked) RoundTrip(req *http.Request) (*http.Response, error) {
	a.n.Add(1)
	defer a.n.Add(-1)
	return a.RoundTripper.RoundTrip(req)
}

// uses waits until so many pods use the image of a digest.
func (f *following) uses(t *testing.T, digest string, want int) {
	t.Helper()
	eventually(t, fmt.Sprint(want, " pods use the image"), func() (bool, any) {
		got := f.api.Usage.PodsUsing([]string{digest}, nil)
		return f.api.Usage.Complete() && got == want, fmt.Sprint(got, f.api.Usage.StaleReasons())
	})
}

// cluster waits until the state of a cluster satisfies a condition.
func (f *following) cluster(t *testing.T, name, what string, ok func(*clusters.Cluster) bool) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(f.config).Resource(clusters.GroupVersion.WithResource("clusters"))
	eventually(t, what, func() (bool, any) {
		obj, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var c clusters.Cluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &c); err != nil {
			t.Fatal(err)
		}
		return ok(&c), c.Status
	})
}

func running(t *testing.T, s *server, namespace, name, digest string) {
	t.Helper()
	p := s.createPod(t, namespace, pod(name))
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ImageID: "registry.example.com/app@" + digest}}
	if _, err := s.CoreV1().Pods(namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func way(s *server) func() (*rest.Config, error) {
	return func() (*rest.Config, error) { return s.config, nil }
}

// The pods of two clusters and of the server itself count, each by where it is, as they come and
// go.
func TestPodsOfClustersCount(t *testing.T) {
	t.Parallel()
	prod, test := start(t, coreapi.Options{}), start(t, coreapi.Options{})
	running(t, prod, "team", "a", digestA)
	running(t, prod, "kube-system", "left-out", digestA)
	d := dbtest.Open(t, func(o *db.Options) {
		o.Views = append(o.Views, datafile.View{Name: "pod_images", SQL: coreapi.Views()["pod_images"]})
	})
	f := follow(t, d, clusters.Source{Name: "prod", Connect: way(prod), ExcludedNamespaces: []string{"kube-system"}}, clusters.Source{Name: "test", Connect: way(test)})
	f.uses(t, digestA, 1)
	running(t, test, "team", "a", digestA) // the same name in another cluster
	running(t, f.server, "team", "a", digestA)
	f.uses(t, digestA, 3)
	want := []string{"local", "local/team", "prod", "prod/team", "test", "test/team"}
	if got := f.api.Usage.UsedBy([]string{digestA}, nil); !slices.Equal(got, want) {
		t.Errorf("used by %q, want %q", got, want)
	}
	if err := prod.CoreV1().Pods("team").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.uses(t, digestA, 2)
	f.cluster(t, "test", "the cluster is followed", func(c *clusters.Cluster) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, clusters.ConditionReachable) && meta.IsStatusConditionTrue(c.Status.Conditions, clusters.ConditionSynced) && c.Status.Pods == 1
	})

	// Clients read the pods by where and what they run, and write none.
	client := dynamic.NewForConfigOrDie(f.config).Resource(clusters.GroupVersion.WithResource("clusterpods"))
	for selector, want := range map[string]int{
		"image=" + digestA: 2, "image=registry.example.com/app": 2, "image=registry.example.com/app:1": 2, "image=registry.example.com/app:2": 0,
		"spec.cluster=test": 1, "spec.cluster=local": 1, "spec.cluster=prod": 0, "spec.namespace=team": 2, "image=" + digestB: 0, "spec.cluster!=test": 1, "pod=a": 2, "pod=b": 0, "pod=a,spec.namespace=team": 2,
	} {
		list, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s: %v, want %d pods", selector, err, want)
		}
	}
	reader, err := sql.Open("sqlite3", "file:"+f.db.Path()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	want = []string{"local|team|a|main|registry.example.com/app:1|registry.example.com/app@" + digestA, "test|team|a|main|registry.example.com/app:1|registry.example.com/app@" + digestA}
	if got := rows(t, reader, "SELECT cluster, namespace, pod, container, image, image_id FROM pod_images ORDER BY cluster"); !slices.Equal(got, want) {
		t.Errorf("pod_images has %q, want %q", got, want)
	}
	if err := client.Delete(t.Context(), "test:team:a", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a client deleted a pod of a cluster: %v", err)
	}
}

// What was last seen is there after a restart while the cluster is away, with its age; what went
// while nobody looked is forgotten once the cluster is back, and a cluster that is configured no
// more at once.
func TestClusterIsAway(t *testing.T) {
	t.Parallel()
	prod := start(t, coreapi.Options{})
	running(t, prod, "team", "stays", digestA)
	running(t, prod, "team", "goes", digestA)
	d := dbtest.Open(t)
	first := follow(t, d, clusters.Source{Name: "prod", Connect: way(prod)})
	first.uses(t, digestA, 2)
	// Until it is stored that all pods were seen, a restart does not know it.
	first.cluster(t, "prod", "that it is synced is stored", func(c *clusters.Cluster) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, clusters.ConditionSynced)
	})
	first.stopFollowing()
	first.stop()

	var mu sync.Mutex
	away := errors.New("the cable is cut")
	connect := func() (*rest.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		return prod.config, away
	}
	second := follow(t, d, clusters.Source{Name: "prod", Connect: connect})
	second.uses(t, digestA, 2)
	second.cluster(t, "prod", "the cluster is away", func(c *clusters.Cluster) bool {
		r := meta.FindStatusCondition(c.Status.Conditions, clusters.ConditionReachable)
		return r != nil && r.Status == metav1.ConditionFalse && r.Message == away.Error() && c.Status.LastSeen != nil && c.Status.Pods == 2
	})
	if err := prod.CoreV1().Pods("team").Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	away = nil
	mu.Unlock()
	second.uses(t, digestA, 1)
	second.stopFollowing()
	second.stop()

	third := follow(t, d)
	client := dynamic.NewForConfigOrDie(third.config).Resource(clusters.GroupVersion.WithResource("clusters"))
	eventually(t, "a cluster that is not in the configuration is forgotten", func() (bool, any) {
		_, err := client.Get(t.Context(), "prod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
	third.uses(t, digestA, 0)
}

// Before the first sync nothing is known, which is not that nothing is used.
func TestClusterNeverSeen(t *testing.T) {
	t.Parallel()
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: func() (*rest.Config, error) { return nil, errors.New("no route") }})
	eventually(t, "it is said why nothing is known", func() (bool, any) {
		doubts := f.api.Usage.StaleReasons()
		return len(doubts) == 1 && doubts[0] == "the pods of cluster prod are not known yet: no route", doubts
	})
	if f.api.Usage.Complete() || !f.api.Usage.Synced() {
		t.Error("the pods of a cluster that was never seen count as known, or hold up the server")
	}
}

// A credential that changes is used without a restart.
func TestClusterCredentialChanges(t *testing.T) {
	t.Parallel()
	prod := start(t, coreapi.Options{})
	running(t, prod, "team", "a", digestA)
	var mu sync.Mutex
	config := rest.CopyConfig(prod.config)
	config.BearerToken = "of yesterday"
	config.TLSClientConfig.CertData, config.TLSClientConfig.KeyData, config.TLSClientConfig.CertFile, config.TLSClientConfig.KeyFile = nil, nil, "", ""
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: func() (*rest.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		return config, nil
	}})
	eventually(t, "the credential is refused", func() (bool, any) {
		doubts := f.api.Usage.StaleReasons()
		return len(doubts) == 1 && strings.Contains(doubts[0], "nauthorized"), doubts
	})
	mu.Lock()
	config = prod.config
	mu.Unlock()
	f.uses(t, digestA, 1)
}

// watched counts the watches of pods.
type watched struct {
	http.RoundTripper
	n *atomic.Int64
}

// RoundTrip is part of http.RoundTripper.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/api/v1/pods" && r.URL.Query().Has("watch") {
		w.n.Add(1)
	}
	return w.RoundTripper.RoundTrip(r)
}

// A kubeconfig that leads elsewhere at one look, as one that is being written may, changes nothing.
func TestClusterHalfWrittenKubeconfig(t *testing.T) {
	t.Parallel()
	prod := start(t, coreapi.Options{})
	running(t, prod, "team", "a", digestA)
	var watches, looks atomic.Int64
	var half atomic.Bool
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: func() (*rest.Config, error) {
		looks.Add(1)
		config := rest.CopyConfig(prod.config)
		if half.CompareAndSwap(true, false) {
			config.Host = "https://half.invalid"
		}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return watched{next, &watches} })
		return config, nil
	}})
	f.uses(t, digestA, 1)
	before := watches.Load()
	half.Store(true)
	until := looks.Load() + 5
	eventually(t, "the kubeconfig was read again", func() (bool, any) { return looks.Load() >= until && !half.Load(), looks.Load() })
	if n := watches.Load() - before; n > 0 {
		t.Errorf("the cluster was followed %d times from the beginning", n)
	}
	f.uses(t, digestA, 1)
}

func TestClusterNames(t *testing.T) {
	t.Parallel()
	getter := kubestore.NewGetter(dbtest.Open(t), legacyscheme.Codecs, kubestore.Options{})
	for _, names := range [][]string{{"Prod"}, {"a", "a"}, {usage.Local}, {""}, {"a/b"}} {
		var sources []clusters.Source
		for _, name := range names {
			sources = append(sources, clusters.Source{Name: name})
		}
		if _, err := coreapi.New(getter, coreapi.Options{Identity: "test", Clusters: clusters.Options{Sources: sources}}); err == nil {
			t.Errorf("%q were taken", names)
		}
	}
}
