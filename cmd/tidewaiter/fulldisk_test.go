//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// serveUntil serves a directory at an address until the returned function is called.
// The configuration needs no file.
func serveUntil(t *testing.T, dir, address string) (config *restclient.Config, url string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Open(t.Context(), server.Options{DataDir: dir, ConfigFile: servertest.WriteConfig(t, ownPodsOnly)}, listener)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, func(context.Context) error { close(ready); return nil }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return s.Web.ClientConfig(), listener.Addr().String(), stop
}

// A server whose standard output and error are on a full disk starts, and answers.
func TestServeWithAFullOutput(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(self, "serve", "--data-dir", dir, "--secure-port", "0")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), serveEnv+"=1"), full, full
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	answered := errors.New("it has no kubeconfig yet")
	servertest.Eventually(t, "the server answers", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the server ended: %v; %v", err, answered)
		default:
		}
		if config, err := kubeconfigConfig(server.KubeconfigPath(dir)); err == nil {
			answered = connect(t, newAPITarget(config).Config).do(http.MethodGet, "/readyz", "", "", http.StatusOK)
		}
		return answered == nil
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "node-1", Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
}

func newService(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
}

// TestServeOnFullDisk: a server starts on a disk that is full to the last byte. It
// says so, serves reads and deletions, refuses the rest with 503, and needs nobody
// once there is room again.
func TestServeOnFullDisk(t *testing.T) {
	dbtest.OnSmallDisk(t, 96<<20, func(disk string) {
		ctx, dir := t.Context(), filepath.Join(disk, "data")
		config, address, stop := serveUntil(t, dir, "127.0.0.1:0")
		images, err := imageclient.New(config)
		if err != nil {
			t.Fatal(err)
		}
		core := kubernetes.NewForConfigOrDie(config).CoreV1()
		image := createImage(t, images, "first")
		if _, err := core.Services("default").Create(ctx, newService("web"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := core.Pods("default").Create(ctx, newPod("web"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		servertest.Eventually(t, "the pod among those of clusters", func() bool {
			return kubernetes.NewForConfigOrDie(config).RESTClient().Get().AbsPath("/apis/tidewaiter.dev/v1/clusterpods/local:default:web").Do(ctx).Error() == nil
		})
		stop()
		kubeconfig := filepath.Join(dir, "admin.kubeconfig")
		before, err := os.Stat(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		ballast := dbtest.FillDisk(t, disk)

		config, _, stop = serveUntil(t, dir, address)
		if images, err = imageclient.New(config); err != nil {
			t.Fatal(err)
		}
		client := kubernetes.NewForConfigOrDie(config)
		core = client.CoreV1()
		ready := func(query string) (string, error) {
			body, err := client.RESTClient().Get().AbsPath("/readyz").Param("verbose", "").Param("exclude", query).DoRaw(ctx)
			return string(body), err
		}
		if body, err := ready("nothing"); err == nil || !strings.Contains(body, "[-]database-writes failed") {
			t.Errorf("/readyz?verbose: %v\n%s", err, body)
		}
		if body, err := ready("database-writes"); err != nil {
			t.Errorf("/readyz without the check: %v\n%s", err, body)
		}
		if got, err := images.Get(ctx, image.Name, metav1.GetOptions{}); err != nil || got.Name != image.Name {
			t.Errorf("get: %v", err)
		}
		if after, err := os.Stat(kubeconfig); err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("the kubeconfig was written again: %v", err)
		}
		// Without the client's own patience: it tries for a minute.
		create := func(resource string, obj runtime.Object) error {
			return core.RESTClient().Post().MaxRetries(0).Namespace("default").Resource(resource).Body(obj).Do(ctx).Error()
		}
		if err := create("services", newService("second")); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("creating a service: %v, want 503 that says why", err)
		}
		if err := create("pods", newPod("second")); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("creating a pod: %v, want 503", err)
		}
		// A pod on a node is first marked as being deleted, an update.
		if err := core.Pods("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting a pod: %v", err)
		}
		if err := core.Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting a service: %v", err)
		}
		// Until the server has read its pods, it is unknown whether they use the image.
		servertest.Eventually(t, "the deletion of an image", func() bool { return images.Delete(ctx, image.Name, metav1.DeleteOptions{}) == nil })

		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := create("services", newService("second")); err != nil {
			t.Errorf("creating a service with room again: %v", err)
		}
		if body, err := ready("nothing"); err != nil {
			t.Errorf("/readyz with room again: %v\n%s", err, body)
		}

		// The address has changed, and the kubeconfig cannot be written.
		stop()
		dbtest.FillDisk(t, disk)
		config, _, _ = serveUntil(t, dir, "127.0.0.1:0")
		if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Services("default").Get(ctx, "second", metav1.GetOptions{}); err != nil {
			t.Errorf("get at another address: %v", err)
		}
	})
}
