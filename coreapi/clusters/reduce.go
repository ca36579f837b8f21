package clusters

import (
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
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
	finished      int64 // as since; 0 if it may still run
	node, account unique.Handle[string]
	owner         unique.Handle[string]                // the workload; empty for the pod itself
	containers    []unique.Handle[ClusterPodContainer] // most pods are one of several alike
	started       []int64                              // when each of them first ran; 0 for never
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
		if p.started[i] != 0 {
			spec.Containers[i].Started = &metav1.Time{Time: time.Unix(p.started[i], 0)}
		}
	}
	if spec.Workload = p.owner.Value(); spec.Workload == "" {
		spec.Workload = "Pod/" + name
	}
	if p.finished != 0 {
		spec.Finished = &metav1.Time{Time: time.Unix(p.finished, 0)}
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
		node: unique.Make(text(in.Spec.NodeName)), account: unique.Make(text(in.Spec.ServiceAccountName)), owner: unique.Make(text(ownerOf(in))),
		finished:   finished(in),
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
		p.started = append(p.started, started(in, status))
	})
	return p, nil
}

// started returns when a container first ran, as far as its status still has that, in seconds since
// 1970; 0 if it never has.
func started(in *corev1.Pod, status corev1.ContainerStatus) int64 {
	switch last, now := status.LastTerminationState.Terminated, status.State; {
	case status.ImageID == "":
		return 0
	case last != nil && !last.StartedAt.IsZero():
		return last.StartedAt.Unix()
	case now.Running != nil && !now.Running.StartedAt.IsZero():
		return now.Running.StartedAt.Unix()
	case now.Terminated != nil && !now.Terminated.StartedAt.IsZero():
		return now.Terminated.StartedAt.Unix()
	case now.Waiting != nil:
		return 0
	case in.Status.StartTime != nil: // for an image volume, for instance
		return in.Status.StartTime.Unix()
	}
	return in.CreationTimestamp.Unix()
}

// finished returns when a pod ended that does not start again, in seconds since 1970; 0 for others.
func finished(in *corev1.Pod) int64 {
	if in.Status.Phase != corev1.PodSucceeded && in.Status.Phase != corev1.PodFailed {
		return 0
	}
	last := in.CreationTimestamp
	for _, statuses := range [][]corev1.ContainerStatus{in.Status.InitContainerStatuses, in.Status.ContainerStatuses} {
		for _, s := range statuses {
			if end := s.State.Terminated; end != nil && last.Before(&end.FinishedAt) {
				last = end.FinishedAt
			}
		}
	}
	for _, c := range in.Status.Conditions { // of an evicted pod, containers need not tell
		if last.Equal(&in.CreationTimestamp) && last.Before(&c.LastTransitionTime) {
			last = c.LastTransitionTime
		}
	}
	return last.Unix()
}

// ownerOf returns the topmost owner of a pod as KIND/NAME; "" if it is the pod itself. The pod
// names its controller alone. What made that follows from the names that Kubernetes' controllers
// give, so it is known before the owners are.
func ownerOf(in *corev1.Pod) string {
	by := metav1.GetControllerOf(in)
	if by == nil || by.Kind == "Node" { // a static pod belongs to its node
		return ""
	}
	switch by.Kind {
	case "ReplicaSet":
		for label, kind := range map[string]string{"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"} {
			if hash := in.Labels[label]; hash != "" {
				if name, ok := strings.CutSuffix(by.Name, "-"+hash); ok && name != "" {
					return kind + "/" + name
				}
			}
		}
	case "ReplicationController":
		if name := in.Annotations["openshift.io/deployment-config.name"]; name != "" {
			return "DeploymentConfig/" + name
		}
	case "Job":
		// A CronJob adds the minute for which the Job was scheduled, in minutes since 1970.
		at := strings.LastIndexByte(by.Name, '-')
		if minute, err := strconv.ParseInt(by.Name[at+1:], 10, 64); err == nil && at > 0 && in.CreationTimestamp.Sub(time.Unix(60*minute, 0)).Abs() < scheduledNear {
			return "CronJob/" + by.Name[:at]
		}
	}
	return by.Kind + "/" + by.Name
}

// scheduledNear is how near the creation of a pod is to the minute in its Job's name, if a CronJob
// gave that name. A Job may wait for its pods, or be made late.
const scheduledNear = 30 * 24 * time.Hour

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

// text returns a text from a cluster in the form in which it is stored.
func text(s string) string { return printable.Line(s, maxText) }
