package imageapi

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// verdict sums up the stored verdicts of an image.
type verdict struct {
	verified string
	signers  []string
	vouches  []string // repositories in which an index is verified
}

func (f *facts) verdict(obj runtime.Object) (v verdict) {
	if image, ok := obj.(*imagev1.Image); ok {
		v.verified, v.signers = f.summarize(image)
		v.vouches = vouchesIn(image)
	}
	return v
}

// reportVerdict reports a write that changed the image's verdict. It is called after the write, and
// not from genericregistry.Store's hooks: those run before the commit, and again when it meets
// another write.
func (r *imagesREST) reportVerdict(obj runtime.Object, before verdict, dryRun []string) {
	if dryrun.IsDryRun(dryRun) {
		return
	}
	r.reportVouching(obj, before.vouches)
	if r.verdictChanged == nil {
		return
	}
	after := r.facts.verdict(obj)
	if after.verified != before.verified || !slices.Equal(after.signers, before.signers) {
		r.verdictChanged(obj.(*imagev1.Image), after.verified, after.signers)
	}
}
