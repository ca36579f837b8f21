package main

import (
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// leads is what the tag v1 of a stream has led to, the newest first, by the last digit of digests.
func leads(stream *unstructured.Unstructured) (all string) {
	histories, _, _ := unstructured.NestedSlice(stream.Object, "status", "tags")
	for _, h := range histories {
		items, _, _ := unstructured.NestedSlice(h.(map[string]any), "items")
		for _, item := range items {
			image := item.(map[string]any)["image"].(string)
			all += image[len(image)-1:]
		}
	}
	return all
}

// Each repository of which a tag is known is a stream, unless somebody has made one for it; an
// informer over streams sees where tags lead whenever they move.
func TestStreamsFollowRepositories(t *testing.T) {
	t.Parallel()
	config := serve(t)
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	resource := imagev1.GroupVersion.WithResource("imagestreams")
	factory := dynamicinformer.NewDynamicSharedInformerFactory(objects, 0)
	informer := factory.ForResource(resource)
	informer.Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	seen := func(key, want string) {
		t.Helper()
		soon(t, key+" leads to "+want, func() bool {
			obj, ok, _ := informer.Informer().GetStore().GetByKey(key)
			return ok && leads(obj.(*unstructured.Unstructured)) == want
		})
	}
	move := func(repository string, n int) {
		t.Helper()
		ref, err := reference.Parse(repository + ":v1")
		if err != nil {
			t.Fatal(err)
		}
		tag, err := client.GetTag(t.Context(), tags.Name(ref), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			tag = tags.New(ref)
		} else if err != nil {
			t.Fatal(err)
		}
		tags.Lead(tag, ref, "sha256:"+strings.Repeat("0", 63)+string(rune('0'+n)), metav1.Now())
		if _, err := client.UpdateTag(t.Context(), tag, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	move("registry.example.com:5000/team/app", 1)
	seen("default/registry.example.com_5000--team--app", "1")
	for n := 2; n < 10; n++ {
		move("registry.example.com:5000/team/app", n)
	}
	seen("default/registry.example.com_5000--team--app", "987654321")

	mine := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "image.openshift.io/v1", "kind": "ImageStream",
		"metadata": map[string]any{"name": "mine"}, "spec": map[string]any{"dockerImageRepository": "registry.example.com/mine"}}}
	if _, err := objects.Resource(resource).Namespace("team").Create(t.Context(), mine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	move("registry.example.com/mine", 1)
	seen("team/mine", "1")
	move("registry.example.com/third", 1)
	seen("default/registry.example.com--third", "1")
	if _, ok, _ := informer.Informer().GetStore().GetByKey("default/registry.example.com--mine"); ok {
		t.Error("a repository that a stream follows has got another")
	}
	if err := objects.Resource(resource).Namespace("team").Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the stream is gone", func() bool {
		_, ok, _ := informer.Informer().GetStore().GetByKey("team/mine")
		return !ok
	})
}
