package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
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

// A cluster's kubeconfig that is empty, or holds only its beginning, leads to no other cluster: a
// library would take that of the server's own pod instead, and its pods for those of the other.
func TestHalfWrittenKubeconfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "prod.kubeconfig")
	whole := "apiVersion: v1\nclusters:\n- cluster: {server: https://prod.example.com}\n  name: prod\ncontexts:\n- context: {cluster: prod, user: me}\n  name: prod\ncurrent-context: prod\nkind: Config\nusers:\n- name: me\n  user: {token: secret}\n"
	for n := range len(whole) + 1 {
		if n > 0 && n < len(whole) && whole[n-1] != '\n' {
			continue
		}
		if err := os.WriteFile(file, []byte(whole[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
		kubeconfig, err := cli.OpenKubeconfig(rules, &clientcmd.ConfigOverrides{})
		if err != nil {
			t.Fatal(err)
		}
		if _, is := kubeconfig.(*clientcmd.DeferredLoadingClientConfig); is {
			t.Fatal("an empty kubeconfig stands for the cluster of the pod")
		}
		config, err := connect(&config.Cluster{Name: "prod", Kubeconfig: file})
		if n < len(whole) {
			if err == nil && (config.Host != "https://prod.example.com" || config.BearerToken != "") {
				t.Errorf("%q leads to %s with %q", whole[:n], config.Host, config.BearerToken)
			}
		} else if err != nil || config.Host != "https://prod.example.com" || config.BearerToken != "secret" {
			t.Errorf("the whole kubeconfig leads to %+v, %v", config, err)
		}
	}
	if _, err := connect(&config.Cluster{Name: "prod", Kubeconfig: file + ".gone"}); err == nil {
		t.Error("a kubeconfig that is gone leads somewhere")
	}
}
