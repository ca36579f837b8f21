// Package admit says what becomes of a pod on admission: the findings about its images, and what
// they lead to. Whoever judges an image makes a [Judgement], and whoever answers a cluster's API
// server reads it.
package admit

import (
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/reference"
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

// Finding is a policy that an image does not meet.
type Finding struct {
	Policy string
	Action Action
	// Unknown is set where it is not known whether the image meets the policy.
	Unknown bool
	// Reason says why, for people.
	Reason string
}

// Findings are those about one image, at most one for each policy.
type Findings []Finding

// And returns the findings with another, which is combined with the one of the same policy: the
// stricter action counts, and both reasons are given. So a finding more never makes it milder.
func (f Findings) And(other Finding) Findings {
	at := slices.IndexFunc(f, func(one Finding) bool { return one.Policy == other.Policy })
	if at < 0 {
		return append(f, other)
	}
	f = slices.Clone(f)
	f[at].Action = max(f[at].Action, other.Action)
	f[at].Unknown = f[at].Unknown && other.Unknown
	f[at].Reason += "; " + other.Reason
	return f
}

// Worst is the strictest action of the findings.
func (f Findings) Worst() Action {
	worst := Allow
	for _, one := range f {
		worst = max(worst, one.Action)
	}
	return worst
}

// Judgement says what is known about an image.
type Judgement struct {
	// Digest is the digest that the reference leads to; empty if it is not known.
	Digest string
	// Findings are the policies that the image does not meet, and those of which it is not known.
	Findings Findings
	// Pending is set where the findings may change by themselves, for instance while the image is
	// being imported.
	Pending bool
	// Missing is what must be imported before the image can be judged; the zero Reference for
	// nothing. GivenUp is set where that was tried and given up.
	Missing reference.Reference
	GivenUp bool
}
