package signatures

import (
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// PoliciesFor returns the policies that an image must meet when a reference, with a tag or a
// digest, names it: the cluster's policies or, if none of them covers the reference, the
// namespace's. The choice follows containers/image.
func PoliciesFor(asked reference.Reference, namespace string, set *policy.Set) []*policy.Policy {
	if by := set.For(asked); len(by) > 0 {
		return by
	}
	return set.InNamespaces(asked)[namespace]
}

// Ask returns the verdict on an Image for a reference to it, with a tag or a digest. It judges the
// signatures in the reference's repository by PoliciesFor, for that very reference. If the Image
// stores a current verdict for this reference, Ask returns it. Otherwise it judges the signatures
// now. So it also works for references without a stored verdict. The zero Verdict means that no
// policy covers the reference.
//
// The Image must come from storage and be in the repository: Ask does not check that.
func Ask(image *imagev1.Image, asked reference.Reference, namespace string, set *policy.Set, now time.Time, indexes Indexes) annotation.Verdict {
	p := verdictScope{repository: asked.Name(), ref: asked, policies: PoliciesFor(asked, namespace, set)}
	if len(p.policies) == 0 {
		return annotation.Verdict{}
	}
	if p.policies[0].Namespace != "" {
		p.namespace = namespace
	}
	found := annotation.Found(image.Annotations)
	in, held := judgingOf(image, set, found), annotation.JudgedAnywhere(image.Annotations)
	if in.isCurrent(image, held, now) {
		for _, other := range in.all() {
			if v, ok := held[other.key()]; ok && other.answers(p) {
				return v
			}
		}
	}
	p.found = found[p.repository]
	judged := p.judgeAll(image, holdersOf(found), now, checks{})
	if indexes == nil {
		indexes = func(string) ([]*imagev1.Image, error) { return nil, nil }
	}
	v, _ := p.summarize(judged, leftOutOf(found[p.repository], annotation.JudgedBy(in.stamp(), in.namespaceStamp())), indexes, image, now)
	return v
}

// Forced reports whether a verdict is Unknown for a reason that every user who may push to the
// repository can cause: signatures that are too many, too large, or in an unsupported format.
// Enforcement treats such an image as unsigned. The other reasons are that the registry or the
// store could not be read, which a pusher cannot cause.
func Forced(v annotation.Verdict) bool {
	if v.Verified != verdicts.VerifiedUnknown {
		return false
	}
	switch evidence.Reason(v.Reason) {
	case ReasonSearchIncomplete, ReasonIndexUnreadable, ReasonNotJudged, ReasonNoMatchingPolicy:
		return false
	}
	return true
}

// answers reports whether a verdict for p is also valid for asked: the same policies judge the same
// signatures, and no policy depends on the difference between the references.
func (p verdictScope) answers(asked verdictScope) bool {
	if p.repository != asked.repository || p.namespace != asked.namespace || p.err != nil || !slices.Equal(p.policies, asked.policies) {
		return false
	}
	return p.ref == asked.ref || p.tag == "" && !slices.ContainsFunc(p.policies, func(by *policy.Policy) bool { return by.LooksAtTags() })
}
