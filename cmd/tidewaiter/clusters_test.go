package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/internal/server"
)

// What pods of a cluster run is imported from a registry that wants credentials, with the pull
// secret that the pod has. What cannot be had is listed with the reason, in the cluster's words and
// in ours. The secret is nowhere afterwards.
func TestWhatRunsInAClusterIsImported(t *testing.T) {
	const password = "correct-horse-battery-staple"
	log := logAt(t, 10)
	registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Username: "team", Password: password}))
	image, err := sample.New(sample.Spec{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	digest := registry.Push("team/app:1", image)
	quiet, err := sample.New(sample.Spec{Name: "quiet"})
	if err != nil {
		t.Fatal(err)
	}
	quietDigest := registry.Push("team/quiet:1", quiet)
	registry.Push("team/gone:2", quiet) // the repository is there

	pod := func(name, image string, waiting *corev1.ContainerStateWaiting) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, CreationTimestamp: metav1.Now()}, Spec: corev1.PodSpec{
			ServiceAccountName: "default", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, Containers: []corev1.Container{{Name: "main", Image: registry.Host + "/" + image}},
		}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: waiting}}}
		return p
	}
	login := base64.StdEncoding.EncodeToString([]byte("team:" + password))
	stored := fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, registry.Host, login)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: stored}}
	forms := []string{password, login, base64.StdEncoding.EncodeToString(stored)}
	prod, other := clustertest.New(t), clustertest.New(t)
	prod.Set(secret, pod("runs", "team/app:1", nil), pod("fails", "team/gone:1", &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "manifest unknown\x1b[31m"}))
	other.Set(secret, pod("runs", "team/quiet:1", nil))

	dir := t.TempDir()
	for name, c := range map[string]*clustertest.Cluster{"prod": prod, "other": other} {
		if err := os.WriteFile(filepath.Join(dir, name+".kubeconfig"), c.Kubeconfig(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("clusters:\n- {name: prod, kubeconfig: prod.kubeconfig}\n- {name: other, kubeconfig: other.kubeconfig, importRunning: false}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	server := serveWith(t, tidewaiterserver.Options{DataDir: data, ConfigFile: config, Isolated: true}, listener)
	images, err := imageclient.New(server)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(what string, want []string, args ...string) {
		t.Helper()
		var out string
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			var code int
			code, out, _ = tidewaiter(t, append(args, "--data-dir", data)...)
			for _, w := range want {
				if code != 0 || !strings.Contains(out, w) {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			t.Fatalf("%s lacks one of %q:\n%s", what, want, out)
		}
	}
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := images.Get(ctx, digest, metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("what runs is not imported; the log:\n%s", log)
	}
	shows("the pod whose image cannot be had", []string{"prod:team:fails", "ErrImagePull", "with pull secrets: ", "not found: the registry"}, "pods", registry.Host+"/team/gone:1")
	shows("what the cluster says", []string{"manifest unknown"}, "pods", "-o", "wide", registry.Host+"/team/gone:1")
	shows("the queue", []string{"cluster/prod", registry.Host + "/team/gone:1", "not found"}, "spool", "list")
	shows("the other cluster", []string{"other:team:runs"}, "pods", registry.Host+"/team/quiet:1")

	// The kubelet tells what runs.
	runs := pod("runs", "team/app:1", nil)
	runs.Status.ContainerStatuses[0].ImageID = registry.Host + "/team/app@" + digest
	prod.Set(runs)
	shows("the pod that runs", []string{"prod:team:runs", digest[7:19], "NoPolicy"}, "pods", digest)
	client, err := kubernetes.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := client.RESTClient().Get().AbsPath(clusterPodsPath).Param("fieldSelector", "image="+digest).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"cluster":"prod"`, `"namespace":"team"`, `"name":"runs"`, `"image":"` + registry.Host + `/team/app:1"`, `"digest":"` + digest + `"`, `"verified":"NoPolicy"`, `"since":"`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the raw list lacks %s: %s", want, raw)
		}
	}
	if list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "used-by=prod/team"}); err != nil || len(list.Items) != 1 || list.Items[0].Name != digest {
		t.Errorf("used by the namespace: %v, %v", list, err)
	}
	if _, err := images.Get(t.Context(), quietDigest, metav1.GetOptions{}); err == nil {
		t.Error("what runs in a cluster with importRunning: false was imported")
	}

	hasNone := func(where, text string) {
		for _, form := range forms {
			if strings.Contains(text, form) {
				t.Errorf("%s has the pull secret", where)
			}
		}
	}
	if !strings.Contains(log.String(), "Response Body") || !slices.Contains(prod.Asked(), "secrets/team/pull") {
		t.Error("the log has no answers, or the secret was not read: this proves nothing")
	}
	hasNone("the log", log.String())
	hasNone("the raw list", string(raw))
	files, err := filepath.Glob(filepath.Join(data, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		hasNone(filepath.Base(file), string(b))
	}
}

// What the server's own pods run is imported, too, unless the configuration says otherwise.
func TestWhatOwnPodsRunIsImported(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{Name: "own"})
	if err != nil {
		t.Fatal(err)
	}
	digest := registry.Push("team/own:1", image)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: registry.Host + "/team/own:1"}}}}
	for _, wanted := range []bool{false, true} {
		dir := t.TempDir()
		config := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, "importRunning: %t\n", wanted), 0o600); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := tidewaiterserver.Open(t.Context(), tidewaiterserver.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: config, Isolated: true}, listener)
		if err != nil {
			t.Fatal(err)
		}
		server := runServer(t, s)
		client, err := kubernetes.NewForConfig(server)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		images, err := imageclient.New(server)
		if err != nil {
			t.Fatal(err)
		}
		if !wanted {
			// The index has told of the pod before it counts it.
			for s.Usage.PodsUsing(nil, []reference.Reference{{Host: registry.Host, Repository: "team/own", Tag: "1"}}) == 0 {
				time.Sleep(time.Millisecond)
			}
			if registry.Count("") > 0 {
				t.Error("the registry was asked although that is not wanted")
			}
			continue
		}
		err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := images.Get(ctx, digest, metav1.GetOptions{})
			return err == nil, nil
		})
		if err != nil {
			t.Error("what the server's own pod runs is not imported")
		}
	}
}

// A server whose configuration names a cluster counts its pods, lists them with the verdict about
// what they run, and knows where an image is used.
func TestClusterOfTheConfiguration(t *testing.T) {
	t.Parallel()
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
	if err := os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- name: prod\n  kubeconfig: %s\n", tidewaiterserver.KubeconfigPath(clusterDir)), 0o600); err != nil {
		t.Fatal(err)
	}
	server := serveWith(t, tidewaiterserver.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: config}, listen())
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
	for _, want := range []string{"prod:team:app-1", "main", "registry.example.com/team/app:1", "aaaaaaaaaaaa", "NoPolicy"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("tidewaiter pods exits with %d and lacks %q:\n%s", code, want, out)
		}
	}
	soon(t, "all pods of the cluster are known", func() bool {
		code, out, _ = tidewaiter(t, "describe", "--data-dir", filepath.Join(dir, "data"), digest)
		return !strings.Contains(out, "are not known yet")
	})
	for _, want := range []string{"Pods:", " 1\n", "\nRunning in:\n  CLUSTER   NAMESPACE   PODS   SINCE\n  prod      team        1      "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("tidewaiter describe exits with %d and lacks %q:\n%s", code, want, out)
		}
	}
}
