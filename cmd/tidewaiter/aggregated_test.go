package main

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

func TestClusterService(t *testing.T) {
	t.Parallel()
	for service, want := range map[string]string{
		"tidewaiter/images":      "tidewaiter images 443",
		"tidewaiter/images:6443": "tidewaiter images 6443",
	} {
		namespace, name, port, err := (&aggregated{service: service}).parseService()
		if err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if got := strings.Join([]string{namespace, name, strconv.Itoa(int(port))}, " "); got != want {
			t.Errorf("%s is %s", service, got)
		}
	}
	for _, service := range []string{"tidewaiter", "/", "a/b/c", "tidewaiter/Images", "tidewaiter/images:0", "tidewaiter/images:99999", "tidewaiter/images:x", "a b/c"} {
		if _, _, _, err := (&aggregated{service: service}).parseService(); err == nil {
			t.Errorf("--cluster-service %q is taken", service)
		}
	}
}

// A flag that would do nothing is refused, and so is a cluster that cannot be reached by what is given.
func TestServeClusterRefusesFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--client-ca-file has no effect with --cluster":     {"--cluster", "--client-ca-file", "ca.crt"},
		"--authorization-mode has no effect with --cluster": {"--cluster", "--authorization-mode", "RBAC"},
		"this is not a pod of a cluster":                    {"--cluster"},
		"--cluster-kubeconfig: ":                            {"--cluster", "--cluster-kubeconfig", filepath.Join(t.TempDir(), "none")},
	} {
		var out, errs bytes.Buffer
		args = append([]string{"serve", "--secure-port", "0", "--data-dir", filepath.Join(t.TempDir(), "data")}, args...)
		if code := run(t.Context(), args, nil, &out, &errs); code == exitOK || !strings.Contains(errs.String(), want) {
			t.Errorf("%v: code %d, %q, want %q", args, code, errs.String(), want)
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
	a := &aggregated{on: true, name: "in-cluster"}
	for want, configured := range map[string][]clusterConfig{"in-cluster": {{Name: "prod", Kubeconfig: "prod.kubeconfig"}}, "": {{Name: "own"}}} {
		if got := names(a.source(&config{Clusters: configured})); got != want {
			t.Errorf("beside %v, %q is followed, want %q", configured, got, want)
		}
	}
	if got := (&aggregated{}).source(&config{}); got != nil {
		t.Errorf("a server on its own follows %v", got)
	}
}
