package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// BenchmarkAggregator asks the server itself and, in turn, through kube-apiserver, among 500
// Images, with client-go and with kubectl, and reports the medians in milliseconds: go test -C
// e2e -run '^$' -bench Aggregator -benchtime 100x.
func BenchmarkAggregator(b *testing.B) {
	s := install(b, harness.StartCluster(b), "")
	for i := range 500 {
		u := &unstructured.Unstructured{}
		must(b, u.UnmarshalJSON([]byte(plainImage(fmt.Sprintf("image-%d", i)))))
		_, err := imageClient(b, s.Server).Create(b.Context(), u, metav1.CreateOptions{})
		must(b, err)
	}
	through, err := clientcmd.BuildConfigFromFlags("", s.cluster.Kubeconfig(b, "admin", "admin"))
	must(b, err)
	through.QPS = -1
	client, err := dynamic.NewForConfig(through)
	must(b, err)
	type way struct {
		client  dynamic.ResourceInterface
		kubectl func(testing.TB, ...string) harness.Command
	}
	ways := []way{
		{imageClient(b, s.Server), s.KubectlCommand},
		{client.Resource(imageResource), func(t testing.TB, args ...string) harness.Command {
			return s.cluster.KubectlCommand(t, "admin", args...)
		}},
	}
	for _, request := range []struct {
		name string
		ask  func(*testing.B, way)
	}{
		{"Get", func(b *testing.B, w way) {
			_, err := w.client.Get(b.Context(), "image-250", metav1.GetOptions{})
			must(b, err)
		}},
		{"List", func(b *testing.B, w way) {
			_, err := w.client.List(b.Context(), metav1.ListOptions{})
			must(b, err)
		}},
		{"KubectlGet", func(b *testing.B, w way) { harness.MustRun(b, w.kubectl(b, "get", "images")) }},
	} {
		b.Run(request.name, func(b *testing.B) {
			times := make([][]time.Duration, len(ways))
			for b.Loop() {
				for i, w := range ways {
					start := time.Now()
					request.ask(b, w)
					times[i] = append(times[i], time.Since(start))
				}
			}
			for i, name := range []string{"direct-ms", "aggregated-ms"} {
				slices.Sort(times[i])
				b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds())/1000, name)
			}
		})
	}
}
