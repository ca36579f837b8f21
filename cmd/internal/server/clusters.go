package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/feeder"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// clusterConfig is a cluster whose pods are followed.
type clusterConfig struct {
	// Name is the cluster's name here, a DNS label.
	Name string `yaml:"name"`
	// Kubeconfig says where the cluster is and has a credential that may list and watch pods and workloads. It is read again when it
	// changes. Without it the server is in the cluster, and uses its service account.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context is a context of the kubeconfig; empty is its current one.
	Context string `yaml:"context"`
	// ExcludedNamespaces are those whose pods are left out.
	ExcludedNamespaces []string `yaml:"excludedNamespaces"`
	// ImportRunning has the images of the cluster's pods imported, with the pods' pull secrets; true if it is left out.
	ImportRunning *bool `yaml:"importRunning"`
	// WithoutWorkloads has only pods followed: images that workloads need without running them may be deleted.
	WithoutWorkloads bool `yaml:"withoutWorkloads"`
}

// workloadConfig is a kind whose objects need images, whether they run pods or not.
type workloadConfig struct {
	// Group and Resource are those of the API: argoproj.io and rollouts.
	Group    string `yaml:"group"`
	Resource string `yaml:"resource"`
	// Path leads to the pod template: spec.template. An asterisk stands for each key or item.
	Path string `yaml:"path"`
}

// workloads are the kinds that are followed in clusters.
func (c *Config) workloads() []clusters.Workload {
	all := clusters.Workloads()
	for _, w := range c.Workloads {
		all = append(all, clusters.Workload(w))
	}
	return all
}

// importsRunning reports whether the images of a cluster's pods are imported; the cluster may be usage.Local.
func (c *Config) importsRunning(cluster string) bool {
	for i := range c.Clusters {
		if c.Clusters[i].Name == cluster {
			return ptr.Deref(c.Clusters[i].ImportRunning, true)
		}
	}
	return ptr.Deref(c.ImportRunning, true)
}

// connect returns the configuration for the cluster's API.
func (c *clusterConfig) connect() (*restclient.Config, error) {
	if c.Kubeconfig == "" {
		return restclient.InClusterConfig()
	}
	kubeconfig, err := cli.OpenKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	if err != nil {
		return nil, err
	}
	return kubeconfig.ClientConfig()
}

// clusterSources returns the clusters to follow. The server keeps trying to reach a cluster that is away. A kubeconfig
// that cannot be read at the start is a mistake.
func (c *Config) clusterSources() ([]clusters.Source, error) {
	var all []clusters.Source
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if _, err := cluster.connect(); err != nil {
			if cluster.Kubeconfig == "" && errors.Is(err, restclient.ErrNotInCluster) {
				err = cli.WithHint(errors.New("no kubeconfig is given, and this is not a pod of a cluster"), "kubeconfig: %s.kubeconfig", cluster.Name)
			}
			return nil, fmt.Errorf("%s: clusters[%d]: %w", c.file, i, err)
		}
		source := clusters.Source{Name: cluster.Name, Connect: cluster.connect, ExcludedNamespaces: cluster.ExcludedNamespaces}
		if !cluster.WithoutWorkloads {
			source.Workloads = c.workloads()
		}
		all = append(all, source)
	}
	return all, nil
}

// clusterOptions are the options for following clusters.
func (s *Server) clusterOptions() (clusters.Options, error) {
	sources, err := s.Config.clusterSources()
	sources = append(sources, s.Options.Cluster.source(s.Config)...)
	return clusters.Options{Sources: sources, About: s.about}, err
}

// about returns what is known of the image that a pod of a cluster names, and of what runs.
func (s *Server) about(cluster, namespace, image string, runs reference.Reference) (known clusters.Known) {
	ctx := context.Background()
	// What cannot be read is not known.
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

// feedQueue adds the task that imports the images of pods. It must be added before the pods are read.
func (s *Server) feedQueue() error {
	images, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	f := feeder.NewPods(feeder.PodsOptions{
		Queue:  s.pushes.spool,
		Known:  func(ctx context.Context, ref reference.Reference) (bool, error) { return isKnown(ctx, images, ref) },
		Wanted: s.Config.importsRunning,
		Each: func(ctx context.Context, use func(string, []reference.Reference)) error {
			return s.Usage.Each(ctx, func(p usage.Pod) { use(p.Cluster, p.Images) })
		},
	})
	s.Usage.OnUse(func(p usage.Pod) { f.Use(p.Cluster, p.Images) })
	s.Tasks = append(s.Tasks, f.Run)
	return nil
}

// isKnown reports whether an image is known by a reference: the tag leads to an image, or the image with the digest is
// known to be in the repository.
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
