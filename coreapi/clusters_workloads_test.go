package coreapi_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// object returns an object of a cluster, which has value at a path.
func object(groupVersion, kind, name, path string, value any) *unstructured.Unstructured {
	fields := strings.Split(path, ".")
	for i := len(fields) - 1; i >= 0; i-- {
		value = map[string]any{fields[i]: value}
	}
	o := &unstructured.Unstructured{Object: value.(map[string]any)}
	o.SetAPIVersion(groupVersion)
	o.SetKind(kind)
	o.SetNamespace("team")
	o.SetName(name)
	return o
}

// template is a pod template that names images in all the places that it has for them.
func template(images ...string) map[string]any {
	containers := []any{}
	for _, image := range images[1:] {
		containers = append(containers, map[string]any{"image": image})
	}
	return map[string]any{"spec": map[string]any{
		"containers": containers, "volumes": []any{map[string]any{"name": "v", "image": map[string]any{"reference": images[0]}}, map[string]any{"name": "other"}},
	}}
}

func (f *following) needed(t *testing.T, digest string, want ...string) {
	t.Helper()
	eventually(t, "workloads need the image", func() (bool, any) {
		got, doubts := f.api.Usage.NeededBy([]string{digest}, nil, 100), slices.Concat(f.api.Usage.StaleReasons(), f.api.Usage.WorkloadStaleReasons())
		return slices.Equal(got, want) && len(doubts) == 0, slices.Concat(got, doubts)
	})
}

// What makes pods needs its images though no pod runs: every kind of Kubernetes and of OpenShift,
// and those of the configuration. None of them runs an image.
func TestWorkloadsNeedImages(t *testing.T) {
	t.Parallel()
	prod := clustertest.New(t)
	for gv, kind := range map[string]string{"apps.openshift.io/v1": "DeploymentConfig", "build.openshift.io/v1": "BuildConfig", "argoproj.io/v1alpha1": "Rollout", "kubeflow.org/v1": "PyTorchJob"} {
		prod.Serve(gv, kind)
	}
	image := "registry.example.com/app@" + digestA
	whole := template("registry.example.com/model:1", "busybox", image)
	from := func(kind, name string) map[string]any {
		return map[string]any{"from": map[string]any{"kind": kind, "name": name}}
	}
	all := []*unstructured.Unstructured{
		object("v1", "ReplicationController", "app", "spec.template", whole),
		object("apps/v1", "Deployment", "app", "spec.template", whole),
		object("apps/v1", "ReplicaSet", "app", "spec.template", whole),
		object("apps/v1", "StatefulSet", "app", "spec.template", whole),
		object("apps/v1", "DaemonSet", "app", "spec.template", whole),
		object("apps/v1", "ControllerRevision", "app", "data.spec.template", whole),
		object("batch/v1", "Job", "app", "spec.template", whole),
		object("batch/v1", "CronJob", "app", "spec.jobTemplate.spec.template", whole),
		object("apps.openshift.io/v1", "DeploymentConfig", "app", "spec.template", whole),
		object("build.openshift.io/v1", "BuildConfig", "app", "spec.strategy", map[string]any{"type": "Source", "sourceStrategy": from("DockerImage", image)}),
		object("build.openshift.io/v1", "BuildConfig", "copies", "spec.source.images", []any{from("ImageStreamImage", "app@"+digestA)}),
		object("argoproj.io/v1alpha1", "Rollout", "app", "spec.template", whole),
		object("kubeflow.org/v1", "PyTorchJob", "app", "spec.replicas.Worker.template", whole),
	}
	var want []string
	for _, o := range all {
		prod.Set(o)
		want = append(want, "prod/team/"+strings.ToLower(o.GetKind())+"s/"+o.GetName())
	}
	slices.Sort(want)
	prod.Set(object("apps/v1", "Deployment", "empty", "spec", map[string]any{}), object("apps/v1", "ControllerRevision", "odd", "data.spec.template", "text"))
	kinds := append(clusters.Workloads(), clusters.Workload{Group: "argoproj.io", Resource: "rollouts", Path: "spec.template"},
		clusters.Workload{Group: "kubeflow.org", Resource: "pytorchjobs", Path: "spec.replicas.*.template"}, clusters.Workload{Group: "example.com", Resource: "nowhere", Path: "spec.template"})
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: prod.Config, Workloads: kinds})
	f.needed(t, digestA, want...)
	if n := f.api.Usage.PodsUsing([]string{digestA}, nil); n != 0 {
		t.Errorf("%d pods use it", n)
	}
	if by := f.api.Usage.UsedBy([]string{digestA}, nil); len(by) != 0 {
		t.Errorf("it is used by %q", by)
	}
	digests, references := f.api.Usage.InUse()
	slices.Sort(references)
	if !slices.Equal(digests, []string{digestA}) || !slices.Equal(references, []string{"docker.io/library/busybox:latest", "registry.example.com/model:1"}) {
		t.Errorf("in use are %q and %q", digests, references)
	}

	// They change, go, and come while somebody watches.
	for _, o := range all[2:] {
		prod.Delete(o)
	}
	prod.Set(object("v1", "ReplicationController", "app", "spec.template", template("", "registry.example.com/app@"+digestB)))
	f.needed(t, digestA, "prod/team/deployments/app")
	f.needed(t, digestB, "prod/team/replicationcontrollers/app")
	prod.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}})
	f.uses(t, digestA, 1)
	f.needed(t, digestA, "prod/team/deployments/app")
}

// While a kind may not be listed it is unknown what it needs. Kinds that are added to a cluster are
// found.
func TestWorkloadsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	prod := clustertest.New(t)
	prod.Forbid("cronjobs")
	rollouts := clusters.Workload{Group: "argoproj.io", Resource: "rollouts", Path: "spec.template"}
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: prod.Config, Workloads: append(clusters.Workloads(), rollouts)})
	unknown := func(kind string) {
		t.Helper()
		eventually(t, "it is said what is not known", func() (bool, any) {
			doubts := f.api.Usage.WorkloadStaleReasons()
			return len(f.api.Usage.StaleReasons()) == 0 && len(doubts) == 1 && strings.HasPrefix(doubts[0], "the "+kind+" of cluster prod are not known: ") && strings.Contains(doubts[0], "forbidden"), doubts
		})
	}
	unknown("cronjobs.batch")
	current := `
# HELP tidewaiter_cluster_current 1 while the pods and workloads of a followed cluster are known as of now; 0 while they are not, and nothing is deleted.
# TYPE tidewaiter_cluster_current gauge
tidewaiter_cluster_current{cluster="local"} 1
tidewaiter_cluster_current{cluster="prod"} 0
`
	if err := testutil.CollectAndCompare(f.api.Clusters, strings.NewReader(current)); err != nil {
		t.Error(err)
	}
	prod.Allow("cronjobs")
	f.needed(t, digestA)
	prod.Forbid("rollouts")
	prod.Serve("argoproj.io/v1alpha1", "Rollout")
	unknown("rollouts.argoproj.io")
	prod.Set(object("argoproj.io/v1alpha1", "Rollout", "app", "spec.template", template("", "registry.example.com/app@"+digestA)))
	prod.Allow("rollouts")
	f.needed(t, digestA, "prod/team/rollouts/app")

	without := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: prod.Config})
	without.needed(t, digestA)
}

// Since when records are whole is in the metrics and in the table of clusters, once it is known.
func TestRecordedSince(t *testing.T) {
	t.Parallel()
	prod := clustertest.New(t)
	s := startOn(t, dbtest.Open(t), coreapi.Options{Clusters: clusters.Options{Sources: []clusters.Source{{Name: "prod", Connect: prod.Config}}}})
	metric := func(text string) {
		t.Helper()
		if err := testutil.CollectAndCompare(s.api.Clusters, strings.NewReader(text), "tidewaiter_records_since_timestamp_seconds"); err != nil {
			t.Error(err)
		}
	}
	metric("")
	since := metav1.NewTime(time.Date(2026, 11, 24, 16, 45, 0, 0, time.UTC))
	if err := s.api.Clusters.SetRecords(t.Context(), "prod", clusters.ClusterRecords{Since: since, Until: since}, clusters.ClusterRecords{}); err != nil {
		t.Fatal(err)
	}
	metric(`
# HELP tidewaiter_records_since_timestamp_seconds The time since when the records of what ran in a cluster are whole, but for the gaps; absent before it is recorded.
# TYPE tidewaiter_records_since_timestamp_seconds gauge
tidewaiter_records_since_timestamp_seconds{cluster="prod"} 1.7955387e+09
`)
	storage := s.api.Clusters.REST().(registryrest.Lister)
	list, err := storage.List(t.Context(), &internalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	table, err := storage.ConvertToTable(t.Context(), list, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	column := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Recorded Since" })
	if i := slices.IndexFunc(table.Rows, func(r metav1.TableRow) bool { return r.Cells[0] == "prod" }); i < 0 || table.Rows[i].Cells[column] != "2026-11-24T16:45:00Z" {
		t.Errorf("the table of clusters says %v", table.Rows)
	}
}

// A cluster that hangs, and closes no connection, is not known any more when its last answer is
// some seconds old. When it answers again, all is read before it is known again.
func TestClusterHangs(t *testing.T) {
	t.Parallel()
	prod := clustertest.New(t)
	clock := testclock.NewFakeClock(time.Now())
	s := startOn(t, dbtest.Open(t), coreapi.Options{Clusters: clusters.Options{Clock: clock, Sources: []clusters.Source{{Name: "prod", Connect: prod.Config, Workloads: clusters.Workloads()}}}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.api.Clusters.Run(ctx, nil); err != nil {
			t.Error(err)
		}
	})
	defer func() { prod.Hang(false); cancel(); running.Wait() }()
	known := func(step time.Duration) {
		t.Helper()
		eventually(t, "all is known", func() (bool, any) {
			clock.Step(step)
			doubts := slices.Concat(s.api.Usage.StaleReasons(), s.api.Usage.WorkloadStaleReasons())
			return s.api.Usage.Complete() && len(doubts) == 0, doubts
		})
	}
	known(0)
	prod.Hang(true)
	clock.Step(4 * time.Second)
	if doubts := s.api.Usage.StaleReasons(); len(doubts) > 0 {
		t.Errorf("after four seconds: %q", doubts)
	}
	clock.Step(2 * time.Second)
	eventually(t, "it is unknown what is used", func() (bool, any) {
		doubts := s.api.Usage.StaleReasons()
		return len(doubts) == 1 && strings.HasPrefix(doubts[0], "the pods of cluster prod are those of "), doubts
	})
	prod.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app@" + digestA}}}})
	prod.Hang(false)
	known(50 * time.Millisecond)
	if n := s.api.Usage.PodsUsing([]string{digestA}, nil); n != 1 {
		t.Errorf("%d pods use what one uses since", n)
	}
}
