package image

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// REST is the storage of images: the generic one, a guard before selectors by use, and reports of
// verdicts that change.
//
// Whether an image is used is computed for each request, because pods come and go without a change
// of any image. A list of used images starts from the images that pods use (listUsed). A list of
// unused images checks every image that the rest of the selector leaves.
type REST struct {
	*genericregistry.Store
	artifacts *genericregistry.Store
	// nil if there is none
	get      func(ctx context.Context, digest string) (*imagev1.Image, error)
	Facts    *facts
	packages Packages // nil if packages of images are not known
	streams  Streams  // nil for Stored
	// nil knows references as they are recorded on images, and the verdicts that these hold
	answers   Answers
	observer  Observer // nil for none
	answering Answering
}

// Streams is the part of the storage of streams that the storage of images calls.
type Streams interface {
	// Referrers returns the tag of the referrers that an image has in the registry of streams, if
	// it belongs to one there: Pushed must then be called.
	Referrers(image *imagev1.Image) (reference.Reference, bool)
	// PushedAgain is called when an Image is created that exists already.
	PushedAgain(ctx context.Context, sent *imagev1.Image) error
	// Pushed is called after the registry of streams has stored content under this reference.
	Pushed(ctx context.Context, ref reference.Reference) error
	// Leading returns some of the tags that lead to an image now, as namespace/stream:tag. whole is
	// false if there may be others beside none.
	Leading(ctx context.Context, image string) (leading []string, whole bool, err error)
}

// Answering answers creations, such as a storedjson.Getter.
type Answering interface {
	// AnswerCreation is called before a creation and returns the context to create with. answer is
	// called after it and returns the object to answer with: the created one, or one that knows its
	// encoding (runtime.CacheableObject).
	AnswerCreation(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object)
}

// created answers with the created object.
type created struct{}

// AnswerCreation is part of [Answering].
func (created) AnswerCreation(ctx context.Context) (context.Context, func(runtime.Object) runtime.Object) {
	return ctx, func(obj runtime.Object) runtime.Object { return obj }
}

// Options are the options of the storage of images.
type Options struct {
	// Scheme is a scheme that Install was called with.
	Scheme *runtime.Scheme
	// Verifier judges signatures whenever they are written; nil judges none.
	Verifier Verifier
	// Verdicts are for tests; nil reads those that are stored in images.
	Verdicts Verdicts
	// Observer learns which writes change verdicts; it may be nil.
	Observer Observer
	// Answering answers creations; nil answers with the created object.
	Answering Answering
	// Usage counts the pods that use an image; nil when there are none to count.
	Usage Usage
	// Packages knows the packages of images; nil if the server stores none.
	Packages Packages
	// Drift counts the pods that run something else than the tags that they name lead to; nil means
	// unknown.
	Drift Drift
	// Mirrors may be nil: there are none.
	Mirrors Mirrors
	// Tags are the stored ImageTags.
	Tags *genericregistry.Store
}

// Verdicts reads the verdicts stored in an image. The methods are index functions: they depend on
// the image alone, and if they change their minds the indexes must be built again.
type Verdicts interface {
	// Summarize sums them up: verified is True, ByIndex, False, Unknown, Unsigned or NoPolicy;
	// signers are the distinct signers of the trusted signatures.
	Summarize(image *imagev1.Image) (verified string, signers []string)
	// Attested does the same for attestations: True, False, Unknown or ByIndex, and "" if an image
	// has none and none is demanded.
	Attested(image *imagev1.Image) string
	// Held returns the verdict in each place where the image is.
	Held(image *imagev1.Image) []annotation.HeldVerdict
}

// Observer is called for writes by any client that change verdicts. Its methods must not wait.
type Observer interface {
	// JudgedAgain is called after each write of a stored image that changed a verdict anywhere, its
	// signers or reason, or the policies that judge it. turned are the verdicts with another word than
	// before. swept is true if the write was made to have it judged, as sweeps do. It must not change
	// the image.
	JudgedAgain(image *imagev1.Image, turned []signatures.Change, swept bool)
	// VerdictChanged is called after each other write that changes what Summarize says of an image:
	// a new image, before which that was "", an image that is in one more repository, another
	// signer.
	VerdictChanged(image *imagev1.Image, before, verified string, signers []string)
	// IndexVerdictChanged is called after each write of an index that is verified in other
	// repositories than before, or no longer in any: the images that it lists must be judged again.
	IndexVerdictChanged(index *imagev1.Image)
}

// Drift counts the pods that run something else than the tags that they name lead to.
type Drift interface {
	// Naming counts the pods that name a tag and run something else than it leads to. complete is
	// false if there may be more.
	Naming(tag reference.Reference) (n int, complete bool)
	// Running counts the pods that run one of some digests though a tag that they name leads
	// elsewhere.
	Running(digests []string) (n int, known bool)
}

// Packages knows which packages images have. Package imagepackages has it.
type Packages interface {
	// With returns images that have a package, sorted by name: those whose names are not before
	// from, about limit of them, at a revision or, if that is 0, now. The answer is of the revision
	// at. more is the name from which there may be more.
	With(ctx context.Context, value, from string, revision int64, limit int) (names []string, at int64, more string, err error)
	// Count is how many images have a list of packages, and Partly reports whether one lacks
	// packages of its image.
	Count(ctx context.Context) (int64, error)
	Partly(ctx context.Context) (bool, error)
	// Forget is called after an image was deleted.
	Forget(ctx context.Context, image string) error
}

// Usage knows the pods, and the workloads: what makes pods, whether it runs any or not.
type Usage interface {
	// PodsUsing returns how many pods use an image with one of these digests or other keys, or, of
	// pods that name no digest, one of these references. A key may be followed by a platform, as
	// in sha256:…@linux/arm64: then pods on nodes of other platforms do not count. It is called for
	// each image of a list, so it must be quick.
	PodsUsing(digests []string, references []reference.Reference) int
	// Used returns the keys among the given ones that pods use.
	Used(keys []string) []string
	// InUse returns the digests that pods use or workloads need, and the other keys.
	InUse() (digests, others []string)
	// Telling returns the keys of pods that tell an ID instead of a digest.
	Telling(id string) (keys []string)
	// Named returns the tags that pods or workloads name without saying, by its digest, which
	// manifest they use, and a version of them; none if the caller has that version.
	Named(has uint64) (all []usage.Named, version uint64)
	// Reporting returns the tags of pods whose runtime reports one of some digests as the manifest's.
	// The ID of each Named is this digest.
	Reporting(digests []string) []usage.Named
	// Subscribe calls f with digests, and with IDs, whose number of pods or of workloads has changed.
	Subscribe(f func(digests []string)) (cancel func())
	// UsedBy returns where these pods are: clusters, and namespaces as cluster/namespace, sorted.
	UsedBy(digests []string, references []reference.Reference) []string
	// Users returns these pods, up to limit of them, as cluster/namespace/name, sorted.
	Users(digests []string, references []reference.Reference, limit int) []string
	// NeededBy returns workloads that need an image, up to limit of them, as
	// cluster/namespace/resource/name, sorted.
	NeededBy(digests []string, references []reference.Reference, limit int) []string
	// Synced reports whether all pods that are stored are known.
	Synced() bool
	// Complete reports whether the pods of every cluster are known, so that a count of zero means
	// that there is none.
	Complete() bool
	// Unfollowed returns why nothing is known about pods elsewhere, if no cluster is followed;
	// otherwise "".
	Unfollowed() string
	// StaleReasons names the clusters whose pod data is missing or out of date, how old it is, and
	// why.
	StaleReasons() []string
	// WorkloadStaleReasons lists the workloads that are missing or out of date in clusters whose
	// pods are known, and why.
	WorkloadStaleReasons() []string
}

// Answers answers the questions of lists and tables of images about references. Package answers
// implements it.
type Answers interface {
	// Leads returns the reference for which a reference with a tag or a digest stands (its source if
	// it is a mirror's name, otherwise itself), and the digest to which it leads now: "" if its
	// registry no longer has the tag, or the repository is not known to have the digest. known is
	// false if it is not known where a tag leads.
	Leads(ctx context.Context, ref reference.Reference) (of reference.Reference, digest string, known bool, err error)
	// Judge returns the verdict on an image for a reference with a tag or a
	// digest, for pods of a namespace, or of no namespace.
	Judge(ctx context.Context, image *imagev1.Image, asked reference.Reference, namespace string) (annotation.Verdict, error)
	// LacksPackages returns why a caller may not see which packages images have, or "" if the caller
	// may.
	LacksPackages(ctx context.Context) string
	// LacksPods does the same for the pods of clusters, and for the places where an image is used.
	LacksPods(ctx context.Context) string
}

// Mirrors knows the names that references have on mirrors.
type Mirrors interface {
	// Sources returns the references that a mirror's name may stand for; none if it is of no mirror.
	Sources(ref reference.Reference) []reference.Reference
}

// The fields that images are selected by.
const (
	nameField         = "metadata.name"
	digestField       = selectors.Digest // the beginning of the name; see listByDigest
	referenceField    = "dockerImageReference"
	mediaTypeField    = "dockerImageManifestMediaType"
	architectureField = "dockerImageMetadata.Architecture"
	verifiedField     = "signatures.verified"
	signerField       = selectors.Signer        // one value for each signer
	attestedField     = "attestations.verified" // "" of most
	// one value for each reference and repository that the image is known by
	knownField = selectors.References
	// the same, without looking up where a tag leads now
	recordedField = selectors.RecordedReferences
	// one value for each repository that the image is in, with the verdict there
	verdictsField = selectors.Verdicts
	// of an index: the images that are verified through it
	indexVerdictsField = selectors.IndexVerdicts
	listsField         = selectors.Lists // of an index: the images that it lists
	layerField         = selectors.Layer // the digests of the layers
	configField        = selectors.Config
	// the base that the annotations name, by digest, reference and repository
	baseField = selectors.Base
	// one value for each kind of warning about the image
	warningsField = selectors.Warnings
	packageField  = selectors.Package // of another kind; see listWithPackage
	// "true" if a repository no longer has the digest
	goneField        = selectors.Gone
	unprintableField = selectors.Unprintable
	usedField        = "used" // computed when asked, and not stored
	// the same, with one value for each cluster and namespace that has pods which use the image
	usedByField = selectors.UsedBy
)
