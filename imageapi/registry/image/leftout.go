package image

import (
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
)

var leftOutPath = field.NewPath("metadata", "annotations").Key(annotation.LeftOut)

// validateLeftOut checks the list of content that an image does not hold, as far as its name allows. That content is
// left out, how long it is and why is up to the writer of the Image.
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

// validateLeftOutConfig checks that the config that is left out is the one that the image's manifest names.
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
