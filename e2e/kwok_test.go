//go:build nightly

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

var kwokPods = flag.Int("kwok-pods", 1000, "pods of TestPodsOfClusters, three images for each 50 of them; docs/design/performance.md has the figures of 5000")

// followed is a cluster that Tidewaiter follows, with the rights that docs/tasks/cluster.md gives
// it.
type followed struct {
	*harness.Cluster
	name   string
	client kubernetes.Interface
	nodes  []string
}

func startFollowed(t *testing.T, name string, nodes int) *followed {
	t.Helper()
	c := &followed{Cluster: harness.StartCluster(t), name: name}
	for i := range nodes {
		c.nodes = append(c.nodes, fmt.Sprint(name, "-", i))
	}
	c.StartNodes(t, c.nodes...)
	c.Kubectl(t, "create", "serviceaccount", "tidewaiter", "-n", "kube-system")
	for role, rights := range map[string][]string{
		"tidewaiter":      {"--verb=list,watch", "--resource=pods,nodes"},
		"tidewaiter-pull": {"--verb=get", "--resource=secrets,serviceaccounts"},
	} {
		c.Kubectl(t, append([]string{"create", "clusterrole", role}, rights...)...)
		c.Kubectl(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--serviceaccount=kube-system:tidewaiter")
	}
	c.Kubectl(t, "create", "namespace", "team")
	c.client = c.Client(t)
	harness.Eventually(t, func() error {
		// pods are refused until their namespace has its service account
		_, err := c.client.CoreV1().ServiceAccounts("team").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return c
}

// entry is the cluster in Tidewaiter's configuration.
func (c *followed) entry(t *testing.T) string {
	t.Helper()
	token := strings.TrimSpace(c.Kubectl(t, "create", "token", "tidewaiter", "-n", "kube-system"))
	return fmt.Sprintf("- {name: %s, kubeconfig: %s, excludedNamespaces: [kube-system]}\n", c.name, c.Kubeconfig(t, "tidewaiter", token))
}

// run creates a pod on one of the nodes; runs is what its status tells, nothing where it cannot be
// pulled.
func (c *followed) run(ctx context.Context, i int, image, runs string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Annotations: map[string]string{harness.RunsAnnotation: runs}},
		Spec:       corev1.PodSpec{NodeName: c.nodes[i%len(c.nodes)], Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
	_, err := c.client.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// podCounts are the cells PODS of the images that are used.
func podCounts(t *testing.T, s *harness.Server) (map[string]string, error) {
	client, err := kubernetes.NewForConfig(s.Config(t))
	must(t, err)
	raw, err := client.RESTClient().Get().AbsPath(imagesPath).Param("fieldSelector", "used=true").SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").DoRaw(t.Context())
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return nil, err
	}
	counts := map[string]string{}
	for _, row := range table.Rows {
		var of metav1.PartialObjectMetadata
		if err := json.Unmarshal(row.Object.Raw, &of); err != nil {
			return nil, err
		}
		for i, column := range table.ColumnDefinitions {
			if column.Name == "Pods" {
				counts[of.Name] = fmt.Sprint(row.Cells[i])
			}
		}
	}
	return counts, nil
}

// The pods of two clusters, of which KWOK plays nodes and kubelets, count for the images that they
// run, which are imported. A cluster that is away shows its last state with its age, also to a
// server that was killed and started meanwhile, and what happened while it was away is known when
// it is back.
func TestPodsOfClusters(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	n := *kwokPods * 3 / 50
	all := images.Numbered(t, n)
	pushed := r.StartPushAll(t, "team/app", all)
	refs := r.References("team/app", n)
	digest := func(i int) string { return images.Digest(t, all[i%n]).String() }
	runs := func(i int) string { return r.Host + "/team/app@" + digest(i) }

	prod, test := startFollowed(t, "prod", 10), startFollowed(t, "test", 2)
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, []byte("clusters:\n"+prod.entry(t)+test.entry(t)), 0o600))
	pushed()
	s := harness.StartServer(t, "--config", config)

	want := map[string]int{}
	counted := func(what string) {
		t.Helper()
		started := time.Now()
		expected := map[string]string{}
		for digest, pods := range want {
			expected[digest] = fmt.Sprint(pods)
		}
		harness.Eventually(t, func() error {
			got, err := podCounts(t, s)
			if err != nil {
				return err
			}
			if !maps.Equal(got, expected) {
				wrong := ""
				for digest, pods := range expected {
					if got[digest] != pods {
						wrong = fmt.Sprintf("%s has %q pods, not %s", digest, got[digest], pods)
					}
				}
				return fmt.Errorf("%s: %d images are used, want %d; %s", what, len(got), len(expected), wrong)
			}
			return nil
		})
		t.Logf("%s: the counts are right after %.2f s", what, time.Since(started).Seconds())
	}
	shows := func(what string, want []string, args ...string) {
		t.Helper()
		eventuallyShows(t, s, what, want, args...)
	}

	started := time.Now()
	var creating sync.WaitGroup
	const creators = 16
	for c := range creators {
		creating.Go(func() {
			for i := c; i < *kwokPods; i += creators {
				if err := prod.run(t.Context(), i, refs[i%n], runs(i+1)); err != nil {
					// the tag has moved since
					t.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		must(t, test.run(t.Context(), i, refs[i%2], runs(i%2)))
		want[digest(i%2)]++
	}
	creating.Wait()
	for i := range *kwokPods {
		want[digest(i+1)]++
	}
	t.Logf("%d pods on %d images were created in %.1f s", *kwokPods, n, time.Since(started).Seconds())
	harness.Eventually(t, func() error {
		list, err := prod.client.CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%s does not run yet", list.Items[0].Name)
		}
		return err
	})
	t.Logf("KWOK ran the last after %.1f s", time.Since(started).Seconds())
	counted("the last pod")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	must(t, err)
	t.Logf("the server's memory was at most%s", regexp.MustCompile(`VmHWM:(.*)`).FindSubmatch(status)[1])
	must(t, prod.run(t.Context(), *kwokPods, r.Host+"/team/gone:1", ""))
	shows("what cannot be had", []string{fmt.Sprint("prod:team:pod-", *kwokPods), "ErrImagePull", "not found"}, "get", "clusterpods", "--field-selector", "image="+r.Host+"/team/gone:1")
	shows("what the other cluster runs", []string{digest(0), digest(1)}, "get", "images", "--field-selector", "used-by=test/team", "-o", "name")
	shows("platforms", []string{"test:team:pod-0", "linux/amd64", "test:team:pod-1", "linux/arm64"}, "get", "clusterpods", "--field-selector", "spec.cluster=test", "-o", "wide")
	shows("clusters", []string{"prod", fmt.Sprint(*kwokPods + 1)}, "get", "clusters")

	prod.Stop(t)
	shows("a cluster that is away", []string{"False, Unreachable"}, "get", "clusters", "prod")
	seen := s.Kubectl(t, "get", "clusters", "prod", "-o", "jsonpath={.status.lastSeen}")
	must(t, test.run(t.Context(), 20, refs[0], runs(0)))
	want[digest(0)]++
	counted("a pod of the other cluster")
	s.Kill(t)
	s = harness.StartServerOn(t, s.DataDir, "--config", config)
	counted("a server that was killed, while a cluster is away")
	shows("the age", []string{"Warning: the pods of cluster prod are those of", "ago"}, "get", "images", "--field-selector", "used=true")
	if got := s.Kubectl(t, "get", "clusters", "prod", "-o", "jsonpath={.status.lastSeen}"); got != seen {
		t.Errorf("a cluster that is away was last seen at %s, and then at %s", seen, got)
	}

	prod.Resume(t)
	must(t, prod.client.CoreV1().Pods("team").Delete(t.Context(), "pod-0", *metav1.NewDeleteOptions(0)))
	want[digest(1)]--
	must(t, prod.run(t.Context(), *kwokPods+1, refs[1%n], runs(1)))
	want[digest(1)]++
	counted("a cluster that is back")
	shows("clusters", []string{"prod", "True"}, "get", "clusters", "prod", "-o", `jsonpath={.metadata.name} {.status.conditions[?(@.type=="Reachable")].status}`)
}
