package clusters

import (
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

const (
	// maxText bounds a text from a cluster, in bytes.
	maxText = 512
	// maxContainers is how many containers of a pod are kept.
	maxContainers = 100
)

// pod is the part of a cluster's pod that is kept in memory while it exists. A cluster may have
// 100,000 pods, so what many of them share is held once, and the stored form is computed when it is
// written.
type pod struct {
	key           string // NAMESPACE/NAME
	uid           string
	since         int64 // in seconds since 1970
	node, account unique.Handle[string]
	containers    []unique.Handle[ClusterPodContainer] // most pods are one of several alike
}

// GetObjectMeta makes a pod a metav1.ObjectMetaAccessor, by which an informer finds its name. The
// name includes the namespace, so that the informer's key of the pod is this string and no copy.
func (p *pod) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: p.key} }

// spec is the stored form of the pod, without its cluster and platform.
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

// reduce is the cache.TransformFunc that keeps the fields of a pod that are used.
func reduce(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // it was reduced before, or is a notice of deletion
	}
	p := &pod{
		key: text(in.Namespace) + "/" + in.Name, uid: string(in.UID), since: in.CreationTimestamp.Unix(),
		node: unique.Make(text(in.Spec.NodeName)), account: unique.Make(text(in.Spec.ServiceAccountName)),
		containers: make([]unique.Handle[ClusterPodContainer], 0, min(maxContainers, len(in.Spec.InitContainers)+len(in.Spec.Containers)+len(in.Spec.EphemeralContainers))),
	}
	podimages.Containers(in, func(name, image string, status corev1.ContainerStatus) {
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

// imageAtFault are reasons why a container waits that concern its image, as kubelets write them
// (k8s.io/kubernetes/pkg/kubelet/images).
var imageAtFault = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true, "ImageInspectError": true,
	"RegistryUnavailable": true, "SignatureValidationFailed": true,
}

// reduceNode is the cache.TransformFunc that keeps the platform of a node.
func reduceNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil // a notice of deletion
	}
	info := corev1.NodeSystemInfo{OperatingSystem: text(node.Status.NodeInfo.OperatingSystem), Architecture: text(node.Status.NodeInfo.Architecture)}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion},
		Status:     corev1.NodeStatus{NodeInfo: info},
	}, nil
}

// platformOf returns a node's platform as os/architecture, "" if the node does not tell.
func platformOf(node *corev1.Node) string {
	info := node.Status.NodeInfo
	if info.OperatingSystem == "" || info.Architecture == "" {
		return ""
	}
	return info.OperatingSystem + "/" + info.Architecture
}

// text returns a text from a cluster in the form in which it is kept.
func text(s string) string { return printable.Line(s, maxText) }
