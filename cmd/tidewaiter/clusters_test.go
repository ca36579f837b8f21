package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

// A server whose configuration names a cluster counts its pods, lists them with the verdict about what they run, and
// knows where an image is used.
func TestClusterOfTheConfiguration(t *testing.T) {
	listen := func() net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	clusterDir, dir := t.TempDir(), t.TempDir()
	cluster, err := kubernetes.NewForConfig(serveOn(t, clusterDir, listen()))
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app-1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/team/app:1"}}}}
	if pod, err = cluster.CoreV1().Pods("team").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ImageID: "registry.example.com/team/app@" + digest}}
	if _, err := cluster.CoreV1().Pods("team").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- name: prod\n  kubeconfig: %s\n", kubeconfigPath(clusterDir)), 0o600); err != nil {
		t.Fatal(err)
	}
	server := serveWith(t, serverOptions{dataDir: filepath.Join(dir, "data"), configFile: config}, listen())
	images, err := imageclient.New(server)
	if err != nil {
		t.Fatal(err)
	}
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: "registry.example.com/team/app@" + digest}
	if _, err := images.Create(t.Context(), image, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := images.List(ctx, metav1.ListOptions{FieldSelector: "used-by=prod/team"})
		return err == nil && len(list.Items) == 1, err
	})
	if err != nil {
		t.Fatalf("the pod is not seen: %v", err)
	}
	code, out, _ := tidewaiter(t, "pods", "--data-dir", filepath.Join(dir, "data"), "registry.example.com/team/app")
	for _, want := range []string{"prod:team:app-1", "main", "registry.example.com/team/app:1", "sha256:aaaaaaaaaaaa", "Unsigned"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("tidewaiter pods exits with %d and lacks %q:\n%s", code, want, out)
		}
	}
}
