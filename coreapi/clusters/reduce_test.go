package clusters

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// What is held of a pod is what is asked about it, under the name that its cluster gives it.
func TestReducedPod(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app-1", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(since)},
		Spec: corev1.PodSpec{NodeName: "worker", ServiceAccountName: "robot",
			InitContainers: []corev1.Container{{Name: "first", Image: "a:1"}}, Containers: []corev1.Container{{Name: "main", Image: "b:1"}},
			Volumes: []corev1.Volume{{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "c:1"}}}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", ImageID: "b@sha256:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "gone\x1b[31m"}},
		}}},
	}
	obj, err := reduce(in)
	if err != nil {
		t.Fatal(err)
	}
	want := ClusterPodSpec{Namespace: "team", Name: "app-1", UID: "u", NodeName: "worker", ServiceAccountName: "robot", Since: metav1.NewTime(since.Local()), Workload: "Pod/app-1", Containers: []ClusterPodContainer{
		{Name: "first", Image: "a:1"}, {Name: "main", Image: "b:1", ImageID: "b@sha256:1", Waiting: "ErrImagePull", Message: text("gone\x1b[31m")}, {Name: "volume/model", Image: "c:1"},
	}}
	if diff := cmp.Diff(want, obj.(*pod).spec()); diff != "" {
		t.Errorf("the pod (-want +got):\n%s", diff)
	}
	named, err := cache.MetaNamespaceKeyFunc(in)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cache.MetaNamespaceKeyFunc(obj); got != named || err != nil {
		t.Errorf("an informer knows it as %q (%v), and the pod of its cluster as %q", got, err, named)
	}
	if again, err := reduce(obj); again != obj || err != nil {
		t.Errorf("what is reduced is reduced again: %v, %v", again, err)
	}
	changed := in.DeepCopy()
	changed.ResourceVersion, changed.Labels = "8", map[string]string{"a": "b"}
	if obj2, _ := reduce(changed); !alike(obj.(*pod), obj2.(*pod)) {
		t.Error("a change of labels is a change of what runs")
	}
	changed.Status.ContainerStatuses[0].ImageID = "b@sha256:2"
	if obj2, _ := reduce(changed); alike(obj.(*pod), obj2.(*pod)) {
		t.Error("another image is no change of what runs")
	}
}

// What is held of many pods stays small, also where they come over a long time, in which memory is
// collected.
func TestReducedPodsAreSmall(t *testing.T) {
	const pods, most = 20_000, 600 // bytes a pod; it is 300
	held := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range pods {
		app := i % 200
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("team-", app), Name: fmt.Sprintf("application-%d-5d8f9c7b6-%05d", app, i), UID: types.UID(fmt.Sprintf("8c8b2a5e-0000-4000-8000-%012d", i)),
				Annotations: map[string]string{"note": strings.Repeat("x", 1500)}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("worker-%d.example.com", i%100), ServiceAccountName: fmt.Sprint("account-", app)},
		}
		for c := range 2 {
			name, image := fmt.Sprint("container-", c), fmt.Sprintf("registry.example.com/team-%d/application-%d", app, c)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: image + ":1.2.3"})
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, ImageID: fmt.Sprintf("%s@sha256:%064x", image, 2*app+c)})
		}
		obj, err := reduce(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Add(obj); err != nil {
			t.Fatal(err)
		}
		if i%2_000 == 0 {
			runtime.GC()
		}
	}
	each := (heap() - before) / pods
	runtime.KeepAlive(held)
	if each > most {
		t.Errorf("a pod takes %d bytes, want at most %d", each, most)
	}
	t.Logf("a pod takes %d bytes", each)
}
