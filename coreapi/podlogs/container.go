package podlogs

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"
)

// recheck is how long an answer about a container is used. A busy log needs one at each write, and
// each answer reads the store.
const recheck = time.Second

// container is one run of one container of one pod.
type container struct {
	get      func(ctx context.Context) (*api.Pod, error)
	uid      types.UID
	name     string
	restarts int // which run
	clock    clock.PassiveClock

	mu      sync.Mutex
	checked time.Time
	ended   bool
}

// running reports whether more lines can come. A container that the pod's status does not
// mention, or whose pod cannot be read just now, may still be writing.
func (c *container) running(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	if now := c.clock.Now(); c.checked.IsZero() || now.Sub(c.checked) >= recheck {
		pod, err := c.get(ctx)
		c.ended = apierrors.IsNotFound(err) || err == nil && (pod.UID != c.uid || hasEnded(pod, c.name, c.restarts))
		c.checked = now
	}
	return !c.ended
}

// hasEnded reports whether, by the pod's status, the given run of the container is over.
func hasEnded(pod *api.Pod, name string, restarts int) bool {
	if pod.Status.Phase == api.PodSucceeded || pod.Status.Phase == api.PodFailed {
		return true
	}
	s, ok := statusOf(pod, name)
	return ok && (int(s.RestartCount) > restarts || s.State.Terminated != nil) || waitsAfter(pod, name, restarts)
}

// waitsAfter reports whether, by the pod's status, the container waits to be started
// again after the given run, such as after a crash.
func waitsAfter(pod *api.Pod, name string, restarts int) bool {
	s, ok := statusOf(pod, name)
	return ok && int(s.RestartCount) == restarts && s.State.Running == nil && s.State.Terminated == nil && s.LastTerminationState.Terminated != nil
}

func statusOf(pod *api.Pod, name string) (status api.ContainerStatus, ok bool) {
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses)
	if i := slices.IndexFunc(all, func(s api.ContainerStatus) bool { return s.Name == name }); i >= 0 {
		return all[i], true
	}
	return api.ContainerStatus{}, false
}
