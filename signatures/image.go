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

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// rules is a version of this package's judgement, part of AnnotationPolicy. Raising it has every stored verdict
// computed again.
const rules = "v4"

// probeInterval is how long a condition that has not changed keeps its lastProbeTime, so that looking again does
// not write every Image again.
const probeInterval = 24 * time.Hour

// maxJudged bounds the signatures that are judged in one Image, and likewise the attestations, however many a client wrote
// into it.
const maxJudged = 64

// Indexes finds a verified index in a repository whose manifest lists the image that is judged; nil if there is none. After
// an error the verdict is Unknown, and the image is judged again an hour later.
type Indexes func(repository string) (*imagev1.Image, error)

// indexRetry is the time after which an image is judged again if an index could not be read.
const indexRetry = time.Hour

// VerifyImage computes the verdict on every signature of an Image, in every repository that the image is in, and writes the
// verdicts into the Image.
//
// A signature counts in the repositories where it was found; one that a client wrote counts in all. A signature's own
// conditions, and its fields that say who signed what, come from the worst of its verdicts in repositories that a policy
// covers, and name that repository. The annotation annotation.Verdicts has the verdict of each repository, annotation.Policy
// names the policies used, and annotation.Recheck says when to look again. How many signatures repositories may bring is
// bounded, see bound. A repository's signatures leave with it.
//
// Policies of namespaces change nothing of this. The annotation annotation.NamespaceVerdicts has the verdicts by them.
//
// covered tells whether a policy covers the image anywhere. When none does, conditions that somebody else has set stay as
// they are (`oc adm verify-image-signature --save` works). Verdicts left by a policy that is gone become Unknown, and so do
// signatures without conditions.
//
// The Image has to come from storage and not from a client. Of its earlier verdicts only the times count. changed tells
// whether the Image differs from before. A condition's lastTransitionTime changes only with its status. Its lastProbeTime
// changes when anything in it does, or after a day.
func VerifyImage(image *imagev1.Image, set *policy.Set, now time.Time, indexes Indexes) (changed, covered bool) {
	annotations, before := maps.Clone(image.Annotations), len(image.Signatures)
	_, wasOurs := annotations[AnnotationPolicy]
	found := annotation.Found(annotations)
	scopes := scopesOf(image, set, found)
	dropOfFormer(image, found, scopes)
	covered = slices.ContainsFunc(scopes, verdictScope.covered)
	namespaced := inNamespaces(image, set, scopes)

	in, recheck := holdersOf(found), time.Time{}
	judged := make(map[string][]judgement, len(scopes))
	judgeAgain := func(at time.Time) {
		if !at.IsZero() && (recheck.IsZero() || at.Before(recheck)) {
			recheck = at
		}
	}
	vouching := func(repository string) (*imagev1.Image, error) {
		if indexes == nil {
			return nil, nil
		}
		index, err := indexes(repository)
		if err != nil {
			judgeAgain(now.Add(indexRetry))
		}
		return index, err
	}
	judgeIn := func(p verdictScope, s *imagev1.ImageSignature) []judgement {
		all := p.judge(s, image, now)
		for _, j := range all {
			judgeAgain(j.NotAfter)
		}
		judged[p.key()] = append(judged[p.key()], all...)
		return all
	}
	seen := map[bool]int{} // signatures and attestations are counted apart
	for i := range image.Signatures {
		s := &image.Signatures[i]
		seen[isAttestation(s)]++
		for _, p := range namespaced {
			if seen[isAttestation(s)] <= maxJudged && in.count(s, p.repository) {
				judgeIn(p, s)
			}
		}
		worst := noPolicy(scopes[0].ref)
		switch {
		case covered && seen[isAttestation(s)] > maxJudged:
			worst = unjudged(evidence.UnsupportedFormat, fmt.Sprintf("only the first %d signatures, and as many attestations, of an image are judged", maxJudged))
		case covered:
			first := true
			for _, p := range scopes {
				if !p.covered() || !in.count(s, p.repository) {
					continue
				}
				best := slices.MaxFunc(judgeIn(p, s), func(a, b judgement) int { return cmp.Compare(a.tells(), b.tells()) })
				if first || best.goodness() < worst.goodness() {
					worst, first = best.Verdict, false
				}
			}
		case !wasOurs && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions):
			continue // set by an admin
		}
		changed = worst.apply(s, now) || changed
	}

	stamp, summed, inSpaces := stampOf(scopes), map[string]annotation.Verdict{}, map[string]annotation.Verdict{}
	by := annotation.JudgedBy(stamp, stampOf(namespaced))
	bound(image, found, by, ranks(slices.Concat(scopes, namespaced), judged))
	left := func(p verdictScope) leftOut {
		r := found[p.repository]
		return leftOut{signatures: len(r.LeftOut), attestations: len(r.AttestationsLeftOut), byOthers: r.LeftOutBy != by}
	}
	for _, p := range scopes {
		if p.covered() {
			summed[p.key()] = p.sum(held(image, judged[p.key()]), left(p), vouching)
		}
	}
	says := len(image.Signatures) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(summed)), func(v annotation.Verdict) bool { return v.Verified != verdicts.Unsigned || v.Reason != "" })
	if !says {
		stamp, summed = "", nil
	}
	for _, p := range namespaced {
		inSpaces[p.key()] = p.sum(held(image, judged[p.key()]), left(p), vouching)
	}
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	if _, ok := annotations[annotation.Repositories]; ok {
		annotation.SetFound(image.Annotations, found)
	}
	annotate(image, annotation.Verdicts, encodeVerdicts(summed))
	annotate(image, annotation.NamespaceVerdicts, encodeVerdicts(inSpaces))
	annotate(image, AnnotationPolicy, stamp)
	annotate(image, annotation.NamespacePolicy, stampOf(namespaced))
	next := ""
	if !recheck.IsZero() {
		// Certificates and keys have times in whole seconds, and are valid until the end of the last one.
		next = recheck.UTC().Add(time.Second).Format(time.RFC3339)
	}
	annotate(image, AnnotationRecheck, next)
	if len(image.Annotations) == 0 {
		image.Annotations = nil
	}
	return changed || before != len(image.Signatures) || !maps.Equal(annotations, image.Annotations), covered
}

// judge returns each policy's verdict on a signature in a repository that at least one policy covers.
func (p verdictScope) judge(s *imagev1.ImageSignature, image *imagev1.Image, now time.Time) []judgement {
	name, size := half(s.Name), len(s.Content)
	if p.err != nil {
		return []judgement{{name, size, isAttestation(s), "", unjudged(ReasonNoMatchingPolicy, "no policy can be chosen: "+p.err.Error())}}
	}
	target := Image{Digest: image.Name, Reference: p.ref.String()}
	if image.DockerImageManifest != "" {
		target.Manifest = []byte(image.DockerImageManifest)
	}
	var all []judgement
	for _, by := range p.policies {
		all = append(all, judgement{name, size, isAttestation(s), by.ID(), judge(Signature{s.Type, s.Content}, target, p.ref, by, now)})
	}
	return all
}

func encodeVerdicts(summed map[string]annotation.Verdict) string {
	if len(summed) == 0 {
		return ""
	}
	b, _ := json.Marshal(summed) // strings always marshal
	return string(b)
}

// Stale tells whether VerifyImage may find something new. It may when another policy covers the image, a policy has changed,
// a signature was never looked at, an expiry has passed, or a day has. A verdict that an index vouches for may always have
// changed.
func Stale(image *imagev1.Image, set *policy.Set, now time.Time) bool {
	scopes := scopesOf(image, set, annotation.Found(image.Annotations))
	namespaced := inNamespaces(image, set, scopes)
	judged := annotation.JudgedAnywhere(image.Annotations)
	if !isCurrent(image, scopes, namespaced, judged, now) {
		return true
	}
	for _, v := range judged {
		if v.Verified == verdicts.ByIndex {
			return true
		}
	}
	covered := slices.ContainsFunc(scopes, verdictScope.covered) || len(namespaced) > 0
	for _, s := range image.Signatures {
		if len(s.Conditions) == 0 {
			return true
		}
		if covered && slices.ContainsFunc(s.Conditions, func(c imagev1.SignatureCondition) bool {
			return now.Sub(c.LastProbeTime.Time) > probeInterval
		}) {
			return true
		}
	}
	return false
}

// Current tells whether the verdicts of an image are by the policies of set, and no expiry has passed since. It does not ask
// about verdicts that an index vouches for: these follow the index in another write.
func Current(image *imagev1.Image, set *policy.Set, now time.Time) bool {
	scopes := scopesOf(image, set, annotation.Found(image.Annotations))
	return isCurrent(image, scopes, inNamespaces(image, set, scopes), annotation.JudgedAnywhere(image.Annotations), now)
}

func isCurrent(image *imagev1.Image, scopes, namespaced []verdictScope, judged map[string]annotation.Verdict, now time.Time) bool {
	if stamp := image.Annotations[AnnotationPolicy]; stamp != stampOf(scopes) && (len(image.Signatures) > 0 || len(judged) > 0 || stamp != "") {
		return false
	}
	if image.Annotations[annotation.NamespacePolicy] != stampOf(namespaced) {
		return false
	}
	recheck, ok := image.Annotations[AnnotationRecheck]
	if !ok {
		return true
	}
	t, err := time.Parse(time.RFC3339, recheck)
	return err == nil && now.Before(t)
}

// stampOf is the value of AnnotationPolicy: "" when no policy applies.
func stampOf(scopes []verdictScope) string {
	var stamps []string
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

// clear takes off a signature all that only the server may say of it.
func clear(s *imagev1.ImageSignature) {
	s.Conditions = nil
	s.ImageIdentity, s.SignedClaims, s.Created, s.IssuedBy, s.IssuedTo = "", nil, nil, nil, nil
}

// apply writes the verdict into an ImageSignature and tells whether that changed it.
func (v *Verdict) apply(s *imagev1.ImageSignature, now time.Time) (changed bool) {
	before := *s
	clear(s)
	s.Conditions = v.conditions(before.Conditions, now)
	s.ImageIdentity, s.SignedClaims, s.Created = v.ImageIdentity, v.SignedClaims, v.Created
	s.IssuedBy, s.IssuedTo = v.IssuedBy, v.IssuedTo
	// The contents have not changed, so they are not compared: reflection takes 50 us for each 10 KiB of them.
	after := *s
	before.Content, after.Content = nil, nil
	return !equality.Semantic.DeepEqual(before, after)
}

// conditions gives the verdict's conditions their times. An Expired or Revoked condition that was True and is no more stays
// as False.
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
