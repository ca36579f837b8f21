package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A patch that cannot be merged into its object changes nothing and is answered in every encoding,
// as Kubernetes does: with 500 for most of these. Some of them panic in Kubernetes' own merge.
func TestPatchesThatCannotBeMerged(t *testing.T) {
	t.Parallel()
	config := serve(t)
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"} {
		t.Run(contentType, func(t *testing.T) {
			config := rest.CopyConfig(config)
			config.AcceptContentTypes = contentType
			core := kubernetes.NewForConfigOrDie(config).CoreV1()
			name := strings.NewReplacer("/", "-", ".", "-").Replace(contentType)
			pod := newPod(name)
			pod.Finalizers = []string{"example.com/held"}
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
			if _, err := core.Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, patch := range []string{
				`{"spec":{"containers":[{"image":"x"}]}}`,
				`{"spec":{"containers":[{"$patch":"delete"}]}}`,
				`{"spec":{"containers":[{"name":"app","env":[{"value":"x"}]}]}}`,
				`{"spec":{"containers":[{"name":"app","ports":[{}]}]}}`,
				`{"spec":{"containers":["app"]}}`, `{"spec":{"containers":[1,{"name":"app"}]}}`, `{"spec":{"containers":[null]}}`, `{"spec":{"containers":[[]]}}`,
				`{"spec":{"containers":{"name":"app"}}}`, `{"spec":{"containers":"app"}}`, `{"spec":"x"}`, `{"spec":[]}`, `{"metadata":7}`,
				`{"spec":{"$setElementOrder/containers":[{}],"containers":[{"name":"app"}]}}`,
				`{"spec":{"$setElementOrder/containers":["app"],"containers":[{"name":"app"}]}}`,
				`{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"a"},{"name":"b"}]}}`,
				`{"spec":{"$setElementOrder/bogus":[{"name":"a"}],"bogus":[{"name":"a"}]}}`, `{"spec":{"$setElementOrder/nodeName":["a"]}}`,
				`{"spec":{"$deleteFromPrimitiveList/containers":[{"name":"app"}]}}`, `{"spec":{"$deleteFromPrimitiveList/bogus":["a"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[{}]}}`,
				`{"metadata":{"$deleteFromPrimitiveList/finalizers":[1]}}`, `{"metadata":{"finalizers":[{}]}}`, `{"metadata":{"finalizers":["a",1]}}`, `{"metadata":{"$setElementOrder/finalizers":[1,"a"],"finalizers":["a"]}}`,
				`{"spec":{"volumes":[{"name":"v","$retainKeys":["name"],"emptyDir":{}}]}}`, `{"spec":{"volumes":[{"name":"v","$retainKeys":[1,{}]}]}}`, `{"spec":{"volumes":[{"name":{}}]}}`,
				`{"spec":{"volumes":[{"name":["v"]}]}}`, `{"metadata":{"ownerReferences":[{"name":"x"}]}}`, `{"metadata":{"labels":[]}}`, `{"bogus":{"a":[{}]}}`, `{"spec":{"$patch":"replace"}}`,
				`{"spec":{"containers":[{"$patch":"replace"},{"image":"x"}]}}`,
			} {
				var code int
				err := core.RESTClient().Patch(types.StrategicMergePatchType).Namespace("default").Resource("pods").Name(name).
					Param("dryRun", "All").Body([]byte(patch)).Do(t.Context()).StatusCode(&code).Error()
				if code == 0 && (err == nil || !strings.Contains(err.Error(), "caused apiserver to panic")) {
					t.Errorf("%s: %v", patch, err)
				}
			}
			_, err := core.Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"image":"x"}]}}`), metav1.PatchOptions{})
			if err == nil || !strings.Contains(err.Error(), "does not contain declared merge key: name") {
				t.Errorf("the error does not say what is missing: %v", err)
			}
			if _, err := core.Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
				t.Errorf("a patch that can be merged: %v", err)
			}
		})
	}
}
