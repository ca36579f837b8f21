package image

import (
	"bytes"
	"fmt"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// ValidateImage returns all errors of a new Image whose fields the server has computed. The rules
// are openshift-apiserver's, with one more: an Image with a manifest has the manifest's digest as
// its name, and no field that contradicts the manifest.
func ValidateImage(image *imagev1.Image) field.ErrorList {
	errs := validation.ValidateObjectMeta(&image.ObjectMeta, false, validateName, field.NewPath("metadata"))
	errs = append(errs, validateFields(image)...)
	derived, contentErrs := validateContent(image, field.NewPath("metadata", "name"))
	if !derived {
		errs = append(errs, validateMetadata(image, field.NewPath("dockerImageMetadata"))...)
	}
	return append(errs, contentErrs...)
}

// validateName allows any path segment: digests, and whatever an image without a manifest is
// called.
func validateName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// validateImageUpdate reports everything that is wrong with image as the successor of old, except
// in its metadata, which the registry checks on every update.
func validateImageUpdate(image, old *imagev1.Image) field.ErrorList {
	errs := validateImmutable(image, old)
	errs = append(errs, validateFields(image)...)
	errs = append(errs, validateMetadata(image, field.NewPath("dockerImageMetadata"))...)
	if image.DockerImageManifest != old.DockerImageManifest || image.DockerImageConfig != old.DockerImageConfig ||
		image.Annotations[annotation.LeftOut] != old.Annotations[annotation.LeftOut] {
		_, contentErrs := validateContent(image, field.NewPath("dockerImageManifest"))
		errs = append(errs, contentErrs...)
	}
	return errs
}

// validateFields checks each field on its own, except dockerImageMetadata.
func validateFields(image *imagev1.Image) field.ErrorList {
	var errs field.ErrorList
	if image.DockerImageReference == "" {
		errs = append(errs, field.Required(field.NewPath("dockerImageReference"), "the reference to pull the image by, such as registry.example.com/app@sha256:…"))
	} else if _, err := reference.Parse(image.DockerImageReference); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageReference"), image.DockerImageReference, err.Error()))
	}
	left, leftErrs := validateLeftOut(image)
	errs = append(errs, leftErrs...)
	// The manifest is here, too large to be here, or kept by OpenShift's registry.
	derived := image.DockerImageManifest != "" || left.Manifest != nil || isArtifact(image) || image.Annotations[imagev1.ImageManifestBlobStoredAnnotation] == "true"
	for i := range image.DockerImageManifests {
		errs = append(errs, validateImageManifest(&image.DockerImageManifests[i], derived, field.NewPath("dockerImageManifests").Index(i))...)
	}
	if len(image.DockerImageManifests) > 0 && len(image.DockerImageLayers) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageLayers"), field.OmitValueType{}, "must be empty when dockerImageManifests is set"))
	}
	return append(errs, validateSignatures(image.Signatures, field.NewPath("signatures"))...)
}

// validateMetadata checks that clients will be able to decode dockerImageMetadata.
func validateMetadata(image *imagev1.Image, fldPath *field.Path) field.ErrorList {
	raw := image.DockerImageMetadata.Raw
	if len(raw) == 0 {
		return nil
	}
	var metadata docker10.DockerImage
	strict, err := kjson.UnmarshalStrict(raw, &metadata, kjson.DisallowDuplicateFields)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return field.ErrorList{field.Invalid(fldPath, field.OmitValueType{}, fmt.Sprintf("must be a DockerImage of %s: %v", docker10.GroupVersion, err))}
	}
	var errs field.ErrorList
	if metadata.Kind != "DockerImage" {
		errs = append(errs, field.NotSupported(fldPath.Child("kind"), metadata.Kind, []string{"DockerImage"}))
	}
	if metadata.APIVersion != docker10.GroupVersion.String() {
		errs = append(errs, field.NotSupported(fldPath.Child("apiVersion"), metadata.APIVersion, []string{docker10.GroupVersion.String()}))
	}
	return errs
}

// validateImageManifest checks an entry of dockerImageManifests. Entries that the server took from
// an index may lack a platform: the index's author left it out, as OCI allows.
func validateImageManifest(m *imagev1.ImageManifest, derived bool, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	if err := manifest.ValidDigest(m.Digest); err != nil {
		errs = append(errs, field.Invalid(fldPath.Child("digest"), m.Digest, "must be a digest such as sha256:…"))
	}
	if !manifest.ValidMediaType(m.MediaType) {
		errs = append(errs, field.Invalid(fldPath.Child("mediaType"), m.MediaType, "must be a media type (RFC 6838)"))
	}
	if m.Architecture == "" && !derived {
		errs = append(errs, field.Required(fldPath.Child("architecture"), ""))
	}
	if m.OS == "" && !derived {
		errs = append(errs, field.Required(fldPath.Child("os"), ""))
	}
	if m.ManifestSize < 0 {
		errs = append(errs, field.Invalid(fldPath.Child("size"), m.ManifestSize, "must not be negative"))
	}
	return errs
}

// validateContent checks the manifest and the config that image carries, that image is named by the
// manifest's digest (reported at namePath, since an update cannot change the name), and that the
// computed fields match the bytes. derived is true if the metadata equals the config's, to the
// byte: then it needs no validation.
func validateContent(image *imagev1.Image, namePath *field.Path) (derived bool, _ field.ErrorList) {
	manifestPath, configPath := field.NewPath("dockerImageManifest"), field.NewPath("dockerImageConfig")
	if len(image.DockerImageConfig) > manifest.MaxConfigSize {
		return false, field.ErrorList{field.TooLong(configPath, "", manifest.MaxConfigSize)}
	}
	if !printable.IsYAML(image.DockerImageConfig) {
		return false, field.ErrorList{field.Invalid(configPath, field.OmitValueType{}, unprintable)}
	}
	if image.DockerImageManifest == "" {
		return false, nil
	}
	if !printable.IsYAML(image.DockerImageManifest) {
		return false, field.ErrorList{field.Invalid(manifestPath, field.OmitValueType{}, unprintable)}
	}
	m, err := manifest.Of(image)
	if err != nil {
		return false, field.ErrorList{field.Invalid(manifestPath, field.OmitValueType{}, err.Error())}
	}
	if m.Kind == manifest.KindArtifact && !isArtifact(image) {
		return false, field.ErrorList{field.Invalid(manifestPath, field.OmitValueType{}, manifest.NotAnImage(m).Error())}
	}
	errs := validateLeftOutConfig(image, m)
	if m.Verify(image.Name) != nil {
		errs = append(errs, field.Invalid(namePath, image.Name, fmt.Sprintf("an image that carries a manifest is named by its digest, which is %s", m.Digest)))
	}
	if named, err := reference.Parse(image.DockerImageReference); err == nil && named.Digest != "" && m.Verify(named.Digest) != nil {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageReference"), image.DockerImageReference, fmt.Sprintf("its digest is not that of dockerImageManifest, which is %s", m.Digest)))
	}
	want := *image
	if err := derive(&want); err != nil {
		return false, append(errs, field.Invalid(configPath, field.OmitValueType{}, err.Error()))
	}
	derived = image.DockerImageConfig != "" && bytes.Equal(image.DockerImageMetadata.Raw, want.DockerImageMetadata.Raw)
	return derived, append(errs, validateDerived(image, &want)...)
}

// unprintable is the error for content that would break the YAML of every list it is in.
const unprintable = "is not UTF-8 or has control characters, which YAML cannot hold: leave it out and say so in the annotation " + annotation.LeftOut

// validateDerived checks that the fields that mirror a manifest equal want's.
func validateDerived(image, want *imagev1.Image) field.ErrorList {
	const message = "must be what dockerImageManifest says; leave it out to have the server fill it"
	var errs field.ErrorList
	if image.DockerImageManifestMediaType != want.DockerImageManifestMediaType {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageManifestMediaType"), image.DockerImageManifestMediaType, message))
	}
	if !apiequality.Semantic.DeepEqual(image.DockerImageLayers, want.DockerImageLayers) {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageLayers"), field.OmitValueType{}, message))
	}
	if !apiequality.Semantic.DeepEqual(image.DockerImageManifests, want.DockerImageManifests) {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageManifests"), field.OmitValueType{}, message))
	}
	return errs
}

// validateImmutable refuses changes of fields that describe content. Fields that the client left
// out have been restored by then.
func validateImmutable(image, old *imagev1.Image) field.ErrorList {
	var errs field.ErrorList
	immutable := func(name string) {
		errs = append(errs, field.Invalid(field.NewPath(name), field.OmitValueType{}, "field is immutable; leave it out to keep it"))
	}
	errs = append(errs, validateReplacedContent(image, old)...)
	want, err := wantDerived(image, old)
	if err != nil {
		return errs // reported by validateContent
	}
	if !sameMetadata(image.DockerImageMetadata.Raw, want.DockerImageMetadata.Raw) {
		immutable("dockerImageMetadata")
	}
	if image.DockerImageMetadataVersion != want.DockerImageMetadataVersion {
		immutable("dockerImageMetadataVersion")
	}
	if !apiequality.Semantic.DeepEqual(image.DockerImageLayers, want.DockerImageLayers) {
		immutable("dockerImageLayers")
	}
	if len(old.DockerImageSignatures) > 0 && !apiequality.Semantic.DeepEqual(image.DockerImageSignatures, old.DockerImageSignatures) {
		immutable("dockerImageSignatures")
	}
	if image.DockerImageManifest != "" && image.DockerImageManifestMediaType != want.DockerImageManifestMediaType {
		immutable("dockerImageManifestMediaType")
	}
	if image.DockerImageManifest != "" && !apiequality.Semantic.DeepEqual(image.DockerImageManifests, want.DockerImageManifests) {
		immutable("dockerImageManifests")
	}
	for _, key := range derivedAnnotations {
		if value, ok := want.Annotations[key]; ok && image.Annotations[key] != value {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(key), image.Annotations[key], fmt.Sprintf("is computed by the server and is %q", value)))
		}
	}
	return errs
}

// validateReplacedContent allows manifest and config to change only to nothing, or to bytes that
// the image's name and the manifest vouch for. validateContent checks the manifest against the
// name, and the config against the manifest.
func validateReplacedContent(image, old *imagev1.Image) field.ErrorList {
	var errs field.ErrorList
	if image.DockerImageConfig == "" || image.DockerImageConfig == old.DockerImageConfig || image.DockerImageManifest != "" {
		return nil
	}
	// A config without its manifest: only the metadata's Id, the config's digest, can vouch for it.
	metadata, err := manifest.Metadata(old)
	if err != nil || manifest.ValidDigest(metadata.ID) != nil || manifest.VerifyDigest([]byte(image.DockerImageConfig), metadata.ID) != nil {
		errs = append(errs, field.Invalid(field.NewPath("dockerImageConfig"), field.OmitValueType{}, "may only change to nothing or to the bytes whose digest is dockerImageMetadata.Id"))
	}
	return errs
}

var leftOutPath = field.NewPath("metadata", "annotations").Key(annotation.LeftOut)

// validateLeftOut checks the list of content that an image does not hold, as far as its name
// allows. That content is left out, how long it is and why is up to the writer of the Image.
func validateLeftOut(image *imagev1.Image) (left manifest.LeftOut, errs field.ErrorList) {
	left, err := manifest.LeftOutOf(image)
	if err != nil {
		return left, field.ErrorList{field.Invalid(leftOutPath, field.OmitValueType{}, err.Error())}
	}
	check := func(part *manifest.LeftOutPart, path *field.Path) {
		if part == nil {
			return
		}
		if err := manifest.ValidDigest(part.Digest); err != nil {
			errs = append(errs, field.Invalid(path.Child("digest"), part.Digest, err.Error()))
		}
		if part.Size < 0 {
			errs = append(errs, field.Invalid(path.Child("size"), part.Size, "must not be negative"))
		}
	}
	check(left.Manifest, leftOutPath.Child("manifest"))
	check(left.Config, leftOutPath.Child("config"))
	if left.Manifest != nil && left.Manifest.Digest != image.Name {
		errs = append(errs, field.Invalid(leftOutPath.Child("manifest", "digest"), left.Manifest.Digest, "must be the name of the image"))
	}
	return left, errs
}

// validateLeftOutConfig checks that the config that is left out is the one that the image's
// manifest names.
func validateLeftOutConfig(image *imagev1.Image, m *manifest.Manifest) field.ErrorList {
	left, err := manifest.LeftOutOf(image)
	if err != nil || left.Config == nil {
		return nil
	}
	if m.Config == nil || left.Config.Digest != m.Config.Digest || left.Config.Size != m.Config.Size {
		want := "none"
		if m.Config != nil {
			want = fmt.Sprintf("%s of %d bytes", m.Config.Digest, m.Config.Size)
		}
		return field.ErrorList{field.Invalid(leftOutPath.Child("config"), left.Config.Digest, "must be the config that dockerImageManifest names, which is "+want)}
	}
	return nil
}
