package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/inventory"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/feeder"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/queue"
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
	return clusters.Options{Sources: sources, OwnPodsOnly: s.Config.OwnPodsOnly, About: s.about}, err
}

// about returns what is known of the image that a pod of a cluster names, and of what runs.
func (s *Server) about(cluster, namespace, image string, runs reference.Reference) (known clusters.Known) {
	ctx := context.Background()
	// A state that cannot be read is unknown.
	if answer, err := s.answerer.Container(ctx, namespace, image, runs.Digest); err == nil {
		if answer.Verdict != nil {
			known.Verified = answer.Verdict.Verified
		}
		if answer.Outdated {
			known.Now = answer.Now
		}
	}
	if known.Verified != "" || s.pushes == nil {
		return known
	}
	if job, err := s.pushes.spool.Find(ctx, push.OfCluster(cluster), runs.String()); job != nil && err == nil {
		known.NotImported = job.Error
	}
	return known
}

// feedQueue adds the task that imports the images of pods. It must be added before the pods are
// read.
func (s *Server) feedQueue() error {
	images, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	f := feeder.NewPods(feeder.PodsOptions{
		Queue:  s.pushes.spool,
		Known:  func(ctx context.Context, ref reference.Reference) (bool, error) { return isKnown(ctx, images, ref) },
		Wanted: s.Config.ImportsRunning,
		Each: func(ctx context.Context, use func(string, []reference.Reference)) error {
			return s.Usage.Each(ctx, func(p usage.Pod) { use(p.Cluster, p.Images) })
		},
	})
	s.Usage.OnUse(func(p usage.Pod) { f.Use(p.Cluster, p.Images) })
	s.Tasks = append(s.Tasks, Task{Name: "images-of-pods", Run: f.Run, One: true})
	return nil
}

// isKnown reports whether an image is known by a reference: the tag leads to an image, or the image
// with the digest is known to be in the repository.
func isKnown(ctx context.Context, images importer.ListedImages, ref reference.Reference) (bool, error) {
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

// goneImages is one for all servers of a process, of which tests have several.
var goneImages = inventory.NewGoneGauge()

// runningImages is what the worker of pushes asks about pods: a queue.Running.
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

// countRunning counts the images that run, and those of them that are gone from their registries,
// until ctx is done.
func (s *Server) countRunning(ctx context.Context) error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	registerMetrics(goneImages)
	s.Verification.Inventory.RunRunning(ctx, client, s.answerer.Use.StaleReasons, goneImages)
	return nil
}

// goneNotifier passes notices on, and has what runs counted when something is gone.
type goneNotifier struct{ *Server }

// Notify is part of queue.Notifier.
func (n goneNotifier) Notify(ctx context.Context, notice queue.Notice) {
	n.Events.Notify(ctx, notice)
	if notice.Reason == queue.NoticeGoneFromRegistry {
		n.Verification.Inventory.RecountRunning()
	}
}
