package image

import (
	"cmp"
	"context"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxChildLookups bounds how many children of an index are read to find its date.
const maxChildLookups = 64

// imageStrategy prepares and validates an Image.
type imageStrategy struct {
	strategy.ClusterWide
	// artifacts is true for the storage of artifacts.
	artifacts bool
	verifier  Verifier
	// get reads a stored Image, nil when it is not there. It is used to date an index by its
	// children.
	get func(ctx context.Context, name string) (*imagev1.Image, error)
	// index finds an index that lists an image and is verified in a repository; nil when there is
	// none.
	index func(ctx context.Context, repository, digest string) ([]*imagev1.Image, error)
}

var (
	_ rest.RESTCreateStrategy              = &imageStrategy{}
	_ rest.RESTUpdateStrategy              = &imageStrategy{}
	_ rest.GarbageCollectionDeleteStrategy = &imageStrategy{}
)

// DefaultGarbageCollectionPolicy: images have no dependents.
func (*imageStrategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.Unsupported
}

// PrepareForCreate computes what a client need not send. Validate reports errors of the bytes that
// it computes from.
func (s *imageStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	image := obj.(*imagev1.Image)
	SetDefaults(image)
	sortLayers(image)
	removeManagedSignatureAnnotation(image)
	markArtifact(image, artifactType(image))
	dropStoredConfig(image)
	err := derive(image, s.children(ctx, image)...)
	if err != nil || image.DockerImageConfig == "" {
		stampMetadata(image) // the metadata is the client's
	}
	if err != nil {
		return
	}
	dropStoredManifest(image)
	manifest.DropHeld(image)
	s.verifySignatures(ctx, image, nil)
}

// Validate reports what is wrong with a new Image.
func (s *imageStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return append(ValidateImage(obj.(*imagev1.Image)), s.validateKind(obj.(*imagev1.Image))...)
}

// validateKind refuses an artifact among images, and signatures of an artifact: nothing would judge
// them again when policies change.
func (s *imageStrategy) validateKind(image *imagev1.Image) field.ErrorList {
	switch {
	case isArtifact(image) != s.artifacts:
		return field.ErrorList{field.Invalid(field.NewPath("dockerImageManifest"), field.OmitValueType{}, "an image cannot become an artifact, nor an artifact an image")}
	case s.artifacts && len(image.Signatures) > 0:
		return field.ErrorList{field.Forbidden(field.NewPath("signatures"), "only images have signatures, and this is an artifact ("+image.Annotations[annotation.ArtifactType]+")")}
	}
	return nil
}

// PrepareForUpdate restores what the client left out, and computes what follows from new bytes.
func (s *imageStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	image, oldImage := obj.(*imagev1.Image), old.(*imagev1.Image)
	SetDefaults(image)
	stampMetadata(image)
	removeManagedSignatureAnnotation(image)
	if !s.artifacts {
		markArtifact(image, "")
	}
	restoreDerived(image, oldImage)
	manifest.DropHeld(image)
	s.verifySignatures(ctx, image, oldImage)
}

// ValidateUpdate reports what is wrong with a changed Image, immutable fields included.
func (s *imageStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return append(validateImageUpdate(obj.(*imagev1.Image), old.(*imagev1.Image)), s.validateKind(obj.(*imagev1.Image))...)
}

// children returns the stored Images of an index's children that are in the index's repository. A
// child that cannot be read does not date the index.
func (s *imageStrategy) children(ctx context.Context, image *imagev1.Image) []*imagev1.Image {
	if s.get == nil || image.DockerImageManifest == "" {
		return nil
	}
	m, err := manifest.Of(image)
	if err != nil || m.Kind != manifest.KindIndex {
		return nil
	}
	own, unnamed := reference.Parse(image.DockerImageReference)
	var children []*imagev1.Image
	for i, d := range m.ImageChildren() {
		if i == maxChildLookups {
			break
		}
		if child, err := s.get(ctx, d.Digest); err == nil && child != nil && (unnamed != nil || IsIn(child, own.Bare())) {
			children = append(children, child)
		}
	}
	return children
}

// dropStoredManifest empties manifest and config of an image whose registry keeps them, as
// OpenShift's registry declares by annotation. It does so only once they proved to be the image's:
// validation must see what is wrong.
func dropStoredManifest(image *imagev1.Image) {
	if image.Annotations[imagev1.ImageManifestBlobStoredAnnotation] != "true" || len(ValidateImage(image)) > 0 {
		return
	}
	if attestations := attestationsOf(image); len(attestations) > 0 {
		metav1.SetMetaDataAnnotation(&image.ObjectMeta, annotation.AttestationManifests, strings.Join(attestations, ","))
	}
	image.DockerImageManifest, image.DockerImageConfig = "", ""
}

// dropStoredConfig empties the config of an artifact whose registry keeps it. A config need not be
// text, so a request may not have its bytes.
func dropStoredConfig(image *imagev1.Image) {
	if isArtifact(image) && image.Annotations[imagev1.ImageManifestBlobStoredAnnotation] == "true" {
		image.DockerImageConfig = ""
	}
}

// managedSignatureAnnotation marked signatures that OpenShift's importer owned. It is retired, and
// signatures may not have annotations.
const managedSignatureAnnotation = "image.openshift.io/managed-signature"

func removeManagedSignatureAnnotation(image *imagev1.Image) {
	for i := range image.Signatures {
		delete(image.Signatures[i].Annotations, managedSignatureAnnotation)
	}
}

func SetDefaults(image *imagev1.Image) {
	image.DockerImageMetadataVersion = cmp.Or(image.DockerImageMetadataVersion, manifest.MetadataVersion)
}
