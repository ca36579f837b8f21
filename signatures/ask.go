package signatures

import (
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// PoliciesFor returns the policies that an image must meet when it is asked for by a reference,
// with a tag or a digest: those of the cluster, and where there are none, those of the namespace.
// They are chosen as containers/image chooses them.
func PoliciesFor(asked reference.Reference, namespace string, set *policy.Set) []*policy.Policy {
	if by := set.For(asked); len(by) > 0 {
		return by
	}
	return set.InNamespaces(asked)[namespace]
}

// Ask returns the verdict on an Image that is asked for by a reference with a tag or a digest: what
// the signatures in the reference's repository are worth by PoliciesFor, for that very reference.
// The verdict that the Image holds is taken if it answers the same question and is current; if not,
// the signatures are judged now. So what is asked about needs no place among the verdicts that an
// Image holds. The zero Verdict says that no policy covers the reference.
//
// The Image has to come from storage, and to be in the repository: Ask does not look whether it is.
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
	seen := counter{holdersOf(found), map[string]int{}}
	var judged []judgement
	for i := range image.Signatures {
		if counts, tooMany := seen.count(p, &image.Signatures[i]); counts && !tooMany {
			judged = append(judged, p.judge(&image.Signatures[i], image, now)...)
		}
	}
	if indexes == nil {
		indexes = func(string) ([]*imagev1.Image, error) { return nil, nil }
	}
	v, _ := p.summarize(judged, leftOutOf(found[p.repository], annotation.JudgedBy(in.stamp(), in.namespaceStamp())), indexes, image.Name, now)
	return v
}

// Forced reports whether a verdict is Unknown for something that anybody who may push to the
// repository can cause: signatures in a format that nothing can judge, too many or too large ones.
// To enforce a policy, that counts as none. Otherwise Unknown is for what they do not cause: the
// registry, or the store, could not be read.
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

// answers reports whether a verdict for p is one for the scope that is asked about: the same
// policies judge the same signatures, and none of them looks at what differs between the
// references.
func (p verdictScope) answers(asked verdictScope) bool {
	if p.repository != asked.repository || p.namespace != asked.namespace || p.err != nil || !slices.Equal(p.policies, asked.policies) {
		return false
	}
	return p.ref == asked.ref || p.tag == "" && !slices.ContainsFunc(p.policies, func(by *policy.Policy) bool { return by.LooksAtTags() })
}
