package imageapi

import (
	"cmp"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagepackages"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagerecord"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimage"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreammapping"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamtag"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
)

// Options of the storages.
type Options struct {
	// Scheme is a scheme that Install and packages.Install were called with. Required.
	Scheme *runtime.Scheme
	// Images are the options of the storage of images. New sets its Scheme, Tags and Packages.
	Images imageregistry.Options
	// Answerer has what answers are made of besides the storages, which New sets.
	Answerer answers.Answerer
	// Checks completes ImageTags that are read with what was confirmed without a change; see
	// imagestreamtag.NewImageTagsREST. It may be nil.
	Checks imagestreamtag.Checks
	// Clock is the time at which tags are written; nil is the real one.
	Clock clock.PassiveClock
	// Authorizer decides whether the writer of a stream may see what it follows in other
	// namespaces, and whether they may delete the ImageTag of a tag that they delete. nil allows
	// everything.
	Authorizer authorizer.UnconditionalAuthorizer
	// Registry is the host[:port] of the registry that has this server for its image API, as
	// OpenShift's registry has OpenShift's, in canonical form and as that registry knows itself. A
	// stream whose spec names no repository follows the repository <namespace>/<name> there. If it
	// is "", mappings are refused.
	Registry string
	// PublicRegistry is the host[:port] by which Registry is reached from elsewhere; streams show
	// it. "" is none.
	PublicRegistry string
	// Pushes gets what Registry has stored here: the tag and the digest of each mapping, and for an
	// object with a subject the tag of the subject's referrers. It gets nothing if
	// AllowedRegistries leave Registry out. It may be nil.
	Pushes imagestream.Pushes
	// Guarded gets the outcome for guarded tags; nil for none.
	Guarded imagestream.Guarded
	// Importer imports for imagestreamimports; nil imports nothing. If it is set, the server must
	// also import what TagImports returns.
	Importer imagestreamimport.Importer
	// AllowedRegistries are the registries that users without the right to create images may import
	// from by imagestreamimports, and that tags of streams may follow. If empty, all are allowed.
	AllowedRegistries []configv1.RegistryLocation
}

// Storages are the storages of image.openshift.io/v1 and of ImagePackages, and what reads them.
type Storages struct {
	Packages     *imagepackages.REST
	TagStatus    *imagetag.StatusREST
	Images       *imageregistry.REST
	Signatures   *imageregistry.SignaturesREST
	Streams      *imagestream.REST
	StreamStatus *imagestream.StatusREST
	Layers       *imagestream.LayersREST
	Secrets      *imagestream.SecretsREST
	StreamTags   *imagestreamtag.REST
	Tags         *imagestreamtag.ImageTagsREST
	StreamImages *imagestreamimage.REST
	Imports      *imagestreamimport.REST
	Mappings     *imagestreammapping.REST
	Records      *imagerecord.REST

	// Answerer answers questions about references, also those of lists and tables of images.
	Answerer *answers.Answerer
	// StoredStreams are the streams as they are stored.
	StoredStreams *imagestream.StoredStreams
	// TagImports are the tags of streams that must be imported.
	TagImports *imagestreamimport.TagImports
	// Needed names the images of streams that are needed.
	Needed *imagestream.InUseControllers
}

// New makes the storages over g.
func New(g generic.RESTOptionsGetter, opts Options) (*Storages, error) {
	if opts.Scheme == nil {
		return nil, fmt.Errorf("imageapi: Options.Scheme is required")
	}
	opts.Clock = cmp.Or[clock.PassiveClock](opts.Clock, clock.RealClock{})
	all := &Storages{}
	lists, err := imagepackages.NewLists(g, opts.Scheme)
	if err != nil {
		return nil, err
	}
	var outdated imagetag.Outdated
	if opts.Images.Drift != nil {
		outdated = opts.Images.Drift.Naming
	}
	tagged, tagStatus, err := imagetag.NewStorage(g, opts.Scheme, opts.Clock.Now, outdated, opts.Authorizer)
	if err != nil {
		return nil, err
	}
	all.Answerer = &opts.Answerer
	opts.Images.Scheme, opts.Images.Tags, opts.Images.Packages, opts.Images.Mirrors = opts.Scheme, tagged, lists, all.Answerer
	stored, err := imageregistry.NewStored(g, opts.Images)
	if err != nil {
		return nil, err
	}
	registryTags := imagestreamtag.NewRegistryTags(tagged, opts.Checks)
	all.Answerer.Images, all.Answerer.Tags, all.Answerer.Packages, all.Answerer.Use = stored, registryTags, lists, stored.Use()
	tagged.TableConvertor = stored.WarnOfUse(tagged.TableConvertor)
	all.TagStatus = tagStatus
	streams := imagestream.Options{
		Images: stored, Answers: all.Answerer, Tags: tagged, TagStatus: tagStatus, Authorizer: opts.Authorizer,
		Registry: opts.Registry, PublicRegistry: opts.PublicRegistry, Imports: opts.Importer != nil, Guarded: opts.Guarded,
	}
	if opts.Registry != "" && (imagestream.AllowedRegistry(opts.AllowedRegistries, opts.Registry, false) || imagestream.AllowedRegistry(opts.AllowedRegistries, opts.Registry, true)) {
		streams.Pushes = opts.Pushes
	}
	shown, err := imagestream.NewReader(g, opts.Scheme, streams)
	if err != nil {
		return nil, err
	}
	all.Streams, all.StreamStatus = imagestream.NewREST(shown)
	all.Images = imageregistry.NewREST(stored, shown, all.Answerer)
	all.Packages = imagepackages.NewREST(lists, all.Images)
	all.Signatures = imageregistry.NewSignaturesREST(opts.Scheme, all.Images)
	all.Layers, all.Secrets = imagestream.NewLayersREST(shown), imagestream.NewSecretsREST(shown)
	all.StreamTags = imagestreamtag.NewREST(opts.Scheme, shown)
	all.Tags = imagestreamtag.NewImageTagsREST(registryTags, all.StreamTags)
	all.StreamImages = imagestreamimage.NewREST(shown)
	all.Imports = imagestreamimport.NewREST(opts.Scheme, shown, opts.Importer, opts.AllowedRegistries)
	all.Mappings = imagestreammapping.NewREST(opts.Scheme, shown, all.Images)
	all.Records = imagerecord.NewREST(shown, all.Images, tagStatus, opts.Clock.Now)
	all.StoredStreams = imagestream.NewStoredStreams(all.StreamStatus)
	all.TagImports = imagestreamimport.NewTagImports(all.Imports)
	all.Needed = imagestream.NewInUseControllers(all.Streams)
	return all, nil
}

// Resources are the storages of image.openshift.io/v1, by resource.
func (s *Storages) Resources() map[string]rest.Storage {
	return map[string]rest.Storage{
		"images":               s.Images,
		"imagesignatures":      s.Signatures,
		"imagetags":            s.Tags,
		"imagetags/status":     s.TagStatus,
		"imagestreams":         s.Streams,
		"imagestreams/status":  s.StreamStatus,
		"imagestreams/layers":  s.Layers,
		"imagestreams/secrets": s.Secrets,
		"imagestreamtags":      s.StreamTags,
		"imagestreamimages":    s.StreamImages,
		"imagestreamimports":   s.Imports,
		"imagestreammappings":  s.Mappings,
	}
}

// Reviews are the storages of the reviews that the Answerer answers, by resource.
func (s *Storages) Reviews() map[string]rest.Storage {
	return map[string]rest.Storage{
		answers.Resource:       answers.NewStorage(s.Answerer),
		answers.LocalResource:  answers.NewLocalStorage(s.Answerer),
		answers.ImpactResource: answers.NewImpactStorage(s.Answerer),
	}
}
