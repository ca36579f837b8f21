package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/running"
)

// clusterConfig is a cluster whose pods are followed.
type clusterConfig struct {
	// Name is the cluster's name here, a DNS label.
	Name string `yaml:"name"`
	// Kubeconfig says where the cluster is and has a credential that may list and watch pods. It is read again when it
	// changes. Without it the server is in the cluster, and uses its service account.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context is a context of the kubeconfig; empty is its current one.
	Context string `yaml:"context"`
	// ExcludedNamespaces are those whose pods are left out.
	ExcludedNamespaces []string `yaml:"excludedNamespaces"`
	// ImportRunning has the images of the cluster's pods imported, with the pods' pull secrets; true if it is left out.
	ImportRunning *bool `yaml:"importRunning"`
}

// importsRunning reports whether the images of a cluster's pods are imported; the cluster may be usage.Local.
func (c *config) importsRunning(cluster string) bool {
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
	kubeconfig, err := openKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	if err != nil {
		return nil, err
	}
	return kubeconfig.ClientConfig()
}

// clusterSources returns the clusters to follow. The server keeps trying to reach a cluster that is away. A kubeconfig
// that cannot be read at the start is a mistake.
func (c *config) clusterSources() ([]clusters.Source, error) {
	var all []clusters.Source
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if _, err := cluster.connect(); err != nil {
			if cluster.Kubeconfig == "" && errors.Is(err, restclient.ErrNotInCluster) {
				err = withHint(errors.New("no kubeconfig is given, and this is not a pod of a cluster"), "kubeconfig: %s.kubeconfig", cluster.Name)
			}
			return nil, fmt.Errorf("%s: clusters[%d]: %w", c.file, i, err)
		}
		all = append(all, clusters.Source{Name: cluster.Name, Connect: cluster.connect, ExcludedNamespaces: cluster.ExcludedNamespaces})
	}
	return all, nil
}

// clusterOptions are the options for following clusters.
func (s *server) clusterOptions() (clusters.Options, error) {
	sources, err := s.config.clusterSources()
	sources = append(sources, s.options.cluster.source(s.config)...)
	return clusters.Options{Sources: sources, About: s.about}, err
}

// about returns the verdict about an image in the repository of a reference; if that is "", the image is not known
// there, and notImported says why it could not be imported.
func (s *server) about(cluster string, ref reference.Reference) (verdict, notImported string) {
	ctx := genericapirequest.WithNamespace(context.Background(), metav1.NamespaceNone)
	if ref.Digest != "" {
		if obj, err := s.images.Get(ctx, ref.Digest, &metav1.GetOptions{}); err == nil {
			verdict = imageapi.Verdict(obj.(*imagev1.Image), ref, summarize)
		}
	}
	if verdict != "" || s.pushes == nil {
		return verdict, ""
	}
	job, err := s.pushes.spool.Find(ctx, push.OfCluster(cluster), ref.String())
	if job == nil || err != nil {
		return "", ""
	}
	return "", job.Error
}

// feedQueue adds the task that imports the images of pods. It must be added before the pods are read.
func (s *server) feedQueue() error {
	images, err := imageclient.New(s.web.ClientConfig())
	if err != nil {
		return err
	}
	f := running.New(running.Options{
		Queue:  s.pushes.spool,
		Known:  func(ctx context.Context, ref reference.Reference) (bool, error) { return isKnown(ctx, images, ref) },
		Wanted: s.config.importsRunning,
		Each: func(ctx context.Context, use func(string, []reference.Reference)) error {
			return s.usage.Each(ctx, func(p usage.Pod) { use(p.Cluster, p.Images) })
		},
	})
	s.usage.OnUse(func(p usage.Pod) { f.Use(p.Cluster, p.Images) })
	s.tasks = append(s.tasks, f.Run)
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
