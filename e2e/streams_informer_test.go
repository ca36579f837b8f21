package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// listsFirst lists and watches as informers did before client-go 1.35.
type listsFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how client-go asks for it.
func (listsFirst) IsWatchListSemanticsUnSupported() bool { return true }

// What informers hold of streams is what a list shows, whichever way they list: after tags moved,
// streams were made, changed and deleted, and a server that was killed came back.
func TestInformersOverStreams(t *testing.T) {
	t.Parallel()
	data, port := t.TempDir(), harness.FreePort(t)
	s, r := harness.StartServerOn(t, data, "--secure-port", port), registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 6)
	move := func(repository string, i int) {
		t.Helper()
		r.Push(t, repository+":v1", imgs[i])
		s.Import(t, "--kubeconfig", s.Kubeconfig, r.Host+"/"+repository+":v1")
	}
	move("team/app", 0)
	move("team/web", 0)

	client, err := dynamic.NewForConfig(s.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	streams := client.Resource(schema.GroupVersionResource{Group: "image.openshift.io", Version: "v1", Resource: "imagestreams"})
	all := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return streams.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return streams.Watch(ctx, options)
		},
	}
	informers := map[string]cache.SharedInformer{
		"that list":  cache.NewSharedInformer(listsFirst{all}, &unstructured.Unstructured{}, 0),
		"that watch": cache.NewSharedInformer(all, &unstructured.Unstructured{}, 0),
	}
	for _, informer := range informers {
		go informer.RunWithContext(t.Context())
	}
	same := func(when string) {
		t.Helper()
		for name, informer := range informers {
			harness.Eventually(t, func() error {
				list, err := streams.List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				listed, held := map[string]any{}, map[string]any{}
				for i := range list.Items {
					listed[list.Items[i].GetNamespace()+"/"+list.Items[i].GetName()] = list.Items[i].Object
				}
				for _, obj := range informer.GetStore().List() {
					stream := obj.(*unstructured.Unstructured)
					held[stream.GetNamespace()+"/"+stream.GetName()] = stream.Object
				}
				if diff := cmp.Diff(listed, held); diff != "" {
					return fmt.Errorf("%s, informers %s hold other streams than a list (-list +informer):\n%s", when, name, diff)
				}
				return nil
			})
		}
	}
	// leads waits until a tag of a stream leads to an image in all informers.
	leads := func(name, tag string, i int) {
		t.Helper()
		want := images.Digest(t, imgs[i]).String()
		for of, informer := range informers {
			harness.Eventually(t, func() error {
				for _, obj := range informer.GetStore().List() {
					stream := obj.(*unstructured.Unstructured)
					if b, _ := json.Marshal(stream.Object["status"]); stream.GetName() == name {
						for _, history := range slice(stream, "status", "tags") {
							if items, _, _ := unstructured.NestedSlice(history.(map[string]any), "items"); history.(map[string]any)["tag"] == tag && len(items) > 0 && items[0].(map[string]any)["image"] == want {
								return nil
							}
						}
						return fmt.Errorf("informers %s: %s:%s does not lead to %s: %s", of, name, tag, want, b)
					}
				}
				return fmt.Errorf("informers %s hold no %s", of, name)
			})
		}
	}
	same("at the beginning")

	mine := `{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":"mine","namespace":"default"},
		"spec":{"tags":[{"name":"prod","from":{"kind":"DockerImage","name":"` + r.Host + `/team/app:v1"}}]}}`
	s.KubectlStdin(t, mine, "create", "-f", "-")
	for i := 1; i <= 3; i++ {
		move("team/app", i)
		leads("mine", "prod", i)
	}
	same("after tags moved")
	s.KubectlStdin(t, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":"other","namespace":"default"}}`, "create", "-f", "-")
	same("after a stream was made")

	s.Kill(t)
	s = harness.StartServerOn(t, data, "--secure-port", port)
	move("team/app", 4)
	leads("mine", "prod", 4)
	s.Kubectl(t, "delete", "is", "other")
	same("after the server was killed")
	s.Kubectl(t, "delete", "is", "mine")
	s.KubectlStdin(t, mine, "create", "-f", "-")
	move("team/app", 5)
	leads("mine", "prod", 5)
	same("at the end")
}

// slice is a list in an object.
func slice(object *unstructured.Unstructured, fields ...string) []any {
	all, _, _ := unstructured.NestedSlice(object.Object, fields...)
	return all
}
