package clusters

import (
	"strings"
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

// pod is what is held of a pod of a cluster, for as long as it exists. A cluster may have 100,000, so what many of them
// share is held once, and what is told of them is put together when it is stored.
type pod struct {
	key           string // NAMESPACE/NAME
	uid           string
	since         int64 // in seconds since 1970
	node, account unique.Handle[string]
	containers    []unique.Handle[ClusterPodContainer] // most pods are one of several alike
}

// GetObjectMeta makes a pod a metav1.ObjectMetaAccessor, for an informer finds its name by that. The name has the
// namespace in it, so that the informer's key of the pod is this string and no copy.
func (p *pod) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: p.key} }

// spec is what is stored of the pod, but for its cluster and its platform.
func (p *pod) spec() ClusterPodSpec {
	namespace, name, _ := strings.Cut(p.key, "/")
	spec := ClusterPodSpec{
		Namespace: namespace, Name: name, UID: p.uid, NodeName: p.node.Value(), ServiceAccountName: p.account.Value(),
		Since: metav1.Unix(p.since, 0), Containers: make([]ClusterPodContainer, len(p.containers)),
	}
	for i, c := range p.containers {
		spec.Containers[i] = c.Value()
	}
	return spec
}

// reduce is the cache.TransformFunc that keeps of a pod what is asked about it.
func reduce(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // reduced already, or the news that it is gone
	}
	p := &pod{
		key: text(in.Namespace) + "/" + in.Name, uid: string(in.UID), since: in.CreationTimestamp.Unix(),
		node: unique.Make(text(in.Spec.NodeName)), account: unique.Make(text(in.Spec.ServiceAccountName)),
		containers: make([]unique.Handle[ClusterPodContainer], 0, min(maxContainers, len(in.Spec.InitContainers)+len(in.Spec.Containers)+len(in.Spec.EphemeralContainers))),
	}
	usage.Containers(in, func(name, image string, status corev1.ContainerStatus) {
		if len(p.containers) == maxContainers {
			return
		}
		c := ClusterPodContainer{Name: text(name), Image: text(image), ImageID: text(status.ImageID)}
		if status.State.Waiting != nil {
			c.Waiting = text(status.State.Waiting.Reason)
			if imageAtFault[c.Waiting] {
				c.Message = text(status.State.Waiting.Message)
			}
		}
		p.containers = append(p.containers, unique.Make(c))
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

// text is what a cluster tells, as it is kept.
func text(s string) string { return printable.Line(s, maxText) }
