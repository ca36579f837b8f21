package image

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// verdict sums up the stored verdicts of an image.
type verdict struct {
	verified string
	signers  []string
	vouches  []string // repositories in which an index is verified
	image    *imagev1.Image
	swept    bool // the write asks to judge it again
}

func (f *facts) verdict(obj runtime.Object) (v verdict) {
	if image, ok := obj.(*imagev1.Image); ok {
		v.verified, v.signers = f.stored.Summarize(image)
		v.vouches, v.image = verifiedRepositories(image), image
	}
	return v
}

// reportVerdict reports a write that changed the image's verdict. It is called after the write, and
// not from genericregistry.Store's hooks: those run before the commit, and again when it meets
// another write.
func (r *REST) reportVerdict(obj runtime.Object, before verdict, dryRun []string) {
	if dryrun.IsDryRun(dryRun) || r.observer == nil {
		return
	}
	r.reportIndexVerdict(obj, before.vouches)
	var turned []signatures.Change
	if after, ok := obj.(*imagev1.Image); ok && before.image != nil && !isJudged(after, before.image) {
		turned = signatures.Changes(before.image, after)
		if len(turned) > 0 || isJudgedOtherwise(before.image, after) {
			r.observer.JudgedAgain(after, turned, before.swept)
		}
	}
	after := r.Facts.verdict(obj)
	if demanded(after.verified) == demanded(before.verified) && slices.Equal(after.signers, before.signers) ||
		slices.ContainsFunc(turned, func(c signatures.Change) bool { return c.Verified == after.verified }) {
		return
	}
	r.observer.VerdictChanged(obj.(*imagev1.Image), before.verified, after.verified, after.signers)
}

// isJudgedOtherwise reports whether two states of an image hold different verdicts, by other
// signers or for other reasons, too, or were judged by different policies.
func isJudgedOtherwise(before, after *imagev1.Image) bool {
	return slices.ContainsFunc([]string{annotation.Verdicts, annotation.NamespaceVerdicts, annotation.TagVerdicts, annotation.Policy, annotation.NamespacePolicy}, func(key string) bool {
		return before.Annotations[key] != after.Annotations[key]
	})
}

// demanded is a verdict without the difference between Unsigned and NoPolicy: that a new policy
// covers an unsigned image is in the policy's status, and not in an Event for each image.
func demanded(verified string) string {
	if verified == verdicts.NoPolicy {
		return verdicts.Unsigned
	}
	return verified
}
