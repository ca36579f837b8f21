package admission

import (
	"context"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Pod holds the fields that matter of the pod that is judged.
type Pod struct {
	// Cluster is the name of the cluster here.
	Cluster   string
	Namespace string
	// ServiceAccount and PullSecrets have the credentials with which the pod pulls.
	ServiceAccount string
	PullSecrets    []string
}

// Verdicts know what is stored about images. It is safe for concurrent use.
type Verdicts interface {
	// Judge returns the judgement on an image for a pod. It asks no registry. The zero Reference
	// stands for a text that is not a reference. An error means that the store cannot be read.
	Judge(ctx context.Context, pod Pod, image reference.Reference) (admit.Judgement, error)
	// Import asks for the import of an image, as if it had been pushed, with the credentials of the
	// pod. It does not wait for the import. The caller calls done when the pod has been answered.
	Import(ctx context.Context, pod Pod, image reference.Reference) (done func(), err error)
}
