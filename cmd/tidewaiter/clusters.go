package main

import (
	"context"
	"errors"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// clusterConfig is a cluster whose pods are followed.
type clusterConfig struct {
	// Name is how the cluster is called here, a DNS label.
	Name string `yaml:"name"`
	// Kubeconfig says where the cluster is and has the credential for it, which may list
	// and watch pods. It is read again when it changes. Without it the server is in the
	// cluster, and uses its service account.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context is that of the kubeconfig; its current one if this is empty.
	Context string `yaml:"context"`
	// ExcludedNamespaces are those whose pods are left out.
	ExcludedNamespaces []string `yaml:"excludedNamespaces"`
}

// connect gives the way to the cluster.
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

// clusterSources are the clusters to follow. A cluster that is away is tried again for ever; a kubeconfig
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
	return clusters.Options{Sources: sources, Verified: s.verified}, err
}

// verified is the verdict about an image in the repository of a reference, "" where it is not known.
func (s *server) verified(ref reference.Reference) string {
	ctx := genericapirequest.WithNamespace(context.Background(), metav1.NamespaceNone)
	obj, err := s.images.Get(ctx, ref.Digest, &metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return imageapi.Verdict(obj.(*imagev1.Image), ref, summarize)
}
