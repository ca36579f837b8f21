package signatures

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// rules is the version of this package's rules, a part of AnnotationPolicy. A new version makes
// servers compute every stored verdict again.
const rules = "v12"

// probeInterval is how long a condition that has not changed keeps its lastProbeTime, so that
// judging again does not write every Image again.
const probeInterval = 24 * time.Hour

// maxJudged bounds the signatures that are judged in one repository, and separately the
// attestations, even if a client wrote more into an Image.
const maxJudged = 64

// Indexes finds indexes that list the image and are verified in a repository, or in a repository
// for a namespace. After an error the verdict is Unknown, and the image is judged again an hour
// later.
type Indexes func(repository string) ([]*imagev1.Image, error)

// indexRetry is the time after which an image is judged again if an index could not be read.
const indexRetry = time.Hour

// VerifyImage computes the verdict on every signature of an Image, in every repository that the
// image is in, and writes the verdicts into the Image.
//
// A signature counts in the repositories where it was found; a signature that a client wrote counts
// in all. A signature's own conditions, and its fields about signer and contents, come from the
// worst of its verdicts in repositories that a policy covers, and name that repository. The
// annotation annotation.Verdicts has the verdict of each repository, annotation.Policy names the
// policies used, and annotation.Recheck has the time to judge again. The number of signatures from
// repositories is bounded, see bound. When an image leaves a repository, the repository's
// signatures are removed.
//
// Policies of namespaces do not affect any of this. Their verdicts are in the annotation
// annotation.NamespaceVerdicts. Nor do the verdicts for tags. annotation.TagVerdicts has the
// verdicts for tags that differ from the repository's.
//
// covered is true if a policy covers the image anywhere. If none does, conditions that an
// administrator has set stay as they are (`oc adm verify-image-signature --save` works). Verdicts
// of a policy that is gone become Unknown, and signatures without conditions become Unknown, too.
//
// The Image must come from storage, not from a client. Only the times of its earlier verdicts are
// used. changed is true if the Image differs from before. A condition's lastTransitionTime changes
// only with its status. Its lastProbeTime changes with anything in it, and after a day.
func VerifyImage(image *imagev1.Image, set *policy.Set, now time.Time, indexes Indexes) (changed, covered bool) {
	annotations, before := maps.Clone(image.Annotations), len(image.Signatures)
	_, wasOurs := annotations[AnnotationPolicy]
	found := annotation.Found(annotations)
	in := judgingOf(image, set, found)
	scopes, namespaced := in.scopes, in.namespaced
	dropOfFormer(image, found)
	covered = slices.ContainsFunc(scopes, verdictScope.covered)

	brought, recheck := holdersOf(found), time.Time{}
	judged := make(map[string][]judgement, len(scopes))
	judgeAgain := func(at time.Time) {
		if !at.IsZero() && (recheck.IsZero() || at.Before(recheck)) {
			recheck = at
		}
	}
	vouching := func(repository string) ([]*imagev1.Image, error) {
		if indexes == nil {
			return nil, nil
		}
		all, err := indexes(repository)
		if err != nil {
			judgeAgain(now.Add(indexRetry))
		}
		return all, err
	}
	checked := checks{}
	judgeIn := func(p verdictScope, s *imagev1.ImageSignature) []judgement {
		all := p.judge(s, image, now, checked)
		for _, j := range all {
			judgeAgain(j.NotAfter)
		}
		judged[p.key()] = append(judged[p.key()], all...)
		return all
	}
	seen := counter{brought, map[string]int{}}
	for i := range image.Signatures {
		s := &image.Signatures[i]
		for _, p := range namespaced {
			if counts, tooMany := seen.count(p, s); counts && !tooMany {
				judgeIn(p, s)
			}
		}
		worst := noPolicy(scopes[0].ref)
		switch {
		case covered:
			if in.moreScopes > 0 {
				worst = unjudged(ReasonNotJudged, "the image is in too many repositories: its verdict in this one is computed only on request")
			}
			first := true
			for _, p := range scopes {
				counts, tooMany := false, false
				if p.covered() {
					counts, tooMany = seen.count(p, s)
				}
				if tooMany && first {
					worst = unjudged(evidence.UnsupportedFormat, fmt.Sprintf("only the first %d signatures, and as many attestations, in a repository are judged", maxJudged))
				}
				if !counts || tooMany {
					continue
				}
				best := slices.MaxFunc(judgeIn(p, s), func(a, b judgement) int { return cmp.Compare(a.informs(), b.informs()) })
				if first || best.goodness() < worst.goodness() {
					worst, first = best.Verdict, false
				}
			}
		case !wasOurs && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions):
			continue // set by an admin
		}
		changed = worst.apply(s, now) || changed
	}

	sum := func(p verdictScope, by string) annotation.Verdict {
		v, end := p.summarize(retained(image, judged[p.key()]), leftOutOf(found[p.repository], by), vouching, image, now)
		if !end.IsZero() {
			// the exception has ended at this time, while certificates and keys, below, are valid until the
			// end of their last second
			judgeAgain(end.Add(-time.Second))
		}
		return v
	}
	stamp, summed, inSpaces := in.stamp(), map[string]annotation.Verdict{}, map[string]annotation.Verdict{}
	by := annotation.JudgedBy(stamp, in.namespaceStamp())
	bound(image, found, by, ranks(in.all(), judged))
	for _, p := range scopes {
		if p.covered() {
			summed[p.key()] = sum(p, by)
		}
	}
	if in.moreScopes > 0 {
		summed[annotation.NotJudged] = notJudged(in.moreScopes, "repositories and tags")
	}
	for _, p := range namespaced {
		inSpaces[p.key()] = sum(p, by)
	}
	if in.moreNamespaced > 0 {
		inSpaces[annotation.InNamespace(annotation.NotJudged, annotation.NotJudged)] = notJudged(in.moreNamespaced, "repositories and tags of namespaces")
	}
	tags := map[string]annotation.Verdict{}
	for _, p := range in.tags(image, set) {
		v, end := p.summarize(p.judgeAll(image, brought, now, checked), leftOutOf(found[p.repository], by), vouching, image, now)
		if !end.IsZero() {
			judgeAgain(end.Add(-time.Second))
		}
		digest, ok := summed[p.key()]
		if !ok {
			digest = inSpaces[p.key()]
		}
		if v.Verified != digest.Verified {
			v.Vouches = nil
			tags[annotation.InNamespace(p.ref.Name()+":"+p.ref.Tag, p.namespace)] = v
		}
	}
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	if _, ok := annotations[annotation.Repositories]; ok {
		annotation.SetFound(image.Annotations, found)
	}
	annotate(image, annotation.Verdicts, encodeVerdicts(summed))
	annotate(image, annotation.NamespaceVerdicts, encodeVerdicts(inSpaces))
	annotate(image, annotation.TagVerdicts, encodeVerdicts(tags))
	annotate(image, AnnotationPolicy, stamp)
	annotate(image, annotation.NamespacePolicy, in.namespaceStamp())
	next := ""
	if !recheck.IsZero() {
		// Certificates and keys have times in whole seconds, and are valid until the end of their last
		// second.
		next = recheck.UTC().Add(time.Second).Format(time.RFC3339)
	}
	annotate(image, AnnotationRecheck, next)
	if len(image.Annotations) == 0 {
		image.Annotations = nil
	}
	return changed || before != len(image.Signatures) || !maps.Equal(annotations, image.Annotations), covered
}

// judge returns each policy's verdict on a signature in a repository that at least one policy
// covers. checked has what was checked before.
func (p verdictScope) judge(s *imagev1.ImageSignature, image *imagev1.Image, now time.Time, checked checks) []judgement {
	name, size := sigID(s.Name), len(s.Content)
	if p.err != nil {
		return []judgement{{name, size, isAttestation(s), "", unjudged(ReasonNoMatchingPolicy, "no policy can be chosen: "+p.err.Error())}}
	}
	target := Image{Digest: image.Name, Reference: p.ref.String()}
	if image.DockerImageManifest != "" {
		target.Manifest = []byte(image.DockerImageManifest)
	}
	var all []judgement
	for _, by := range p.policies {
		all = append(all, judgement{name, size, isAttestation(s), by.ID(), decide(Signature{s.Type, s.Content}, target, p.ref, by, checked.of(Signature{s.Type, s.Content}, target, by, now))})
	}
	return all
}

// judgeAll judges the signatures that count in a repository.
func (p verdictScope) judgeAll(image *imagev1.Image, brought holders, now time.Time, checked checks) (judged []judgement) {
	seen := counter{brought, map[string]int{}}
	for i := range image.Signatures {
		if counts, tooMany := seen.count(p, &image.Signatures[i]); counts && !tooMany {
			judged = append(judged, p.judge(&image.Signatures[i], image, now, checked)...)
		}
	}
	return judged
}

func encodeVerdicts(summed map[string]annotation.Verdict) string {
	if len(summed) == 0 {
		return ""
	}
	b, _ := json.Marshal(summed) // strings always marshal
	return string(b)
}

// Stale reports whether VerifyImage may return another result: another policy covers the image, a
// policy has changed, a signature was never judged, an expiry has passed, a day has passed, or the
// clock was set back. It always returns true for the verdict ByIndex.
func Stale(image *imagev1.Image, set *policy.Set, now time.Time) bool {
	in := judgingOf(image, set, annotation.Found(image.Annotations))
	judged := annotation.JudgedAnywhere(image.Annotations)
	if !in.isCurrent(image, judged, now) {
		return true
	}
	for _, v := range judged {
		if v.Verified == verdicts.ByIndex {
			return true
		}
	}
	covered := slices.ContainsFunc(in.scopes, verdictScope.covered) || len(in.namespaced) > 0
	for _, s := range image.Signatures {
		if len(s.Conditions) == 0 {
			return true
		}
		if covered && slices.ContainsFunc(s.Conditions, func(c imagev1.SignatureCondition) bool {
			return now.Sub(c.LastProbeTime.Time) > probeInterval || tags.IsAhead(c.LastProbeTime.Time, now)
		}) {
			return true
		}
	}
	return false
}

// isCurrent reports whether the present policies gave the verdicts of an image, and no expiry has
// passed since. It ignores verdicts that depend on an index: another write updates these after the
// index.
func (j judging) isCurrent(image *imagev1.Image, judged map[string]annotation.Verdict, now time.Time) bool {
	if image.Annotations[AnnotationPolicy] != j.stamp() {
		return false
	}
	if image.Annotations[annotation.NamespacePolicy] != j.namespaceStamp() {
		return false
	}
	recheck, ok := image.Annotations[AnnotationRecheck]
	if !ok {
		return true
	}
	t, err := time.Parse(time.RFC3339, recheck)
	return err == nil && now.Before(t)
}

// stampOf returns a text that identifies the policies that apply to scopes; "" if no policy
// applies. more is how many scopes are left out.
func stampOf(scopes []verdictScope, more int) string {
	var stamps []string
	if more > 0 {
		stamps = append(stamps, fmt.Sprintf("%s@%s-%d", annotation.NotJudged, rules, more))
	}
	for _, p := range scopes {
		if p.err != nil {
			stamps = append(stamps, "-@"+rules)
		}
		for _, by := range p.policies {
			stamps = append(stamps, by.ID()+"@"+rules+"-"+by.Hash())
		}
	}
	slices.Sort(stamps)
	return strings.Join(slices.Compact(stamps), ",")
}

// PoliciesOf returns the hashes of the policies that judged an Image, by their IDs.
func PoliciesOf(image *imagev1.Image) map[string]string {
	hashes := map[string]string{}
	for _, key := range []string{AnnotationPolicy, annotation.NamespacePolicy} {
		for stamp := range strings.SplitSeq(image.Annotations[key], ",") {
			if at := strings.LastIndexByte(stamp, '@'); at >= 0 {
				if _, hash, ok := strings.Cut(stamp[at:], "-"); ok {
					hashes[stamp[:at]] = hash
				}
			}
		}
	}
	return hashes
}

// annotate sets an annotation, or removes it if value is "".
func annotate(image *imagev1.Image, key, value string) {
	if value == "" {
		delete(image.Annotations, key)
		return
	}
	image.Annotations[key] = value
}

func isNoPolicy(conditions []imagev1.SignatureCondition) bool {
	return slices.ContainsFunc(conditions, func(c imagev1.SignatureCondition) bool {
		return c.Type == verdicts.Trusted && c.Reason == string(ReasonNoMatchingPolicy)
	})
}

// clear removes the fields of a signature that only the server may set.
func clear(s *imagev1.ImageSignature) {
	s.Conditions = nil
	s.ImageIdentity, s.SignedClaims, s.Created, s.IssuedBy, s.IssuedTo = "", nil, nil, nil, nil
}

// apply writes the verdict into an ImageSignature and reports whether that changed it.
func (v *Verdict) apply(s *imagev1.ImageSignature, now time.Time) (changed bool) {
	before := *s
	clear(s)
	s.Conditions = v.conditions(before.Conditions, now)
	s.ImageIdentity, s.SignedClaims, s.Created = v.ImageIdentity, v.SignedClaims, v.Created
	s.IssuedBy, s.IssuedTo = v.IssuedBy, v.IssuedTo
	// The contents have not changed, so leave them out of the comparison: reflection takes 50 µs for
	// 10 KiB.
	after := *s
	before.Content, after.Content = nil, nil
	return !equality.Semantic.DeepEqual(before, after)
}

// conditions gives the verdict's conditions their times. An Expired or Revoked condition that is no
// longer True stays as False.
func (v *Verdict) conditions(before []imagev1.SignatureCondition, now time.Time) []imagev1.SignatureCondition {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	var after []imagev1.SignatureCondition
	for _, t := range verdicts.Conditions {
		c, ok := v.Condition(t)
		i := slices.IndexFunc(before, func(b imagev1.SignatureCondition) bool { return b.Type == t })
		if !ok {
			if i < 0 {
				continue
			}
			trusted, _ := v.Condition(verdicts.Trusted)
			// oc prints the message, not the status
			c = Condition{t, corev1.ConditionFalse, trusted.Reason, v.message("no longer")}
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
