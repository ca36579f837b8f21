package imageapi

import (
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Usage knows the pods.
type Usage interface {
	// PodsUsing returns how many pods use an image with one of these digests, or, of pods that name
	// no digest, one of these references. It is asked for each image of a list, so it must be quick.
	PodsUsing(digests []string, references []reference.Reference) int
	// InUse returns the digests that pods use, and the references of those that name no digest, in
	// full form: docker.io/library/nginx:latest.
	InUse() (digests, references []string)
	// Subscribe has f called with digests whose number of pods has changed.
	Subscribe(f func(digests []string)) (cancel func())
	// Synced reports whether all pods are known, so that a count of zero means that there is none.
	Synced() bool
}

// facts are what is asked about images that their own fields do not say.
type facts struct {
	summarize func(image *imagev1.Image) (verified string, signers []string)
	usage     Usage // nil when nobody knows
	indexes   *usedIndexes
}

func newFacts(opts Options) *facts {
	f := &facts{summarize: opts.Summarize, usage: opts.Usage}
	if f.summarize == nil {
		f.summarize = summarizeUnjudged
	}
	return f
}

// summarizeUnjudged is the summary where nobody judges signatures.
func summarizeUnjudged(image *imagev1.Image) (verified string, signers []string) {
	if countSignatures(image) == 0 {
		return verdicts.Unsigned, nil
	}
	return verdicts.VerifiedUnknown, nil
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

// pods counts the pods that use the image now; 0 when nobody knows.
func (f *facts) pods(image *imagev1.Image) int {
	if f.usage == nil {
		return 0
	}
	return f.usage.PodsUsing(append(f.indexes.of(image.Name), image.Name), references(image))
}

// references are all that the image is known by.
func references(image *imagev1.Image) []reference.Reference {
	known := annotation.Known(image.Annotations)
	if ref, err := reference.Parse(image.DockerImageReference); err == nil {
		known = append(known, ref)
	}
	return known
}
