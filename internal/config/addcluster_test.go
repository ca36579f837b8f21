package config

import (
	"strings"
	"testing"
)

// A cluster is added to each form of a file, and nothing else changes: no comment, no line that was
// there. Only where lists are within brackets is the file written anew.
func TestWithCluster(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ file, want string }{
		"no file":         {"", "clusters:\n- name: prod\n  kubeconfig: prod.kubeconfig\n"},
		"comments alone":  {"# nothing\n", "# nothing\nclusters:\n- name: prod\n  kubeconfig: prod.kubeconfig\n"},
		"another key":     {"sweep:\n  every: 6h # often", "sweep:\n  every: 6h # often\nclusters:\n- name: prod\n  kubeconfig: prod.kubeconfig\n"},
		"a cluster":       {"# ours\n\nclusters: # all\n# the first\n- name: dev\n  kubeconfig: dev.kubeconfig\n\nsweep: {}\n", "# ours\n\nclusters: # all\n- name: prod\n  kubeconfig: prod.kubeconfig\n# the first\n- name: dev\n  kubeconfig: dev.kubeconfig\n\nsweep: {}\n"},
		"indented":        {"clusters:\n  - name: dev # x\n    kubeconfig: d\n", "clusters:\n  - name: prod\n    kubeconfig: prod.kubeconfig\n  - name: dev # x\n    kubeconfig: d\n"},
		"no value":        {"clusters:", "clusters:\n- name: prod\n  kubeconfig: prod.kubeconfig\n"},
		"in brackets":     {"# ours\nclusters: [{name: dev, kubeconfig: d}] # all\n", "# ours\nclusters: [{name: dev, kubeconfig: d}, {name: prod, kubeconfig: prod.kubeconfig}] # all\n"},
		"empty list":      {"clusters: [] # none\n", "clusters: [{name: prod, kubeconfig: prod.kubeconfig}] # none\n"},
		"all in brackets": {"{sweep: {every: 6h}}\n", "{sweep: {every: 6h}, clusters: [{name: prod, kubeconfig: prod.kubeconfig}]}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse("tidewaiter.yaml", []byte(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.WithCluster("prod", "prod.kubeconfig")
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, it holds\n%s\nwant\n%s", err, got, tt.want)
			}
		})
	}
}

// Where a cluster contradicts the file, or cannot be added, the error says so and what to add.
func TestWithClusterRefuses(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"ownPodsOnly: true\n":        "ownPodsOnly: true says that no cluster runs images",
		"importRunning: true\n---\n": "more than one",
	} {
		c, err := Parse("tidewaiter.yaml", []byte(file))
		if err == nil {
			_, err = c.WithCluster("prod", "prod.kubeconfig")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", file, err)
		}
	}
}
