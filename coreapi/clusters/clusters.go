package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Source is a cluster to follow.
type Source struct {
	// Name is a DNS label. No two sources have the same, and none has usage.Local.
	Name string
	// Connect returns the configuration for the cluster's API. It is called before every
	// connection, and every ten seconds, so that a changed credential is used.
	Connect func() (*restclient.Config, error)
	// ExcludedNamespaces are those whose pods and workloads are not followed.
	ExcludedNamespaces []string
	// Workloads are the kinds that are followed beside pods. Without any it is never unknown what
	// workloads need.
	Workloads []Workload
	// own has the pods, instead of a connection, if these are the server's own.
	own Own
}

// Options are the options of [New]. Their zero value follows nothing.
type Options struct {
	Sources []Source
	// Own has the server's own pods, which are the cluster [usage.Local]; nil if it serves none.
	Own Own
	// OwnPodsOnly is true if only the server's own pods run images, and no cluster does. Without it,
	// and without Sources, it is unknown what runs.
	OwnPodsOnly bool
	// Fills counts how often the store was filled anew, after which it may lack what was stored: all
	// is read from the clusters again. Nil is never.
	Fills func() int64
	// Clock is the time; nil is the real one.
	Clock clock.WithTicker
}

// Observer is called for each change of the stored data of clusters. Its methods are quick, and
// safe for concurrent use.
type Observer interface {
	// Pod is called after a pod was stored, and with nil after it was deleted. The calls about one
	// pod are in order. The pod must not be changed.
	Pod(cluster, namespace, name string, pod *ClusterPodSpec)
	// Current is called when all pods of a cluster are stored as the cluster has them, and
	// changes follow.
	Current(cluster string, now time.Time)
	// Away is called when the cluster can no longer be followed. What was stored was last known to
	// be what the cluster has at seen.
	Away(cluster string, seen time.Time)
	// Forget is called before the server deletes what it stored of a cluster that it no longer
	// follows.
	Forget(ctx context.Context, cluster string, records ClusterRecords) error
}

// noObserver is an Observer that ignores everything.
type noObserver struct{}

func (noObserver) Pod(_, _, _ string, _ *ClusterPodSpec)                {}
func (noObserver) Current(string, time.Time)                            {}
func (noObserver) Away(string, time.Time)                               {}
func (noObserver) Forget(context.Context, string, ClusterRecords) error { return nil }

// Clusters are the followed clusters. They are safe for concurrent use.
type Clusters struct {
	clusters, pods *genericregistry.Store
	followers      []*follower
	unfollowed     bool     // nothing but own pods is followed, and it is not known whether there is more
	observer       Observer // of the Run under way
	fills          func() int64
	clock          clock.WithTicker
	loaded         atomic.Bool // the stored state of all clusters is known
}

// New returns the clusters of the sources, over the storages that g gives. Run follows them. scheme
// is a scheme that [Install] was called with.
func New(g generic.RESTOptionsGetter, scheme *runtime.Scheme, o Options) (*Clusters, error) {
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	c := &Clusters{clock: o.Clock, observer: noObserver{}, unfollowed: len(o.Sources) == 0 && !o.OwnPodsOnly, fills: o.Fills}
	if c.fills == nil {
		c.fills = func() int64 { return 0 }
	}
	var err error
	if c.clusters, c.pods, err = newStores(g, scheme); err != nil {
		return nil, err
	}
	if err := CheckNames(o.Sources); err != nil {
		return nil, err
	}
	for _, s := range o.Sources {
		c.followers = append(c.followers, newFollower(c, s))
	}
	if o.Own != nil {
		c.followers = append(c.followers, newFollower(c, Source{Name: usage.Local, own: o.Own}))
	}
	return c, nil
}

// CheckNames returns an error if the names of sources cannot be names of clusters.
func CheckNames(sources []Source) error {
	seen := map[string]bool{usage.Local: true}
	for _, s := range sources {
		if problems := validation.IsDNS1123Label(s.Name); problems != nil {
			return fmt.Errorf("the cluster name %q: %s", s.Name, problems[0])
		}
		if seen[s.Name] {
			return fmt.Errorf("the cluster name %q is taken: each cluster has its own, and %q stands for the pods of this server", s.Name, usage.Local)
		}
		seen[s.Name] = true
	}
	return nil
}

var current = prometheus.NewDesc("tidewaiter_cluster_current",
	"1 while the pods and workloads of a followed cluster are known as of now; 0 while they are not, and nothing is deleted.", []string{"cluster"}, nil)

var recordsSince = prometheus.NewDesc("tidewaiter_records_since_timestamp_seconds",
	"The time since when the records of what ran in a cluster are whole, but for the gaps; absent before it is recorded.", []string{"cluster"}, nil)

// Describe implements prometheus.Collector.
func (c *Clusters) Describe(ch chan<- *prometheus.Desc) {
	ch <- current
	ch <- recordsSince
}

// Collect implements prometheus.Collector.
func (c *Clusters) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.followers {
		value := 1.0
		if now := c.clock.Now(); f.staleReason(now) != "" || f.workloadStaleReason(now) != "" {
			value = 0
		}
		ch <- prometheus.MustNewConstMetric(current, prometheus.GaugeValue, value, f.source.Name)
	}
	records, err := c.Records(context.Background())
	if err != nil {
		return // the store cannot be read, which other metrics show
	}
	for name, r := range records {
		ch <- prometheus.MustNewConstMetric(recordsSince, prometheus.GaugeValue, float64(r.Since.Unix()), name)
	}
}

// Check returns an error that names the clusters whose running or needed images are not known at
// present, each with the reason.
func (c *Clusters) Check() error {
	if stale := append(c.StaleReasons(), c.WorkloadStaleReasons()...); len(stale) > 0 {
		return errors.New(strings.Join(stale, "; "))
	}
	return nil
}

// REST returns the storage of clusters for clients. [NewPodsREST] makes the storage of their pods.
func (c *Clusters) REST() rest.Storage { return ReadOnly(c.clusters) }

// Records returns for which times the records of each cluster are whole, by its name: of those that
// are followed and, while they are known, those that were.
func (c *Clusters) Records(ctx context.Context) (map[string]ClusterRecords, error) {
	obj, err := c.clusters.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]ClusterRecords{}
	for _, cluster := range obj.(*ClusterList).Items {
		if r := cluster.Status.Records; r != nil {
			all[cluster.Name] = *r
		}
	}
	return all, nil
}

// SetRecords stores for which times the records of a cluster are whole. It returns
// [ErrRecordsChanged] if what is stored is none of known; that is empty for records that are not
// stored yet.
func (c *Clusters) SetRecords(ctx context.Context, cluster string, r ClusterRecords, known ...ClusterRecords) error {
	return write(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), c.clusters, cluster, func(before *Cluster) (*Cluster, error) {
		after, stored := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}, ClusterRecords{}
		if before != nil {
			if after = before.DeepCopy(); after.Status.Records != nil {
				stored = *after.Status.Records
			}
		}
		if !slices.ContainsFunc(known, stored.Same) {
			return nil, ErrRecordsChanged
		}
		after.Status.Records = r.DeepCopy()
		return after, nil
	})
}

// Seen returns until when what is stored of a cluster is known to be what the cluster has.
func (c *Clusters) Seen(cluster string) (at time.Time) {
	for _, f := range c.followers {
		if f.source.Name == cluster {
			f.mu.Lock()
			f.touch(c.clock.Now())
			at = f.seen
			f.mu.Unlock()
		}
	}
	return at
}

// Names are the names of the clusters, with [usage.Local] for the server's own pods.
func (c *Clusters) Names() (names []string) {
	for _, f := range c.followers {
		names = append(names, f.source.Name)
	}
	return names
}

// Uses returns the source of these clusters' pods, for an index.
func (c *Clusters) Uses() usage.Source {
	return usage.Source{Pods: c.pods, Read: func(obj runtime.Object) (usage.Pod, error) {
		p, ok := obj.(*ClusterPod)
		if !ok {
			return usage.Pod{}, fmt.Errorf("%T is not a ClusterPod", obj)
		}
		pod := usage.Pod{Cluster: p.Spec.Cluster, Namespace: p.Spec.Namespace, Name: p.Spec.Name, Platform: p.Spec.Platform, Since: p.Spec.Since.Time}
		for _, container := range p.Spec.Containers {
			pod.Images = append(pod.Images, podimages.Runs(container.Image, container.ImageID))
			pod.Keys = append(pod.Keys, podimages.Keys(container.Image, container.ImageID)...)
			ref, err := reference.Parse(container.Image)
			runs := podimages.Manifest(container.Image, container.ImageID)
			if id := podimages.ID(container.Image, container.ImageID); runs == "" && id != "" {
				runs = podimages.Unsettled("", id)
			}
			if err == nil && ref.Digest == "" {
				// not the pod's whole text
				pod.Tagged = append(pod.Tagged, usage.Tagged{Tag: ref.Pulled().String(), Digest: strings.Clone(runs)})
			}
		}
		return pod, nil
	}}
}

// Synced reports whether all pods of every cluster have been read once, maybe long ago.
func (c *Clusters) Synced() bool {
	if len(c.followers) == 0 {
		return true
	}
	if !c.loaded.Load() {
		return false
	}
	return !slices.ContainsFunc(c.followers, func(f *follower) bool { return !f.isSynced() })
}

// Unfollowed returns why it is not known what runs elsewhere, if no cluster is followed. It returns
// "" otherwise, and if the options exclude other clusters.
func (c *Clusters) Unfollowed() string {
	if !c.unfollowed {
		return ""
	}
	return "no cluster is followed, so what runs is not known: tidewaiter follow CONTEXT names one in the server's configuration; ownPodsOnly: true there says that there is none"
}

// StaleReasons names the clusters whose pod data is missing or out of date, how old it is, and why.
func (c *Clusters) StaleReasons() []string {
	var all []string
	for _, f := range c.followers {
		if doubt := f.staleReason(c.clock.Now()); doubt != "" {
			all = append(all, doubt)
		}
	}
	return all
}

// OwnStaleReason returns why it is not known what the server's own pods run now. It returns "" if
// it is known, or if the server has no own pods.
func (c *Clusters) OwnStaleReason() string {
	for _, f := range c.followers {
		if f.source.own != nil {
			return f.staleReason(c.clock.Now())
		}
	}
	return ""
}

// WorkloadStaleReasons lists the workloads that are missing or out of date in clusters whose pods
// are known, and why.
func (c *Clusters) WorkloadStaleReasons() []string {
	var all []string
	for _, f := range c.followers {
		if doubt := f.workloadStaleReason(c.clock.Now()); doubt != "" {
			all = append(all, doubt)
		}
	}
	return all
}

// ReportNeeds has an index hear what workloads need. It is called once, before Run.
func (c *Clusters) ReportNeeds(index *usage.Index) {
	for _, f := range c.followers {
		for _, w := range f.workloads {
			w.needs = index.Workloads(f.source.Name, w.Resource)
		}
	}
}

// Run follows the clusters until ctx is done. It calls o, if not nil, for each change that it
// stores.
func (c *Clusters) Run(ctx context.Context, o Observer) error {
	c.observer = cmp.Or[Observer](o, noObserver{})
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	if !c.persist(ctx, "reading what is known of clusters", func() error { return c.load(ctx) }) {
		return nil
	}
	c.loaded.Store(true)
	var all sync.WaitGroup
	for _, f := range c.followers {
		all.Go(func() { f.run(ctx) })
	}
	all.Wait()
	return nil
}

// load reads the stored state of the clusters, and deletes the state of clusters that are no longer
// followed.
func (c *Clusters) load(ctx context.Context) error {
	obj, err := c.clusters.List(ctx, &internalversion.ListOptions{})
	if err != nil {
		return err
	}
	followed := map[string]*follower{}
	for _, f := range c.followers {
		followed[f.source.Name] = f
	}
	for _, cluster := range obj.(*ClusterList).Items {
		if f := followed[cluster.Name]; f != nil {
			f.restore(&cluster.Status)
			continue
		}
		slog.Info("A cluster was removed from the configuration; forgetting its pods", "cluster", cluster.Name)
		if r := cluster.Status.Records; r != nil {
			if err := c.observer.Forget(ctx, cluster.Name, *r); err != nil {
				return err
			}
		}
		if err := c.each(ctx, cluster.Name, func(p *ClusterPod) error { return remove(ctx, c.pods, p.Name) }); err != nil {
			return err
		}
		if err := remove(ctx, c.clusters, cluster.Name); err != nil {
			return err
		}
	}
	return nil
}

// each calls do with every stored pod of a cluster.
func (c *Clusters) each(ctx context.Context, cluster string, do func(*ClusterPod) error) error {
	return pages.EachReadable(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (*ClusterPodList, error) {
		obj, err := c.pods.List(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(clusterField, cluster), Limit: o.Limit, Continue: o.Continue})
		if err != nil {
			return nil, err
		}
		return obj.(*ClusterPodList), nil
	}, func(list *ClusterPodList) error {
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		return nil
	}, func(err error) { slog.Error("A pod of a cluster cannot be read", "cluster", cluster, "err", err) })
}

// remove deletes an object that may be gone already.
func remove(ctx context.Context, store *genericregistry.Store, name string) error {
	_, _, err := store.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// write stores an object: change makes the new object from the stored one, which is nil at first.
// It writes nothing if that fails, or if the object is stored already.
func write[T interface {
	comparable
	runtime.Object
}](ctx context.Context, store *genericregistry.Store, name string, change func(before T) (T, error)) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, before runtime.Object) (runtime.Object, error) {
		old, ok := before.(T)
		if m, err := meta.Accessor(before); !ok || err != nil || m.GetUID() == "" {
			var none T
			old = none
		}
		return change(old)
	})
	_, _, err := store.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
	return err
}

// sameWay reports whether two configurations lead to the same API with the same credential.
func sameWay(a, b *restclient.Config) bool {
	return a.Host == b.Host && a.APIPath == b.APIPath && a.BearerToken == b.BearerToken && a.BearerTokenFile == b.BearerTokenFile &&
		a.Username == b.Username && a.Password == b.Password && reflect.DeepEqual(a.TLSClientConfig, b.TLSClientConfig) &&
		reflect.DeepEqual(a.Impersonate, b.Impersonate)
}

// persist calls do until it succeeds, with growing pauses. It returns false when ctx was done
// first.
func (c *Clusters) persist(ctx context.Context, what string, do func() error) bool {
	for wait := time.Second; ; wait = min(2*wait, maxBackoff) {
		err := do()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			slog.Error("A step of following clusters failed, will retry", "step", what, "err", err)
		}
		if !sleep(ctx, c.clock, wait) {
			return false
		}
	}
}

// sleep waits for d. It returns false when ctx was done first.
func sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C():
		return true
	}
}

// age is a duration as kubectl shows it.
func age(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// A session ends with one of these if the next is to begin at once.
var (
	errChanged = errors.New("the cluster's address or credential has changed")
	errFilled  = errors.New("the server's store was filled anew, and may lack what was stored of the cluster")
)
