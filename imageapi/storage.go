package imageapi

import (
	"cmp"
	"context"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimage"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreammapping"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamtag"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
)

// Options of the storage.
type Options struct {
	// Scheme is a scheme that Install was called with. Required.
	Scheme *runtime.Scheme
	// Verifier, Summarize, Attested, Held, VerdictChanged, JudgedAgain, IndexVerdictChanged,
	// AnswerCreation and Usage are for images: see Options.
	Verifier            imageregistry.Verifier
	Summarize           func(image *imagev1.Image) (verified string, signers []string)
	Attested            func(image *imagev1.Image) string
	Held                func(image *imagev1.Image) []annotation.HeldVerdict
	VerdictChanged      func(image *imagev1.Image, before, verified string, signers []string)
	JudgedAgain         func(before, after *imagev1.Image)
	IndexVerdictChanged func(index *imagev1.Image)
	AnswerCreation      func(ctx context.Context) (_ context.Context, answer func(runtime.Object) runtime.Object)
	Usage               imageregistry.Usage
	// Packages knows which packages images have; it may be nil.
	Packages imageregistry.Packages
	// Checked completes ImageTags that are read with what was confirmed without a change; see
	// imagestreamtag.NewImageTagsREST.
	Checked func(ctx context.Context, all []*imagev1.ImageTag)
	// Outdated and OutdatedImage count the pods that name a tag and run something else than it
	// leads to: those that name one tag, and those that run an image. They may be nil.
	Outdated      imagetag.Outdated
	OutdatedImage func(digests []string) (n int, known bool)
	// Clock is the time at which tags are written; nil is the real one.
	Clock clock.PassiveClock
	// Authorizer decides whether the writer of a stream may see what it follows in other
	// namespaces, and whether they may delete the ImageTag of a tag that they delete. nil allows
	// everything.
	Authorizer imagestream.Authorizer
	// Registry is the host[:port] of the registry that has this server for its image API, as
	// OpenShift's registry has OpenShift's, in canonical form and as that registry knows itself. A
	// stream whose spec names no repository follows the repository <namespace>/<name> there. If it
	// is "", mappings are refused.
	Registry string
	// PublicRegistry is the host[:port] by which Registry is reached from elsewhere; streams show
	// it. "" is none.
	PublicRegistry string
	// Pushed is called after Registry has stored something here: with the tag and the digest of
	// each mapping, and for an object with a subject with the tag of the subject's referrers.
	// Signatures and attestations should then be looked for in the registry; Pushed does not wait
	// for that. Its error is the answer to the registry, so that the push is repeated. It is not
	// called if AllowedRegistries leave Registry out. It may be nil.
	Pushed func(ctx context.Context, ref reference.Reference) error
	// Importer imports for imagestreamimports; nil imports nothing. If it is set, somebody must
	// also import what TagImports returns.
	Importer imagestreamimport.Importer
	// AllowedRegistries are the registries that an imagestreamimport of a user who may not create
	// images may ask, and that tags of streams may follow; none allows all.
	AllowedRegistries []configv1.RegistryLocation
}

// Storage returns the REST storage of image.openshift.io/v1, by resource: "images",
// "imagesignatures", "imagetags", "imagetags/status", "imagestreams", "imagestreams/status",
// "imagestreams/layers", "imagestreams/secrets", "imagestreamtags", "imagestreamimages",
// "imagestreammappings" and "imagestreamimports".
func Storage(g generic.RESTOptionsGetter, opts Options) (map[string]rest.Storage, error) {
	if opts.Scheme == nil {
		return nil, fmt.Errorf("imageapi: Options.Scheme is required")
	}
	opts.Clock = cmp.Or[clock.PassiveClock](opts.Clock, clock.RealClock{})
	served, err := imageregistry.NewREST(g, imageregistry.Options{
		Scheme: opts.Scheme, Verifier: opts.Verifier, Summarize: opts.Summarize, Attested: opts.Attested, Held: opts.Held,
		VerdictChanged: opts.VerdictChanged, JudgedAgain: opts.JudgedAgain, IndexVerdictChanged: opts.IndexVerdictChanged, AnswerCreation: opts.AnswerCreation, Usage: opts.Usage, Outdated: opts.OutdatedImage, Packages: opts.Packages,
	})
	if err != nil {
		return nil, err
	}
	tagged, status, err := imagetag.NewStorage(g, opts.Scheme, opts.Clock.Now, opts.Outdated)
	if err != nil {
		return nil, err
	}
	tagged.TableConvertor = served.WarnOfUse(tagged.TableConvertor)
	shown := &imagestream.Reader{Images: served, Tags: tagged, TagStatus: status, Authorizer: opts.Authorizer, Registry: opts.Registry, PublicRegistry: opts.PublicRegistry, Imports: opts.Importer != nil}
	served.Streams, served.Tags = shown, tagged
	if opts.Pushed != nil && opts.Registry != "" && (imagestream.AllowedRegistry(opts.AllowedRegistries, opts.Registry, false) || imagestream.AllowedRegistry(opts.AllowedRegistries, opts.Registry, true)) {
		shown.ReportPushed = opts.Pushed
	}
	streams, streamStatus, err := imagestream.NewREST(g, opts.Scheme, shown)
	if err != nil {
		return nil, err
	}
	streamTags := imagestreamtag.NewREST(opts.Scheme, shown)
	return map[string]rest.Storage{
		"images":               served,
		"imagesignatures":      imageregistry.NewSignaturesREST(opts.Scheme, served),
		"imagetags":            imagestreamtag.NewImageTagsREST(tagged, streamTags, opts.Checked),
		"imagetags/status":     status,
		"imagestreams":         streams,
		"imagestreams/status":  streamStatus,
		"imagestreams/layers":  imagestream.NewLayersREST(shown),
		"imagestreams/secrets": imagestream.NewSecretsREST(shown),
		"imagestreamtags":      streamTags,
		"imagestreamimages":    imagestreamimage.NewREST(shown),
		"imagestreamimports":   imagestreamimport.NewREST(opts.Scheme, shown, opts.Importer, opts.AllowedRegistries),
		"imagestreammappings":  imagestreammapping.NewREST(opts.Scheme, shown, served),
	}, nil
}
