package admission

import (
	"context"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Pod has the fields that matter of a pod that is judged.
type Pod struct {
	// Cluster is the cluster's name on this server.
	Cluster   string
	Namespace string
	// ServiceAccount and PullSecrets name the sources of the pod's pull credentials.
	ServiceAccount string
	PullSecrets    []string
}

// Verdicts judges images by stored verdicts. It is safe for concurrent use.
type Verdicts interface {
	// Judge returns the judgement on an image for a pod. It sends no request to a registry. The zero
	// Reference stands for text that is not a reference. An error means that the store cannot be read.
	Judge(ctx context.Context, pod Pod, image reference.Reference) (admit.Judgement, error)
	// Import queues the import of an image, as if it had been pushed, with the credentials of the pod.
	// It does not wait for the import. The caller calls done after the pod's review has been answered.
	Import(ctx context.Context, pod Pod, image reference.Reference) (done func(), err error)
}
