package clusters

import (
	"unique"

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
	namespace := text(pod.Namespace)
	p := &ClusterPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion},
		Spec: ClusterPodSpec{
			Namespace: namespace, Name: pod.Name, UID: string(pod.UID),
			NodeName: text(pod.Spec.NodeName), ServiceAccountName: text(pod.Spec.ServiceAccountName), Since: pod.CreationTimestamp,
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
			if imageAtFault[c.Waiting] {
				c.Message = text(status.State.Waiting.Message)
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	})
	return p, nil
}

// imageAtFault are the reasons for which a container waits that are about its image, as kubelets write them
// (k8s.io/kubernetes/pkg/kubelet/images).
var imageAtFault = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true, "ImageInspectError": true,
	"RegistryUnavailable": true, "SignatureValidationFailed": true,
}

// reduceNode is the cache.TransformFunc that keeps the platform of a node.
func reduceNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil // the news that it is gone
	}
	info := corev1.NodeSystemInfo{OperatingSystem: text(node.Status.NodeInfo.OperatingSystem), Architecture: text(node.Status.NodeInfo.Architecture)}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion},
		Status:     corev1.NodeStatus{NodeInfo: info},
	}, nil
}

// platformOf is that of a node as os/architecture, "" where it is not told.
func platformOf(node *corev1.Node) string {
	info := node.Status.NodeInfo
	if info.OperatingSystem == "" || info.Architecture == "" {
		return ""
	}
	return info.OperatingSystem + "/" + info.Architecture
}

// text is what a cluster tells, as it is kept. Many pods tell the same.
func text(s string) string { return unique.Make(printable.Line(s, maxText)).Value() }
