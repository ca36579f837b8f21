package signatures

import (
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// rules is a version of this package's judgement, part of AnnotationPolicy. Raising it has every stored verdict
// computed again.
const rules = "v1"

// probeInterval is how long a condition that has not changed keeps its lastProbeTime, so that looking again does
// not write every Image again.
const probeInterval = 24 * time.Hour

// maxJudged bounds the signatures judged in one Image, however many a client wrote into it.
const maxJudged = 64

// VerifyImage computes the verdict on every signature of an Image and writes it into the Image: conditions and
// the fields that say who signed what. The Image's annotation AnnotationPolicy then names the policy used, and
// AnnotationRecheck when to look again.
//
// covered tells whether a policy covers the image. When none does, conditions that somebody else has set stay as
// they are (`oc adm verify-image-signature --save` works), verdicts left by a policy that is gone are reset to
// Unknown, and so are signatures without conditions.
//
// What the Image says of its verdicts before does not count, but for the times: it has to come from storage and not from a
// client. changed tells whether the Image differs from before. A condition's lastTransitionTime changes only with its
// status; its lastProbeTime when anything in it changes, or after a day.
func VerifyImage(image *imagev1.Image, set *policy.Set, now time.Time) (changed, covered bool) {
	target := Image{Digest: image.Name, Reference: image.DockerImageReference, Manifest: []byte(image.DockerImageManifest)}
	if image.DockerImageManifest == "" {
		target.Manifest = nil
	}
	ref, p, err := cover(target, set)
	covered = p != nil || err != nil
	_, wasOurs := image.Annotations[AnnotationPolicy]
	var recheck time.Time
	for i := range image.Signatures {
		s := &image.Signatures[i]
		var v Verdict
		switch {
		case covered && i >= maxJudged:
			v = unjudged(evidence.UnsupportedFormat, fmt.Sprintf("only the first %d signatures of an image are judged", maxJudged))
		case err != nil:
			v = unjudged(ReasonNoMatchingPolicy, "no policy can be chosen: "+err.Error())
		case p == nil && !wasOurs && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions):
			continue // set by an admin
		case p == nil:
			v = noPolicy(ref)
		default:
			v = judge(Signature{s.Type, s.Content}, target, ref, p, now)
		}
		if !v.NotAfter.IsZero() && (recheck.IsZero() || v.NotAfter.Before(recheck)) {
			recheck = v.NotAfter
		}
		changed = v.apply(s, now) || changed
	}
	changed = annotate(image, AnnotationPolicy, stamp(image, p, err)) || changed
	next := ""
	if !recheck.IsZero() {
		// Times of certificates and keys are whole seconds and include the last one.
		next = recheck.UTC().Add(time.Second).Format(time.RFC3339)
	}
	return annotate(image, AnnotationRecheck, next) || changed, covered
}

// Stale tells whether VerifyImage may find something new: the policy is another one or has changed, a signature
// was never looked at, an expiry has passed, or a day has.
func Stale(image *imagev1.Image, set *policy.Set, now time.Time) bool {
	_, p, err := cover(Image{Digest: image.Name, Reference: image.DockerImageReference}, set)
	if image.Annotations[AnnotationPolicy] != stamp(image, p, err) {
		return true
	}
	if recheck, ok := image.Annotations[AnnotationRecheck]; ok {
		if t, err := time.Parse(time.RFC3339, recheck); err != nil || !now.Before(t) {
			return true
		}
	}
	for _, s := range image.Signatures {
		if len(s.Conditions) == 0 {
			return true
		}
		if (p != nil || err != nil) && slices.ContainsFunc(s.Conditions, func(c imagev1.SignatureCondition) bool {
			return now.Sub(c.LastProbeTime.Time) > probeInterval
		}) {
			return true
		}
	}
	return false
}

// stamp is the value of AnnotationPolicy: "" when there is nothing to judge or nothing to judge by.
func stamp(image *imagev1.Image, p *policy.Policy, err error) string {
	switch {
	case len(image.Signatures) == 0:
		return ""
	case err != nil:
		return "-@" + rules
	case p == nil:
		return ""
	}
	return p.Name + "@" + rules + "-" + p.Hash()
}

func annotate(image *imagev1.Image, key, value string) (changed bool) {
	if image.Annotations[key] == value {
		if _, ok := image.Annotations[key]; value != "" || !ok {
			return false
		}
	}
	if value == "" {
		delete(image.Annotations, key)
		return true
	}
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	image.Annotations[key] = value
	return true
}

func isNoPolicy(conditions []imagev1.SignatureCondition) bool {
	return slices.ContainsFunc(conditions, func(c imagev1.SignatureCondition) bool {
		return c.Type == ConditionTrusted && c.Reason == string(ReasonNoMatchingPolicy)
	})
}

// clear takes everything off a signature that is the server's to say.
func clear(s *imagev1.ImageSignature) {
	s.Conditions = nil
	s.ImageIdentity, s.SignedClaims, s.Created, s.IssuedBy, s.IssuedTo = "", nil, nil, nil, nil
}

// apply writes the verdict into an ImageSignature and tells whether that changed it.
func (v *Verdict) apply(s *imagev1.ImageSignature, now time.Time) (changed bool) {
	before := s.DeepCopy()
	clear(s)
	s.Conditions = v.conditions(before.Conditions, now)
	s.ImageIdentity, s.SignedClaims, s.Created = v.ImageIdentity, v.SignedClaims, v.Created
	s.IssuedBy, s.IssuedTo = v.IssuedBy, v.IssuedTo
	return !equality.Semantic.DeepEqual(before, s)
}

// conditions gives the verdict's conditions their times. Expired and Revoked conditions that were there and are
// true no more stay as False.
func (v *Verdict) conditions(before []imagev1.SignatureCondition, now time.Time) []imagev1.SignatureCondition {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	var after []imagev1.SignatureCondition
	for _, t := range conditionOrder {
		c, ok := v.Condition(t)
		i := slices.IndexFunc(before, func(b imagev1.SignatureCondition) bool { return b.Type == t })
		if !ok {
			if i < 0 {
				continue
			}
			trusted, _ := v.Condition(ConditionTrusted)
			c = Condition{t, corev1.ConditionFalse, trusted.Reason, v.message("no longer")} // oc prints the message, not the status
		}
		n := imagev1.SignatureCondition{
			Type: c.Type, Status: c.Status, Reason: string(c.Reason), Message: c.Message,
			LastProbeTime: at, LastTransitionTime: at,
		}
		if i >= 0 {
			b := before[i]
			if b.Status == n.Status && !b.LastTransitionTime.IsZero() {
				n.LastTransitionTime = b.LastTransitionTime
			}
			same := b.Status == n.Status && b.Reason == n.Reason && b.Message == n.Message
			if age := now.Sub(b.LastProbeTime.Time); same && age >= 0 && age <= probeInterval {
				n.LastProbeTime = b.LastProbeTime
			}
		}
		after = append(after, n)
	}
	return after
}
