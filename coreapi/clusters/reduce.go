package clusters

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

const (
	// maxText bounds a text that a cluster tells, in bytes.
	maxText = 512
	// maxContainers is how many containers of a pod are kept.
	maxContainers = 100
)

// reduce is the cache.TransformFunc that keeps of a pod what is asked about it. The names of the object stay those of the
// pod, by which an informer knows it.
func reduce(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // reduced already, or the news that it is gone
	}
	p := &ClusterPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion},
		Spec: ClusterPodSpec{
			Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID),
			NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName, Since: pod.CreationTimestamp,
			Containers: make([]ClusterPodContainer, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)+len(pod.Spec.EphemeralContainers)),
		},
	}
	usage.Containers(pod, func(name, image string, status corev1.ContainerStatus) {
		if len(p.Spec.Containers) == maxContainers {
			return
		}
		c := ClusterPodContainer{Name: text(name), Image: text(image), ImageID: text(status.ImageID)}
		if status.State.Waiting != nil {
			c.Waiting = text(status.State.Waiting.Reason)
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	})
	return p, nil
}

// text is what a cluster tells, as it is kept.
func text(s string) string { return printable.Line(s, maxText) }
