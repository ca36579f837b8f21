package image

import (
	"cmp"
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// facts answers questions about images that their own fields do not answer.
type facts struct {
	stored  Verdicts
	usage   Usage // nil if pods are not known
	drift   Drift // nil if that is not known
	indexes *usedIndexes
	named   tagNames
	mirrors Mirrors // nil if there are none
}

func newFacts(opts Options) *facts {
	return &facts{stored: cmp.Or[Verdicts](opts.Verdicts, storedVerdicts{}), usage: opts.Usage, drift: opts.Drift, mirrors: opts.Mirrors}
}

// storedVerdicts are the verdicts that are stored in an image.
type storedVerdicts struct{}

func (storedVerdicts) Summarize(image *imagev1.Image) (verified string, signers []string) {
	verified, signers, _ = signatures.Summary(image)
	return verified, signers
}

func (storedVerdicts) Attested(image *imagev1.Image) string { return signatures.Attested(image) }

func (storedVerdicts) Held(image *imagev1.Image) []annotation.HeldVerdict {
	return signatures.Held(image)
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

// used returns whether pods use the image: "unknown" if no known pod does and not all pods are
// known.
func (f *facts) used(image *imagev1.Image) string {
	switch {
	case f.pods(image.Name, image) > 0:
		return "true"
	case f.usage != nil && (!f.complete() || f.uncertain(image.Name, image) != ""):
		return "unknown"
	}
	return "false"
}

// complete reports whether a count of zero means that there is no pod now.
func (f *facts) complete() bool {
	return f.usage.Unfollowed() == "" && f.usage.Complete() && len(f.usage.StaleReasons()) == 0 && f.indexes.complete()
}

// podsCell is the number of pods as people read it: with a plus while there may be more.
func (f *facts) podsCell(image *imagev1.Image) string {
	return table.Count(f.pods(image.Name, image), f.usage != nil && f.complete() && f.uncertain(image.Name, image) == "")
}

// outdatedCell is the number of pods that run the image though a tag that they name leads
// elsewhere.
func (f *facts) outdatedCell(image *imagev1.Image) string {
	if f.drift == nil {
		return table.None
	}
	digests, _ := f.by(image.Name, image)
	n, known := f.drift.Running(digests)
	return table.Count(n, known && f.complete())
}

// readAgain reads what has to be known before use is answered.
func (f *facts) readAgain(ctx context.Context) {
	f.indexes.readAgain(ctx)
	f.refreshNames(ctx)
}

// warnOfStale warns a client that asks about pods while pods of some clusters are missing or out of
// date.
func (f *facts) warnOfStale(ctx context.Context) {
	if f.usage == nil {
		return
	}
	f.readAgain(ctx)
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
