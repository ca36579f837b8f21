package server

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/web"
)

// namespaceFile has the namespace of the pod that the process is in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ClusterOptions are the flags of a server that is one of a cluster's API servers.
type ClusterOptions struct {
	on bool
	// kubeconfig reaches the cluster; empty for the service account of the pod.
	kubeconfig string
	// name is the cluster's name here.
	name string
	// service is the Service that leads to the server: NAMESPACE/NAME[:PORT].
	service string
}

// AddFlags adds the flags of servers in a cluster.
func (a *ClusterOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&a.on, "cluster", false, "serve as an aggregated API server of a cluster, which authenticates and authorizes callers, and whose pods are followed")
	f.StringVar(&a.kubeconfig, "cluster-kubeconfig", "", "with --cluster: kubeconfig for the cluster (default: the service account of this pod)")
	f.StringVar(&a.name, "cluster-name", "in-cluster", "with --cluster: the cluster's name here, as in used-by=in-cluster")
	f.StringVar(&a.service, "cluster-service", "", "with --cluster: the Service of this server, as NAMESPACE/NAME[:PORT] (default: tidewaiter:443 in the pod's namespace)")
}

// connect returns the configuration for the cluster's API.
func (a *ClusterOptions) connect() (*restclient.Config, error) {
	return connect(&config.Cluster{Kubeconfig: a.kubeconfig})
}

// open prepares what the server needs from the cluster; nil for a server on its own.
func (a *ClusterOptions) open() (*web.Cluster, error) {
	if !a.on {
		return nil, nil
	}
	client, err := a.connect()
	if errors.Is(err, restclient.ErrNotInCluster) {
		return nil, cli.WithHint(errors.New("--cluster: the server does not run in a pod, and no kubeconfig is given"), "tidewaiter serve --cluster --cluster-kubeconfig FILE --cluster-service tidewaiter/tidewaiter")
	}
	if err != nil {
		return nil, fmt.Errorf("--cluster-kubeconfig: %w", err)
	}
	c := &web.Cluster{Client: client, Kubeconfig: a.kubeconfig}
	c.Namespace, c.Name, c.Port, err = a.parseService()
	return c, err
}

func (a *ClusterOptions) parseService() (namespace, name string, port int32, err error) {
	service := a.service
	if service == "" {
		own, err := os.ReadFile(namespaceFile)
		if err != nil {
			return "", "", 0, cli.WithHint(errors.New("--cluster: the Service of this server is unknown"), "--cluster-service NAMESPACE/NAME")
		}
		service = strings.TrimSpace(string(own)) + "/tidewaiter"
	}
	port = 443
	names := service
	if before, after, found := strings.Cut(service, ":"); found {
		n, err := strconv.ParseUint(after, 10, 16)
		if err != nil || n == 0 {
			return "", "", 0, cli.Misuse(fmt.Errorf("--cluster-service %q: %q is not a port", service, after), "tidewaiter serve --cluster --cluster-service tidewaiter/tidewaiter:443")
		}
		names, port = before, int32(n)
	}
	namespace, name, _ = strings.Cut(names, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
		return "", "", 0, cli.Misuse(fmt.Errorf("--cluster-service %q is not NAMESPACE/NAME[:PORT]", service), "tidewaiter serve --cluster --cluster-service tidewaiter/tidewaiter")
	}
	return namespace, name, port, nil
}

// source returns the source of the cluster's own pods, unless the configuration follows them by
// another name.
func (a *ClusterOptions) source(c *config.Config) []clusters.Source {
	if !a.on || a.configured(c) != nil {
		return nil
	}
	return []clusters.Source{{Name: a.name, Connect: a.connect, Workloads: workloads(c)}}
}

// configured returns the configuration's entry for the cluster itself; nil if it has none.
func (a *ClusterOptions) configured(c *config.Config) *config.Cluster {
	i := slices.IndexFunc(c.Clusters, func(c config.Cluster) bool { return c.Kubeconfig == a.kubeconfig && c.Context == "" })
	if i < 0 {
		return nil
	}
	return &c.Clusters[i]
}

// called is the name under which the cluster's pods are followed.
func (a *ClusterOptions) called(c *config.Config) string {
	if configured := a.configured(c); configured != nil {
		return configured.Name
	}
	return a.name
}

// RefuseUnused refuses flags that have no effect if a cluster knows the callers.
func (a *ClusterOptions) RefuseUnused(callers ...*pflag.FlagSet) (err error) {
	if !a.on {
		return nil
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, flags := range callers {
		all.AddFlagSet(flags)
	}
	all.VisitAll(func(f *pflag.Flag) {
		if f.Changed && err == nil {
			err = cli.Misuse(fmt.Errorf("--%s has no effect with --cluster: the cluster authenticates and authorizes callers", f.Name), "tidewaiter serve --cluster")
		}
	})
	return err
}
