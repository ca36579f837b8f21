package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
	"github.com/tidewaiter/tidewaiter/internal/controllers/promotion"
	"github.com/tidewaiter/tidewaiter/internal/controllers/runs"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

const (
	runNamespace = "shop"
	ranDigest    = "sha256:9fea68ab04b020141dff90ec460f46751f8634f040e6616cd420660a96af2a61"
	ranImage     = "registry.example.com/shop/app"
)

// recording is a server that has only images, and records what runs in one cluster.
type recording struct {
	*Server
	t      *testing.T
	clock  *clocktesting.FakeClock
	stored *crowded
	images *imageregistry.REST
}

// crowded is a store with further records that are only counted. It notes how often it was counted.
type crowded struct {
	runs.Store
	others int64

	mu      sync.Mutex
	counted int
}

func (c *crowded) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := c.Store.List(ctx, o)
	if list, ok := obj.(*imageruns.ImageRunList); ok && o.Limit == 1 {
		more := c.others
		if list.RemainingItemCount != nil {
			more += *list.RemainingItemCount
		}
		list.RemainingItemCount = &more
		c.mu.Lock()
		defer c.mu.Unlock()
		c.counted++
	}
	return obj, err
}

// seen is one cluster that is seen all the time.
type seen struct {
	*clusters.Clusters
	clock *clocktesting.FakeClock
}

func (seen) Names() []string         { return []string{"prod"} }
func (s seen) Seen(string) time.Time { return s.clock.Now() }

// held has the verdict for a reference be the one that the Image stores for its repository.
type held struct{}

// Set is part of answers.Policies.
func (held) Set(context.Context) (*policy.Set, error) { return nil, nil }

// Judge is part of answers.Policies.
func (held) Judge(_ context.Context, q answers.Asked) (j answers.Judgement, err error) {
	for _, v := range signatures.Held(q.Image) {
		if v.Place == q.Reference.Name() {
			j.Verdict = v.Verdict
		}
	}
	return j, nil
}

// unused are images that no pod uses.
type unused struct{ answers.Use }

func (unused) Pods(string, *imagev1.Image) (n int, complete bool) { return 0, true }

func newRecording(t *testing.T) *recording {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install, imageapi.Install, packages.Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	getter := kubestore.NewGetter(dbtest.Open(t), serializer.NewCodecFactory(scheme), kubestore.Options{})
	store, err := imageruns.New(getter, scheme)
	if err != nil {
		t.Fatal(err)
	}
	followed, err := clusters.New(getter, scheme, clusters.Options{})
	if err != nil {
		t.Fatal(err)
	}
	verification, err := openVerification("", nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{
		Server: &Server{Events: &imageevents.Recorder{}, Verification: verification}, t: t, stored: &crowded{Store: store},
		clock: clocktesting.NewFakeClock(time.Date(2027, 6, 15, 12, 0, 0, 0, time.UTC)),
	}
	all, err := imageapi.New(getter, imageapi.Options{Scheme: scheme, Images: imageregistry.Options{Observer: observer{r.Server}}, Answerer: answers.Answerer{Policies: held{}, Use: unused{}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Images.Destroy)
	r.images, r.answerer, r.unverified = all.Images, all.Answerer, imageevents.NewUnverified(all.Answerer)
	r.promotions = promotion.New(all.StoredStreams)
	r.runs = runs.New(runs.Options{Store: r.stored, Clusters: seen{followed, r.clock}, Verdicts: runVerdicts{r.Server}, Clock: r.clock})
	return r
}

// records has the server record until the test ends.
func (r *recording) records() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.runs.Run(ctx) })
	r.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// all are the stored records.
func (r *recording) all() []imageruns.ImageRun {
	r.t.Helper()
	obj, err := r.stored.Store.List(genericapirequest.WithNamespace(context.Background(), runNamespace), &internalversion.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*imageruns.ImageRunList).Items
}

// A server whose objects are in etcd keeps fewer records than one with a database of its own,
// unless the configuration has a number. In each, those that ended first are deleted first.
func TestMostRecords(t *testing.T) {
	t.Parallel()
	const ended = 5
	for what, c := range map[string]struct {
		etcd       bool
		configured int64
		others     int64 // that go on
		deleted    int
	}{
		"etcd, full":                  {true, 0, 100_000 - ended, 0},
		"etcd":                        {true, 0, 100_000 - 2, 3},
		"etcd, configured":            {true, 50_000, 50_000 - 3, 2},
		"a database, as many as etcd": {false, 0, 100_000, 0},
		"a database":                  {false, 0, 1_000_000 - 1, 4},
		"a database, configured":      {false, 50_000, 50_000 - 3, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRecording(t)
			if r.stored.others = c.others; c.etcd {
				r.etcd = &etcd.Store{}
			}
			var names []string
			for i := range ended { // on three days; names have another order than the ends
				name := fmt.Sprint("run-", (i*2+3)%ended)
				names = append(names, name)
				until := metav1.NewTime(r.clock.Now().AddDate(0, 0, -30).Add(time.Duration(i) * 10 * time.Hour))
				one := &imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: runNamespace, Name: name}, Spec: imageruns.ImageRunSpec{
					Cluster: "prod", Workload: "Deployment/app", Container: "main", Image: ranImage, ImageID: ranImage + "@" + ranDigest, From: metav1.NewTime(until.Add(-time.Hour)),
				}, Status: imageruns.ImageRunStatus{Until: &until}}
				ctx := genericapirequest.WithNamespace(t.Context(), runNamespace)
				if _, _, err := r.stored.Update(ctx, name, rest.DefaultUpdatedObjectInfo(one), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			r.keepRecords(config.Records{Most: c.configured})
			r.records()
			// It counts again only after it has deleted.
			servertest.Eventually(t, "it counts twice", func() bool {
				r.clock.Step(time.Minute)
				r.stored.mu.Lock()
				defer r.stored.mu.Unlock()
				return r.stored.counted > 1
			})
			var left []string
			for _, one := range r.all() {
				left = append(left, one.Name)
			}
			want := slices.Sorted(slices.Values(names[c.deleted:]))
			if slices.Sort(left); !slices.Equal(left, want) {
				t.Errorf("of %v, by their ends, it kept %v, want %v", names, left, want)
			}
		})
	}
}

// If a verdict turns on what runs, the recorded cause is a sweep if the write of the Image had the
// mark that sweeps set, and otherwise an import.
func TestSweepIsTheCause(t *testing.T) {
	t.Parallel()
	r := newRecording(t)
	r.keepRecords(config.Records{})
	ctx := genericapirequest.WithNamespace(t.Context(), metav1.NamespaceNone)
	verdict := func(image *imagev1.Image, verified string) {
		metav1.SetMetaDataAnnotation(&image.ObjectMeta, annotation.Verdicts, fmt.Sprintf(`{%q:{"verified":%q}}`, ranImage, verified))
	}
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: ranDigest}, DockerImageReference: ranImage + "@" + ranDigest}
	verdict(image, verdicts.VerifiedFalse)
	if _, err := r.images.Create(ctx, image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	started := metav1.NewTime(r.clock.Now())
	r.runs.Current("prod", started.Time)
	r.runs.Pod("prod", runNamespace, "app-1", &clusters.ClusterPodSpec{Cluster: "prod", Namespace: runNamespace, Name: "app-1", Workload: "Deployment/app", Containers: []clusters.ClusterPodContainer{
		{Name: "main", Image: ranImage + "@" + ranDigest, ImageID: ranImage + "@" + ranDigest, Started: &started},
	}})
	var last imageruns.RunVerdict
	recorded := func(n int) {
		t.Helper()
		servertest.Eventually(t, fmt.Sprintf("there are %d verdicts", n), func() bool {
			all := r.all()
			if len(all) != 1 || len(all[0].Status.Verdicts) < n {
				return false
			}
			last = all[0].Status.Verdicts[n-1]
			return true
		})
	}
	r.records()
	recorded(1)
	for i, step := range []struct {
		swept    bool
		verified string
		want     imageruns.By
	}{
		{true, verdicts.VerifiedTrue, imageruns.BySweep},
		{false, verdicts.VerifiedFalse, imageruns.ByWrite},
		{true, verdicts.VerifiedTrue, imageruns.BySweep},
	} {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, before runtime.Object) (runtime.Object, error) {
			after := before.(*imagev1.Image).DeepCopy()
			verdict(after, step.verified)
			if step.swept {
				signatures.AskAgain(after)
			} else {
				delete(after.Annotations, annotation.Policy)
			}
			return after, nil
		})
		if _, _, err := r.images.Update(ctx, ranDigest, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.clock.Step(time.Second) // it writes after this, and not before
		recorded(i + 2)
		if last.Verified != step.verified || last.Cause != string(step.want) {
			t.Errorf("a write of %s, swept: %v, is recorded as %+v, want %s", step.verified, step.swept, last, step.want)
		}
	}
}
