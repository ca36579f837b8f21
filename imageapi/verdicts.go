package imageapi

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// verdict is what the stored verdicts of an image come to.
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

// reportVerdict tells of a write if the image's verdict is no longer what it was before. It is called
// after the write and not from the hooks that genericregistry.Store has for what goes with a write:
// those run before the commit, and again when it meets another write.
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
