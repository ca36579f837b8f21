package coreapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func clusterPod(namespace, name, account, node, image string, secrets ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		ServiceAccountName: account, NodeName: node, Containers: []corev1.Container{{Name: "main", Image: image}},
	}}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

func pullSecret(namespace, name, registry, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"username":"u","password":%q}}}`, registry, password)},
	}
}

func node(name, os, architecture string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: os, Architecture: architecture}}}
}

// The credentials for what pods run are those of the pods that name it now, read when they are
// asked for: of the pod and of its service account, and of nobody else's.
func TestPullSecretsOfPods(t *testing.T) {
	t.Parallel()
	c := clustertest.New(t)
	c.Set(
		pullSecret("team", "of-pod", "registry.example.com", "pod"), pullSecret("team", "of-account", "quay.example.com", "account"),
		pullSecret("team", "of-port", "port.example.com:443", "port"), pullSecret("team", "of-hub", "registry-1.docker.io", "hub"),
		pullSecret("team", "unused", "other.example.com", "unused"), pullSecret("shop", "of-pod", "registry.example.com", "shop"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "odd", Name: "odd"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("hunter2")}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "robot"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-account"}}},
		clusterPod("team", "a", "robot", "", "registry.example.com/app:1", "of-pod", "of-port", "of-hub", "missing"),
		// the same account
		clusterPod("team", "b", "robot", "", "registry.example.com/app:1", "of-pod", "of-port", "of-hub"),
		clusterPod("shop", "a", "default", "", "registry.example.com/other:1", "of-pod"),
		clusterPod("odd", "a", "default", "", "registry.example.com/odd:1", "odd"),
	)
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: c.Config})
	keychains := func(cluster, image string) ([]authn.Keychain, error, error) {
		ref, err := reference.Parse(image)
		if err != nil {
			t.Fatal(err)
		}
		return f.api.Clusters.Keychains(t.Context(), cluster, ref)
	}
	var all []authn.Keychain
	eventually(t, "the pods are known", func() (bool, any) {
		var unread, err error
		all, unread, err = keychains("prod", "registry.example.com/app:1")
		return len(all) == 1 && err == nil && unread == nil && f.api.Usage.Complete(), fmt.Sprint(len(all), unread, err)
	})
	for registry, want := range map[string]string{"registry.example.com": "pod", "quay.example.com": "account", "other.example.com": "", "port.example.com": "port", "index.docker.io": "hub"} {
		repository, err := name.NewRepository(registry + "/app")
		if err != nil {
			t.Fatal(err)
		}
		auth, err := all[0].Resolve(repository)
		if err != nil {
			t.Fatal(err)
		}
		credentials, err := auth.Authorization()
		if err != nil || credentials.Password != want {
			t.Errorf("for %s the password is %q (%v), want %q", registry, credentials.Password, err, want)
		}
	}
	if asked := c.Asked(); slices.Contains(asked, "secrets/team/unused") || slices.Contains(asked, "secrets/shop/of-pod") {
		t.Errorf("secrets of others were read: %q", asked)
	}
	for _, nobody := range [][2]string{{"local", "registry.example.com/app:1"}, {"gone", "registry.example.com/app:1"}, {"prod", "registry.example.com/app:2"}} {
		if got, unread, err := keychains(nobody[0], nobody[1]); len(got) != 0 || unread != nil || err != nil {
			t.Errorf("%v: %d, %v, %v", nobody, len(got), unread, err)
		}
	}
	// What is said of a secret that cannot be read has nothing of it.
	got, unread, err := keychains("prod", "registry.example.com/odd:1")
	if want := "those of service account default in namespace odd of cluster prod do not have the format of kubectl create secret docker-registry"; len(got) != 0 || err != nil || fmt.Sprint(unread) != want {
		t.Errorf("%d, %v, %v", len(got), unread, err)
	}
	c.Forbid("secrets")
	if got, unread, err := keychains("prod", "registry.example.com/app:1"); len(got) != 0 || unread == nil || err != nil {
		t.Errorf("a credential that may not read secrets: %d, %v, %v", len(got), unread, err)
	}
}

// Whatever pods of one namespace name, and however many they are, the pull secrets of another are
// read, and what is said of those that are not is true.
func TestPullSecretsOfOneNamespaceKeepOutNoOthers(t *testing.T) {
	t.Parallel()
	c := clustertest.New(t)
	const image = "registry.example.com/app:1"
	missing := []string{strings.Repeat("a", 1200<<10), "", "a/b"}
	for i := range 100 {
		missing = append(missing, fmt.Sprint("missing-", i))
	}
	c.Set(pullSecret("team", "of-pod", "registry.example.com", "pod"), clusterPod("team", "a", "robot", "", image, "of-pod"))
	for i := range 30 {
		c.Set(clusterPod("mallory", fmt.Sprint("m", i), fmt.Sprint("sa", i), "", image, missing[min(i, 3):]...))
	}
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: c.Config})
	ref, err := reference.Parse(image)
	if err != nil {
		t.Fatal(err)
	}
	repository, err := name.NewRepository("registry.example.com/app")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pods are known", func() (bool, any) { return f.api.Usage.Complete(), nil })
	all, unread, err := f.api.Clusters.Keychains(t.Context(), "prod", ref)
	if err != nil || !strings.Contains(fmt.Sprint(unread), "only the first 10 pull secrets") {
		t.Errorf("%.500v, %.500v", unread, err)
	}
	if asked := len(c.Asked()); asked > 8*11 {
		t.Errorf("%d objects were read", asked)
	}
	for _, k := range all {
		if auth, err := k.Resolve(repository); err == nil && auth != authn.Anonymous {
			return
		}
	}
	t.Errorf("of %d keychains none is the honest one's", len(all))
}

// A pod that runs an index counts for the platform of its node, also of one that is known only
// later; a credential that may not read nodes leaves platforms unknown and pods counted.
func TestPlatformOfTheNodesOfPods(t *testing.T) {
	t.Parallel()
	c, blind := clustertest.New(t), clustertest.New(t)
	blind.Forbid("nodes")
	for _, c := range []*clustertest.Cluster{c, blind} {
		c.Set(node("arm", "linux", "arm64"), clusterPod("team", "a", "default", "arm", "registry.example.com/app@"+digestA),
			clusterPod("team", "b", "default", "late", "registry.example.com/app@"+digestA))
	}
	f := follow(t, dbtest.Open(t), clusters.Source{Name: "prod", Connect: c.Config}, clusters.Source{Name: "blind", Connect: blind.Config})
	count := func(what, digest string, want int) {
		t.Helper()
		f.uses(t, digest, want)
	}
	count("all", digestA, 4)
	count("on arm64: those of unknown nodes, too", digestA+"@linux/arm64", 4)
	count("on amd64", digestA+"@linux/amd64", 3)
	c.Set(node("late", "linux", "amd64"))
	count("the late node is known", digestA+"@linux/arm64", 3)
	count("the late node is known", digestA+"@linux/amd64", 3)
	client := dynamic.NewForConfigOrDie(f.config).Resource(clusters.GroupVersion.WithResource("clusterpods"))
	for pod, want := range map[string]any{"prod:team:a": "linux/arm64", "prod:team:b": "linux/amd64", "blind:team:a": nil} {
		obj, err := client.Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := obj.Object["spec"].(map[string]any)["platform"]; got != want {
			t.Errorf("the platform of %s is %v, want %v", pod, got, want)
		}
	}
}
