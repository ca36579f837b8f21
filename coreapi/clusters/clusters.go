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

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
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
}

// Options are the options of [New]. Their zero value follows nothing.
type Options struct {
	Sources []Source
	// OwnPodsOnly says that no cluster runs images beside the server's own pods. Without it, and
	// without Sources, it is not known what runs.
	OwnPodsOnly bool
	// About returns what is known of the images that pods run; if it is nil, nothing is.
	About About
	// Clock is the time; nil is the real one.
	Clock clock.WithTicker
}

// Clusters are the followed clusters. They are safe for concurrent use.
type Clusters struct {
	clusters, pods *genericregistry.Store
	followers      []*follower
	ownPodsOnly    bool
	about          About
	clock          clock.WithTicker
	loaded         atomic.Bool // the stored state of all clusters is known
}

// New returns the clusters of the sources, over the storages that g gives. Run follows them. scheme
// is a scheme that [Install] was called with.
func New(g generic.RESTOptionsGetter, scheme *runtime.Scheme, o Options) (*Clusters, error) {
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	if o.About == nil {
		o.About = func(string, string, string, reference.Reference) Known { return Known{} }
	}
	c := &Clusters{clock: o.Clock, about: o.About, ownPodsOnly: o.OwnPodsOnly}
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
	return c, nil
}

// CheckNames returns why the names of sources cannot be those of clusters.
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

// Describe implements prometheus.Collector.
func (c *Clusters) Describe(ch chan<- *prometheus.Desc) { ch <- current }

// Collect implements prometheus.Collector.
func (c *Clusters) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.followers {
		value := 1.0
		if now := c.clock.Now(); f.staleReason(now) != "" || f.workloadStaleReason(now) != "" {
			value = 0
		}
		ch <- prometheus.MustNewConstMetric(current, prometheus.GaugeValue, value, f.source.Name)
	}
}

// Check returns an error that says of which clusters it is not known as of now what runs, or what
// workloads need, and why.
func (c *Clusters) Check() error {
	if stale := append(c.StaleReasons(), c.WorkloadStaleReasons()...); len(stale) > 0 {
		return errors.New(strings.Join(stale, "; "))
	}
	return nil
}

// Storage returns the storages for clients, by resource.
func (c *Clusters) Storage() map[string]rest.Storage {
	return map[string]rest.Storage{"clusters": readOnly(c.clusters), "clusterpods": &podsREST{readOnly(c.pods, "cpod"), c.about, func() []string {
		if unfollowed := c.Unfollowed(); unfollowed != "" {
			return []string{unfollowed}
		}
		return c.StaleReasons()
	}}}
}

// Uses returns the source of these clusters' pods, for an index.
func (c *Clusters) Uses() usage.Source {
	return usage.Source{Pods: c.pods, Read: func(obj runtime.Object) (usage.Pod, error) {
		p, ok := obj.(*ClusterPod)
		if !ok {
			return usage.Pod{}, fmt.Errorf("%T is not a ClusterPod", obj)
		}
		images := make([]reference.Reference, 0, len(p.Spec.Containers))
		var tagged []usage.Tagged
		for _, container := range p.Spec.Containers {
			images = append(images, podimages.Uses(container.Image, container.ImageID)...)
			ref, err := reference.Parse(container.Image)
			if runs := Runs(&container).Digest; err == nil && ref.Digest == "" && runs != "" {
				// not the pod's whole text
				tagged = append(tagged, usage.Tagged{Tag: ref.Pulled().String(), Digest: strings.Clone(runs)})
			}
		}
		return usage.Pod{Cluster: p.Spec.Cluster, Namespace: p.Spec.Namespace, Name: p.Spec.Name, Platform: p.Spec.Platform, Images: images, Tagged: tagged}, nil
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

// Unfollowed says why it is not known what runs elsewhere, if no cluster is followed; it is empty
// otherwise, and where the options say that there is none.
func (c *Clusters) Unfollowed() string {
	if len(c.followers) > 0 || c.ownPodsOnly {
		return ""
	}
	return "no cluster is followed, so what runs is not known: set clusters, or ownPodsOnly: true, in the server's configuration"
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

// WorkloadStaleReasons says which workloads of clusters whose pods are known are not known as of
// now, and why.
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

// Run follows the clusters until ctx is done.
func (c *Clusters) Run(ctx context.Context) error {
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

// load reads the stored state of the clusters, and deletes that of clusters that are no longer
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
// It does not write an object that is stored already.
func write[T interface {
	comparable
	runtime.Object
}](ctx context.Context, store *genericregistry.Store, name string, change func(before T) T) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, before runtime.Object) (runtime.Object, error) {
		old, ok := before.(T)
		if m, err := meta.Accessor(before); !ok || err != nil || m.GetUID() == "" {
			var none T
			old = none
		}
		return change(old), nil
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

var errChanged = errors.New("the cluster's address or credential has changed")
