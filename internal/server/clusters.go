package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/feeder"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// workloads are the kinds that are followed in clusters.
func workloads(c *config.Config) []clusters.Workload {
	all := clusters.Workloads()
	for _, w := range c.Workloads {
		all = append(all, clusters.Workload(w))
	}
	return all
}

// connect returns the configuration for the API of a cluster.
func connect(c *config.Cluster) (*restclient.Config, error) {
	if c.Kubeconfig == "" {
		return restclient.InClusterConfig()
	}
	kubeconfig, err := cli.OpenKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	if err != nil {
		return nil, err
	}
	return kubeconfig.ClientConfig()
}

// clusterSources returns the clusters to follow. The server keeps trying to reach a cluster that is
// away. A kubeconfig that cannot be read at the start is a mistake.
func clusterSources(c *config.Config) ([]clusters.Source, error) {
	var all []clusters.Source
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if _, err := connect(cluster); err != nil {
			if cluster.Kubeconfig == "" && errors.Is(err, restclient.ErrNotInCluster) {
				err = cli.WithHint(errors.New("no kubeconfig is given, and the server does not run in a pod"), "kubeconfig: %s.kubeconfig", cluster.Name)
			}
			return nil, c.Fault(fmt.Sprintf("clusters[%d]", i), err)
		}
		source := clusters.Source{Name: cluster.Name, Connect: func() (*restclient.Config, error) { return connect(cluster) }, ExcludedNamespaces: cluster.ExcludedNamespaces}
		if !cluster.WithoutWorkloads {
			source.Workloads = workloads(c)
		}
		all = append(all, source)
	}
	if err := clusters.CheckNames(all); err != nil {
		return nil, c.Fault("clusters", err)
	}
	return all, nil
}

func (s *Server) clusterOptions() (clusters.Options, error) {
	sources, err := clusterSources(s.Config)
	sources = append(sources, s.Options.Cluster.source(s.Config)...)
	return clusters.Options{Sources: sources, OwnPodsOnly: s.Config.OwnPodsOnly, Fills: s.DB.Fills}, err
}

// feedQueue adds the task that imports the images of pods. It must be added before the pods are
// read.
func (s *Server) feedQueue() error {
	images, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	f := feeder.NewPods(feeder.PodsOptions{Queue: s.pushes.spool, Uses: podUses{s, images}})
	s.Usage.OnUse(func(p usage.Pod) { f.Use(p.Cluster, p.Images) })
	s.Tasks = append(s.Tasks, Task{Name: "images-of-pods", Run: f.Run, One: true})
	return nil
}

// podUses is what pods use: a feeder.Uses.
type podUses struct {
	server *Server
	images importer.ListedImages
}

func (u podUses) Wanted(cluster string) bool { return u.server.Config.ImportsRunning(cluster) }

func (u podUses) Each(ctx context.Context, use func(cluster string, images []reference.Reference)) error {
	return u.server.Usage.Each(ctx, func(p usage.Pod) { use(p.Cluster, p.Images) })
}

// Known reports whether an image is known by a reference: the tag leads to an image, or the image
// with the digest is known to be in the repository.
func (u podUses) Known(ctx context.Context, ref reference.Reference) (bool, error) {
	images := u.images
	if ref.Digest == "" {
		list, err := images.List(ctx, metav1.ListOptions{Limit: 1, FieldSelector: fields.OneTermEqualSelector(selectors.References, ref.String()).String()})
		return err == nil && len(list.Items) > 0, err
	}
	image, err := images.Get(ctx, ref.Digest, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), ref.Bare()), nil
}

// All servers of a process share goneImages and runningPods. Only tests run several servers.
var goneImages, runningPods = inventory.NewGoneGauge(), inventory.NewVerdictsGauge()

// runningImages tells the worker of pushes which images pods run: a queue.Running.
type runningImages struct{ *Server }

// EachRunning is part of queue.Running.
func (r runningImages) EachRunning(ctx context.Context, use func(cluster string, image reference.Reference) error) error {
	var failed error
	err := r.Usage.Each(ctx, func(p usage.Pod) {
		cluster := p.Cluster
		if !r.Config.ImportsRunning(cluster) {
			cluster = ""
		}
		for _, image := range p.Images {
			if failed == nil && image.Host != "" && image.Repository != "" && image.Digest != "" {
				failed = use(cluster, image)
			}
		}
	})
	return cmp.Or(failed, err)
}

// PodsRunning is part of queue.Running.
func (r runningImages) PodsRunning(digest string) int {
	n, _ := r.answerer.Use.Pods(digest, nil)
	return n
}

// goneNotifier passes notices on, and has what runs counted when something is gone.
type goneNotifier struct{ *Server }

// Notify is part of queue.Notifier.
func (n goneNotifier) Notify(ctx context.Context, notice queue.Notice) {
	n.Events.Notify(ctx, notice)
	if notice.Reason == queue.NoticeGoneFromRegistry {
		n.Verification.recount.Send()
	}
}

// podPage is how many pods are described at a time to count them by their verdicts.
const podPage = 500

// podVerdicts is an inventory.Pods.
type podVerdicts struct{ *Server }

// StaleReasons is part of inventory.Pods.
func (p podVerdicts) StaleReasons() []string { return p.answerer.Use.StaleReasons() }

// EachVerdict is part of inventory.Pods: it describes the pods as clients see them. A pod counts
// under each verdict by which the selector "verified" of clusterpods finds it.
func (p podVerdicts) EachVerdict(ctx context.Context, use func(verified string)) error {
	return pages.Each(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), metav1.ListOptions{Limit: podPage}, func(ctx context.Context, o metav1.ListOptions) (*clusters.ClusterPodList, error) {
		obj, err := p.clusterPods.List(ctx, &internalversion.ListOptions{Limit: o.Limit, Continue: o.Continue})
		if err != nil {
			return nil, err
		}
		return obj.(*clusters.ClusterPodList), nil
	}, func(list *clusters.ClusterPodList) error {
		for i := range list.Items {
			has := map[string]bool{}
			for _, c := range list.Items[i].Spec.Containers {
				if !has[c.Verified] {
					has[c.Verified] = true
					use(c.Verified)
				}
			}
		}
		return nil
	})
}
