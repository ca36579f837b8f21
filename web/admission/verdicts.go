package admission

import (
	"context"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Action says how a pod is answered, the mildest first.
type Action int

// The actions.
const (
	Allow Action = iota
	Audit        // it is admitted, and the audit log of its API server says why it should not be
	Warn         // it is admitted, and its writer is also warned
	Deny
)

// String is the word for the action in metrics and logs.
func (a Action) String() string { return [...]string{"allowed", "audited", "warned", "denied"}[a] }

// Pod holds the fields that matter of the pod that is judged.
type Pod struct {
	// Cluster is the name of the cluster here.
	Cluster   string
	Namespace string
	// ServiceAccount and PullSecrets have the credentials with which the pod pulls.
	ServiceAccount string
	PullSecrets    []string
}

// Finding is a policy that an image does not meet.
type Finding struct {
	Policy string
	Action Action
	// Unknown is set where it is not known whether the image meets the policy.
	Unknown bool
	// Reason says why, for people.
	Reason string
}

// Judgement says what is known about an image.
type Judgement struct {
	// Digest is the digest that the reference leads to; empty if it is not known.
	Digest string
	// Findings are the policies that the image does not meet, and those of which it is not known.
	Findings []Finding
	// Pending is set where the findings may change by themselves, for instance while the image is
	// being imported.
	Pending bool
	// Missing is set where the image must be imported before it can be judged. GivenUp is set where
	// that was tried and given up.
	Missing, GivenUp bool
}

// Verdicts know what is stored about images. It is safe for concurrent use.
type Verdicts interface {
	// Judge tells what is known about an image for a pod. It asks no registry. The zero Reference
	// stands for text that is not a reference. An error says that the store cannot be read.
	Judge(ctx context.Context, pod Pod, image reference.Reference) (Judgement, error)
	// Import asks for the import of an image, as if it had been pushed, with the credentials of the
	// pod. It does not wait for the import. The caller calls done when the pod has been answered.
	Import(ctx context.Context, pod Pod, image reference.Reference) (done func(), err error)
}
