package signatures

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// outcome is how the signatures, or the attestations, of an image in a repository meet one policy.
type outcome struct {
	by *policy.Policy // nil if no policy can be chosen
	annotation.Verdict
	rank    int  // how informative the verdict is, as in met
	byIndex bool // an index meets the policy for the image
}

func (o outcome) isMet() bool { return o.Verified == verdicts.VerifiedTrue || o.byIndex }

// required is a requirement: the outcomes of its policies. The image must meet at least one of
// them.
type required []outcome

func (r required) isMet() bool { return slices.ContainsFunc(r, outcome.isMet) }

// ids returns the names of the policies whose outcome fulfils so.
func (r required) ids(so func(outcome) bool) (ids []string) {
	for _, o := range r {
		if o.by != nil && so(o) {
			ids = append(ids, o.by.ID())
		}
	}
	return ids
}

// best is the verdict by a requirement: the first that applies of True, Unknown, False and
// Unsigned. If none of several alternatives is met, the message names them all. Unknown comes
// before False because the unknown alternative may be met. [Forced] reports whether a user who may
// push can cause that.
func (r required) best() annotation.Verdict {
	order := []string{verdicts.Unsigned, verdicts.VerifiedFalse, verdicts.VerifiedUnknown, verdicts.VerifiedTrue}
	best := slices.MaxFunc(r, func(a, b outcome) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Verified), slices.Index(order, b.Verified)), cmp.Compare(a.rank, b.rank))
	}).Verdict
	if len(r) > 1 && best.Verified != verdicts.VerifiedTrue && best.Message != "" {
		var failed []string
		for _, o := range r {
			failed = append(failed, fmt.Sprintf("%s: %s", o.by.ID(), cmp.Or(o.Reason, o.Verified)))
		}
		if more := len(failed) - maxNamed; more > 0 {
			failed = append(failed[:maxNamed], table.Quantity(more, "more policy"))
		}
		best.Message = printable.Line(fmt.Sprintf("no alternative of %q is met (%s): %s", r[0].by.Alternatives, strings.Join(failed, ", "), best.Message), maxSummary+maxAlternatives)
	}
	return best
}

// Bounds of what a message says about alternatives.
const (
	maxNamed        = 4   // policies
	maxAlternatives = 300 // bytes beside a summary
)

// attested is the best verdict on attestations among the policies that demand any. It is "" if no
// policy demands any, or if the image meets a policy that demands none.
func (r required) attested() (attested string) {
	for _, o := range r {
		switch {
		case o.by == nil || len(o.by.Attestations) == 0:
		case o.Verified == verdicts.VerifiedTrue:
			return o.Verified
		case attested == "" || o.Attested == verdicts.VerifiedUnknown:
			attested = o.Attested
		}
	}
	if r.isMet() {
		return ""
	}
	return attested
}

// require judges an image by the alternatives of a requirement.
func (p verdictScope) require(alternatives policy.Requirement, judged []judgement, leftOut leftOut) (r required) {
	for _, by := range alternatives {
		r = append(r, p.by(by, judged, leftOut))
	}
	return r
}

// by judges an image by one policy. The policy is nil if none can be chosen.
func (p verdictScope) by(by *policy.Policy, judged []judgement, leftOut leftOut) outcome {
	o := outcome{by: by}
	demanded := by != nil && len(by.Attestations) > 0
	switch {
	case by == nil:
		o.Verdict, o.rank = met(judged, "")
	case demanded:
		o.Verdict, o.rank = p.demanded(by, judged)
		o.Attested = o.Verified
	default:
		o.Verdict, o.rank = met(judged, by.ID())
	}
	if o.Verified == verdicts.Unsigned {
		o.Reason, o.Message = p.onlyAttestations(judged)
	}
	switch {
	case o.Verified == verdicts.Unsigned && leftOut.signatures > 0:
		o.Verified, o.Reason = verdicts.VerifiedUnknown, string(ReasonSignaturesLeftOut)
		o.Message = fmt.Sprintf("in %s: %s left out, none is stored", p.repository, table.Clause(leftOut.signatures, "signature", "were"))
	case o.Verified == verdicts.VerifiedFalse && leftOut.count(demanded) > 0 && (leftOut.byOthers || p.namespace != ""):
		o.Verified, o.Reason = verdicts.VerifiedUnknown, string(ReasonSignaturesLeftOut)
		o.Message = fmt.Sprintf("in %s: no stored signature is trusted, and %d were left out: import the image again", p.repository, leftOut.count(demanded))
		if demanded {
			o.Attested = verdicts.VerifiedUnknown
		}
	}
	return o
}

// isForPlatforms reports whether a signature of an index can meet a policy for its platforms.
func isForPlatforms(p *policy.Policy) bool { return len(p.Attestations) == 0 && !p.OwnSignatures }

// VouchesForAll reports whether a verified index vouches for its platforms as far as an index can:
// of each requirement that has policies for platforms, it meets one of these. Then no other index
// vouches for more. by are the policies that cover the index. v is the verdict of the index.
func VouchesForAll(v annotation.Verdict, by []*policy.Policy) bool {
	return !slices.ContainsFunc(policy.Requirements(by), func(r policy.Requirement) bool {
		return slices.ContainsFunc(r, isForPlatforms) && !slices.ContainsFunc(r, func(p *policy.Policy) bool { return isForPlatforms(p) && !slices.Contains(v.Spared, p.ID()) })
	})
}

// isUnmet reports whether an image with this verdict, which is not verified, does not meet the
// policy.
func isUnmet(v annotation.Verdict, p *policy.Policy) bool {
	return len(v.Unmet) == 0 || slices.Contains(v.Unmet, p.ID())
}

// Vouching returns the policies of a requirement that let an image through, given its verdict for a
// reference: those that it meets, and those with an exception for it.
func Vouching(r policy.Requirement, v annotation.Verdict, asked reference.Reference, digest string, now time.Time) (all []*policy.Policy) {
	for _, p := range r {
		met := !slices.Contains(v.Spared, p.ID()) && (verdicts.IsVerified(v.Verified) || !isUnmet(v, p))
		if _, _, excepted := p.Excepted(asked, digest, now); met || excepted {
			all = append(all, p)
		}
	}
	return all
}
