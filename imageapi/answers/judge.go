package answers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Policies judge images.
type Policies interface {
	// Set returns the policies; nil for none.
	Set(ctx context.Context) (*policy.Set, error)
	// Judge judges a stored Image by them.
	Judge(ctx context.Context, q Asked) (Judgement, error)
}

// Asked is a question about a stored Image.
type Asked struct {
	Image *imagev1.Image
	// Reference has a tag or a digest. Namespace is whose pods ask; "" for none.
	Reference reference.Reference
	Namespace string
	// Tag is taken from the history of the tag.
	Tag Led
	// Indexes finds indexes that vouch for the image under a verdict's key.
	Indexes func(key string) ([]*imagev1.Image, error)
}

// Led is the part of a tag's history about one image that verdicts depend on. It is zero for a
// reference with a digest, and for a tag whose history is not known.
type Led struct {
	// Checked is when a registry last confirmed where the tag leads; zero if that is not known.
	Checked time.Time
	// Moved is how the tag came to lead to the image although it was to lead to another, if it must
	// not move; nil if it did not.
	Moved *tags.Move
}

// ledTo returns what the history of a tag has about the image of a digest now. tag may be nil.
func ledTo(tag *imagev1.ImageTag, digest string, now time.Time) (l Led) {
	if at := tags.Checked(tag, now); at != nil {
		l.Checked = at.Time
	}
	l.Moved = tags.Away(tag, digest)
	return l
}

func (a *Answerer) ledTo(tag *imagev1.ImageTag, digest string) Led {
	return ledTo(tag, digest, a.now())
}

// Judgement is the answer to Asked.
type Judgement struct {
	Verdict annotation.Verdict
	// Covering are the policies that cover the reference.
	Covering []*policy.Policy
	// Findings are the policies because of which admission does not simply admit the image.
	Findings admit.Findings
	// TooOld is why the registry must be asked first where the tag leads, by the policies Stale; "" if
	// it need not.
	TooOld string
	Stale  []*policy.Policy
}

// ReasonTagTooOld is the reason of a verdict if a policy bounds the time since the registry
// confirmed the tag. ReasonTagMoved is the reason if a policy forbids the tag to move.
const (
	ReasonTagTooOld = imageruns.ReasonTagTooOld
	ReasonTagMoved  = imageruns.ReasonTagMoved
)

// InForce are the policies of a running server.
type InForce struct {
	Policies func(context.Context) (*policy.Set, error)
	Clock    clock.PassiveClock
}

// Set is part of [Policies].
func (f InForce) Set(ctx context.Context) (*policy.Set, error) { return f.Policies(ctx) }

// Judge is part of [Policies].
func (f InForce) Judge(ctx context.Context, q Asked) (Judgement, error) {
	set, err := f.Policies(ctx)
	if err != nil {
		return Judgement{}, err
	}
	now := f.Clock.Now()
	return judge(set, now, now, q), nil
}

// judge judges by policies at a time. Knowledge about tags from before ages is too old.
func judge(set *policy.Set, now, ages time.Time, q Asked) Judgement {
	by := signatures.PoliciesFor(q.Reference, q.Namespace, set)
	if len(by) == 0 {
		return Judgement{Verdict: signatures.AskAnyway(q.Image, q.Reference)}
	}
	v := signatures.Ask(q.Image, q.Reference, q.Namespace, set, now, q.Indexes)
	j := Judgement{Verdict: v, Covering: by, Findings: findings(by, v, q, now)}
	if q.Reference.Digest != "" {
		return j
	}
	stale, why := signatures.TooOld(by, v, q.Reference, q.Image.Name, q.Tag.Checked, now, ages)
	j.TooOld, j.Stale = why, stale
	for i, f := range j.Findings {
		if !slices.ContainsFunc(stale, func(p *policy.Policy) bool { return p.ID() == f.Policy }) {
			j.Findings[i].Reason += "; " + signatures.TagAge(q.Reference, q.Tag.Checked, ages)
		}
	}
	j.moved(by, q)
	if len(stale) == 0 {
		return j
	}
	v = j.Verdict
	// A bound adds to what was found, and replaces nothing of it.
	for _, p := range stale {
		j.Findings = j.Findings.And(unknownTo(p, "Unknown: "+j.TooOld))
	}
	if verdicts.IsVerified(v.Verified) || v.Verified == verdicts.Excepted {
		j.Verdict = annotation.Verdict{
			Verified: verdicts.VerifiedUnknown, Reason: ReasonTagTooOld, Message: j.TooOld + "; what it led to is " + v.Verified,
			Unmet: ids(stale), Spared: v.Spared, Signers: v.Signers, Index: v.Index, Until: v.Until, Attested: v.Attested,
		}
	} else {
		j.Verdict.Message = cmp.Or(v.Message, "it has no signature in "+q.Reference.Name()) + "; " + j.TooOld
	}
	return j
}

// forbidden fills in how the tag has moved although it must not.
func (s *session) forbidden(ctx context.Context, a *Answer, tag *imagev1.ImageTag) {
	found, err := s.overwritten(ctx, tag, func(set *policy.Set, ref reference.Reference) []*policy.Policy {
		return signatures.PoliciesFor(ref, s.namespace, set)
	})
	if err != nil {
		a.unknown("checked", err)
	}
	a.Checked.Overwritten = found
}

// moved adds the policies that forbid the tag to have moved to the image. If the history no longer
// shows whether the tag moved, the verdict is Unknown. Like the bound on a tag's age, this only
// replaces verdicts by which the image is verified, excepted or Unknown.
func (j *Judgement) moved(by []*policy.Policy, q Asked) {
	of, why := signatures.TagMoved(by, q.Reference, q.Tag.Moved)
	if len(of) == 0 {
		return
	}
	verified, what := verdicts.VerifiedFalse, "what it leads to"
	if q.Tag.Moved.At.IsZero() {
		verified, what = verdicts.VerifiedUnknown, "this image"
	}
	for _, p := range of {
		j.Findings = j.Findings.And(admit.Finding{Policy: p.ID(), Action: modeOf(p), Unknown: verified == verdicts.VerifiedUnknown, Reason: verified + ": " + why})
	}
	v := j.Verdict
	if v.Verified == verdicts.VerifiedFalse || v.Verified == verdicts.Unsigned {
		j.Verdict.Message = cmp.Or(v.Message, "it has no signature in "+q.Reference.Name()) + "; " + why
		return
	}
	j.Verdict = annotation.Verdict{
		Verified: verified, Reason: ReasonTagMoved, Message: why + "; " + what + " is " + v.Verified + " by itself",
		Unmet: ids(of), Spared: v.Spared, Signers: v.Signers, Index: v.Index, Attested: v.Attested,
	}
	if v.Verified == verdicts.VerifiedUnknown {
		j.Verdict.Message = why + "; and " + v.Message
		for _, id := range v.Unmet {
			if !slices.Contains(j.Verdict.Unmet, id) {
				j.Verdict.Unmet = append(j.Verdict.Unmet, id)
			}
		}
	}
}

func ids(policies []*policy.Policy) (all []string) {
	for _, p := range policies {
		all = append(all, p.ID())
	}
	return all
}

// findings returns a finding for each policy that is not met according to a verdict. If no
// alternative of a group is met, each has one, so that the strictest of them decides.
func findings(by []*policy.Policy, v annotation.Verdict, q Asked, now time.Time) (found admit.Findings) {
	if verdicts.IsVerified(v.Verified) {
		return nil
	}
	reason := fmt.Sprintf("%s: %s", v.Verified, cmp.Or(v.Message, "it has no signature in "+q.Reference.Bare().String()))
	for _, p := range by {
		if len(v.Unmet) > 0 && !slices.Contains(v.Unmet, p.ID()) {
			continue
		}
		switch {
		case v.Verified == verdicts.Excepted:
			if _, _, its := p.Excepted(q.Reference, q.Image.Name, now); its {
				found = append(found, excepted(p, v, now))
			}
		case v.Verified == verdicts.VerifiedUnknown && !signatures.Forced(v):
			found = append(found, unknownTo(p, reason))
		default:
			found = append(found, admit.Finding{Policy: p.ID(), Action: modeOf(p), Reason: reason})
		}
	}
	return found
}

// excepted is the finding for an image that an exception of the policy lets through. The server
// writes it into the audit log, and warns the pod's creator before the exception ends.
func excepted(p *policy.Policy, v annotation.Verdict, now time.Time) admit.Finding {
	action := admit.Audit
	if until, err := time.Parse(time.RFC3339, v.Until); err != nil || until.Sub(now) < policy.ExceptionEndsSoon {
		action = admit.Warn
	}
	return admit.Finding{Policy: p.ID(), Action: min(action, modeOf(p)), Reason: v.Message}
}

// unknownTo is the finding that it is unknown whether a policy is met, for a reason that users with
// rights to push or to create pods cannot cause. Pods admitted with it are in the audit log.
func unknownTo(p *policy.Policy, reason string) admit.Finding {
	action := admit.Deny
	switch p.Admission.Unknown {
	case policy.UnknownAllow:
		action = admit.Audit
	case policy.UnknownWarn:
		action = admit.Warn
	}
	return admit.Finding{Policy: p.ID(), Action: min(action, modeOf(p)), Unknown: true, Reason: reason}
}

// unverified is the finding that it is unknown whether a policy is met, for a reason that users
// with rights to push or to create pods can cause. It counts as not met.
func unverified(p *policy.Policy, reason string) admit.Finding {
	return admit.Finding{Policy: p.ID(), Action: modeOf(p), Unknown: true, Reason: reason}
}

func modeOf(p *policy.Policy) admit.Action {
	switch p.Admission.Mode {
	case policy.ModeWarn:
		return admit.Warn
	case policy.ModeAudit:
		return admit.Audit
	default:
		return admit.Deny
	}
}
