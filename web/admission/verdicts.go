package admission

import (
	"context"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Action is what becomes of a pod, the mildest first.
type Action int

// The actions.
const (
	Allow Action = iota
	Audit        // it is admitted, and the audit log of its API server has why it should not be
	Warn         // it is admitted, and who wrote it is warned as well
	Deny
)

// String is the word for the action in metrics and logs.
func (a Action) String() string { return [...]string{"allowed", "audited", "warned", "denied"}[a] }

// Pod is the pod that is judged, as far as it matters.
type Pod struct {
	// Cluster is how the cluster is called here.
	Cluster   string
	Namespace string
	// ServiceAccount and PullSecrets have the credentials with which it pulls.
	ServiceAccount string
	PullSecrets    []string
}

// Finding is a policy that an image does not meet.
type Finding struct {
	Policy string
	Action Action
	// Unknown is set where it is not known whether it does.
	Unknown bool
	// Reason says why, for people.
	Reason string
}

// Judgement is what is known about an image.
type Judgement struct {
	// Digest is what the reference leads to; empty if that is not known.
	Digest string
	// Findings are the policies that it does not meet, and those of which that is not known.
	Findings []Finding
	// Pending is set where the findings may change without anybody's doing, as when the image is being imported.
	Pending bool
	// Missing is set where the image has to be imported for that. GivenUp is set where that was tried and given up.
	Missing, GivenUp bool
}

// Verdicts know what is stored about images. It is safe for concurrent use.
type Verdicts interface {
	// Judge tells what is known about an image for a pod. It asks no registry. The zero Reference is for what is no
	// reference. An error says that what is stored cannot be read.
	Judge(ctx context.Context, pod Pod, image reference.Reference) (Judgement, error)
	// Import has an image imported as if it had been pushed, with what the pod pulls with. It does not wait for it. The
	// caller calls done when the pod has been answered.
	Import(ctx context.Context, pod Pod, image reference.Reference) (done func(), err error)
}
