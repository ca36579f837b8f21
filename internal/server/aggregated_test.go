package server

import (
	"strconv"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/config"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

func TestClusterService(t *testing.T) {
	t.Parallel()
	for service, want := range map[string]string{
		"tidewaiter/images":      "tidewaiter images 443",
		"tidewaiter/images:6443": "tidewaiter images 6443",
	} {
		namespace, name, port, err := (&ClusterOptions{service: service}).parseService()
		if err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if got := strings.Join([]string{namespace, name, strconv.Itoa(int(port))}, " "); got != want {
			t.Errorf("%s is %s", service, got)
		}
	}
	for _, service := range []string{"tidewaiter", "/", "a/b/c", "tidewaiter/Images", "tidewaiter/images:0", "tidewaiter/images:99999", "tidewaiter/images:x", "a b/c"} {
		if _, _, _, err := (&ClusterOptions{service: service}).parseService(); err == nil {
			t.Errorf("--cluster-service %q is taken", service)
		}
	}
}

// The cluster's own pods are followed once, whoever says so.
func TestClusterSource(t *testing.T) {
	t.Parallel()
	names := func(sources []clusters.Source) string {
		var all []string
		for _, s := range sources {
			all = append(all, s.Name)
		}
		return strings.Join(all, " ")
	}
	a := &ClusterOptions{on: true, name: "in-cluster"}
	for want, configured := range map[string][]config.Cluster{"in-cluster": {{Name: "prod", Kubeconfig: "prod.kubeconfig"}}, "": {{Name: "own"}}} {
		if got := names(a.source(&config.Config{Clusters: configured})); got != want {
			t.Errorf("beside %v, %q is followed, want %q", configured, got, want)
		}
	}
	if got := (&ClusterOptions{}).source(&config.Config{}); got != nil {
		t.Errorf("a server on its own follows %v", got)
	}
}
