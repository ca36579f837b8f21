package image

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/table"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// facts answers questions about images that their own fields do not answer.
type facts struct {
	summarize func(image *imagev1.Image) (verified string, signers []string)
	attested  func(image *imagev1.Image) string
	held      func(image *imagev1.Image) []annotation.HeldVerdict
	usage     Usage                                      // nil if pods are not known
	outdated  func(digests []string) (n int, known bool) // nil if that is not known
	indexes   *usedIndexes
}

func newFacts(opts Options) *facts {
	f := &facts{summarize: opts.Summarize, attested: opts.Attested, held: opts.Held, usage: opts.Usage, outdated: opts.Outdated}
	if f.summarize == nil {
		f.summarize = summarizeUnjudged
	}
	if f.attested == nil {
		f.attested = attestedUnjudged
	}
	if f.held == nil {
		f.held = func(image *imagev1.Image) (all []annotation.HeldVerdict) {
			verified, signers := f.summarize(image)
			for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
				all = append(all, annotation.HeldVerdict{Place: repository.String(), Verdict: annotation.Verdict{Verified: verified, Signers: signers, Attested: f.attested(image)}})
			}
			return all
		}
	}
	return f
}

// summarizeUnjudged is the summary of a server that does not judge signatures.
func summarizeUnjudged(image *imagev1.Image) (verified string, signers []string) {
	if countSignatures(image) == 0 {
		return verdicts.NoPolicy, nil
	}
	return verdicts.VerifiedUnknown, nil
}

// attestedUnjudged is the same for attestations.
func attestedUnjudged(image *imagev1.Image) string {
	if countSignatures(image) == len(image.Signatures) {
		return ""
	}
	return verdicts.VerifiedUnknown
}

// countSignatures counts the signatures of an image, without attestations.
func countSignatures(image *imagev1.Image) (n int) {
	for i := range image.Signatures {
		if image.Signatures[i].Type != verdicts.TypeAttestation {
			n++
		}
	}
	return n
}

// used says whether pods use the image. It is "unknown" while not all pods are known and no known
// pod does.
func (f *facts) used(image *imagev1.Image) string {
	switch {
	case f.pods(image.Name, image) > 0:
		return "true"
	case f.usage != nil && !f.complete():
		return "unknown"
	}
	return "false"
}

// complete reports whether a count of zero means that there is no pod.
func (f *facts) complete() bool {
	return f.usage.Unfollowed() == "" && f.usage.Complete() && f.indexes.complete()
}

// podsCell is the number of pods as people read it: with a plus while there may be more.
func (f *facts) podsCell(image *imagev1.Image) string {
	return table.Count(f.pods(image.Name, image), f.usage != nil && f.complete())
}

// outdatedCell is the number of pods that run the image though a tag that they name leads
// elsewhere.
func (f *facts) outdatedCell(image *imagev1.Image) string {
	if f.outdated == nil {
		return table.None
	}
	digests, _ := f.by(image.Name, image)
	n, known := f.outdated(digests)
	return table.Count(n, known && f.complete())
}

// warnOfStale warns a client that asks about pods of clusters whose pods are not known as of now.
func (f *facts) warnOfStale(ctx context.Context) {
	if f.usage == nil {
		return
	}
	f.indexes.readAgain(ctx)
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok && info.Verb == "watch" {
		// its headers have been sent
		return
	}
	for _, doubt := range f.allStaleReasons() {
		warning.AddWarning(ctx, "", doubt)
	}
}

// References are all references that the image is known by.
func References(image *imagev1.Image) []reference.Reference {
	known := annotation.Known(image.Annotations)
	if ref, err := reference.Parse(image.DockerImageReference); err == nil {
		known = append(known, ref)
	}
	return known
}

// IsIn reports whether an image is or was known to be in a repository.
func IsIn(image *imagev1.Image, repository reference.Reference) bool {
	return annotation.WasIn(image.Annotations, image.DockerImageReference, repository)
}
