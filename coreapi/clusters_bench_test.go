package coreapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// BenchmarkFollowedPods reports what a pod of a cluster costs in memory once all are known, and the
// server with it: 100,000 pods of two containers, on 1,000 images and 2,000 nodes, each as large as
// usual.
func BenchmarkFollowedPods(b *testing.B) {
	const pods = 100_000
	labels := map[string]string{}
	for i := range 8 {
		labels[fmt.Sprint("app.kubernetes.io/label-", i)] = strings.Repeat("v", 40)
	}
	pod := func(i int) *corev1.Pod {
		app := i % 1000
		p := &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprint("team-", app%200), Name: fmt.Sprintf("application-%d-5d8f9c7b6-%05d", app, i), UID: types.UID(fmt.Sprintf("8c8b2a5e-0000-4000-8000-%012d", i)),
				ResourceVersion: fmt.Sprint(i + 1), CreationTimestamp: metav1.Now(), Labels: labels, Annotations: map[string]string{"note": strings.Repeat("x", 1500)},
			},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("worker-%d.example.com", i%2000), ServiceAccountName: fmt.Sprint("account-", app)},
		}
		for c := range 2 {
			name := fmt.Sprint("container-", c)
			image := fmt.Sprintf("registry.example.com/team-%d/application-%d-%d", app%200, app, c)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: image + ":1.2.3", Args: []string{strings.Repeat("a", 500)}})
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, ImageID: fmt.Sprintf("%s@sha256:%064x", image, 2*app+c)})
		}
		return p
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !strings.HasSuffix(req.URL.Path, "/pods"):
			w.WriteHeader(http.StatusNotFound)
			return
		case req.URL.Query().Get("sendInitialEvents") == "":
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		to := json.NewEncoder(w)
		for i := range pods {
			_ = to.Encode(map[string]any{"type": "ADDED", "object": pod(i)})
		}
		_ = to.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
			"resourceVersion": fmt.Sprint(pods), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}})
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		b.StopTimer()
		d := dbtest.Open(b)
		before := heap()
		b.StartTimer()
		s := startOn(b, d, coreapi.Options{Clusters: clusters.Options{Sources: []clusters.Source{{Name: "prod", Connect: func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }}}}})
		go s.api.Clusters.Run(b.Context(), nil)
		for !s.api.Clusters.Synced() || s.api.Usage.PodsUsing([]string{fmt.Sprintf("sha256:%064x", 0)}, nil) < pods/1000 {
			time.Sleep(100 * time.Millisecond)
		}
		b.StopTimer()
		time.Sleep(3 * time.Second) // what follows the database is behind
		after := heap()
		b.ReportMetric(float64(after-before)/(1<<20), "MiB")
		b.ReportMetric(float64(after-before)/pods, "B/pod")
		b.StartTimer()
	}
}
