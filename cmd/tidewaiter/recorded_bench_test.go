package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/benchtest"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// recordedServer is a server that is told of pushes and follows a cluster.
type recordedServer struct {
	hookedServer
	cluster        *clustertest.Cluster
	appears        watch.Interface // images
	told, imported []time.Duration
}

// BenchmarkRecordedPush measures how long a server takes from the sending of a webhook to its
// answer and until the image appears in a watch, while the pods of a cluster change: the medians of
// a server that records what runs and of one that does not, and the median of their ratios, push by
// push. Both have the same pushes and changes, in turn, so that other load on the machine meets
// both:
//
//	go test ./cmd/tidewaiter -run '^$' -bench RecordedPush -benchtime 1000x
func BenchmarkRecordedPush(b *testing.B) {
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		b.Fatal(err)
	}
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	b.Cleanup(images.Close)
	host := images.Listener.Addr().String()
	digests := fillBench(b, host, b.N)
	all := map[string]*recordedServer{"without": newRecordedServer(b, host, false), "recording": newRecordedServer(b, host, true)}
	b.ResetTimer()
	for n := range b.N {
		for _, name := range [][]string{{"without", "recording"}, {"recording", "without"}}[n%2] {
			all[name].push(b, host, n, digests)
		}
	}
	b.StopTimer()
	for name, s := range all {
		b.ReportMetric(float64(benchtest.Median(s.told).Microseconds()), "µs/answer-"+name)
		b.ReportMetric(float64(benchtest.Median(s.imported).Microseconds()), "µs/image-"+name)
	}
	b.ReportMetric(benchtest.Percent(all["recording"].told, all["without"].told), "%answer")
	b.ReportMetric(benchtest.Percent(all["recording"].imported, all["without"].imported), "%image")
}

func newRecordedServer(b *testing.B, host string, recording bool) *recordedServer {
	s, dir := &recordedServer{cluster: clustertest.New(b)}, b.TempDir()
	s.secret = rand.Text()
	config := filepath.Join(dir, "tidewaiter.yaml")
	for file, text := range map[string]string{
		config:                       fmt.Sprintf("receivers: [{name: bench, type: distribution, hosts: ['%s'], secretFile: secret}]\nclusters: [{name: prod, kubeconfig: prod.kubeconfig, importRunning: false, withoutWorkloads: true}]\n", host),
		filepath.Join(dir, "secret"): s.secret, filepath.Join(dir, "prod.kubeconfig"): string(s.cluster.Kubeconfig()),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	o, err := server.Open(b.Context(), server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: config, Isolated: true}, listen(b))
	if err != nil {
		b.Fatal(err)
	}
	if before := len(o.Tasks); !recording {
		if o.Tasks = slices.DeleteFunc(o.Tasks, func(t server.Task) bool { return t.Name == "records" }); len(o.Tasks) != before-1 {
			b.Fatal("there is no task that records")
		}
	}
	s.hookedServer = hookedServer{connect(b, runServer(b, o)), s.secret}
	client, err := imageclient.New(s.Config)
	if err != nil {
		b.Fatal(err)
	}
	if s.appears, err = client.Watch(b.Context(), metav1.ListOptions{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.appears.Stop)
	return s
}

// push tells of a push while pods are rolled out.
func (s *recordedServer) push(b *testing.B, host string, n int, digests []string) {
	for pod := range 3 {
		s.cluster.Set(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("app-", (3*n+pod)%30), UID: "u"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: host + "/team/app:0"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", ImageID: host + "/team/app@" + digests[n/10], State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			}}},
		})
	}
	sent := time.Now()
	if status, err := s.deliver(host, fmt.Sprintf("team/app:%d", n), digests[n]); err != nil || status != http.StatusAccepted {
		b.Fatalf("delivery %d: %d, %v", n, status, err)
	}
	s.told = append(s.told, time.Since(sent))
	for e := range s.appears.ResultChan() {
		if image, ok := e.Object.(*imagev1.Image); ok && e.Type == watch.Added && image.Name == digests[n] {
			s.imported = append(s.imported, time.Since(sent))
			return
		}
	}
	b.Fatal("the watch ended")
}
