package manifest

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Annotations of a manifest that name the image it was built on, by the image specification of the
// OCI. Some builders write them as labels.
const (
	basePrefix = "org.opencontainers.image.base."
	baseName   = basePrefix + "name"
	baseDigest = basePrefix + "digest"
)

// BaseOf returns the reference and the digest of an image's base, from its annotations or else its
// labels. Either may be empty. The builder of the image writes them, and they cannot be checked.
func BaseOf(image *imagev1.Image) (name, digest string) {
	// Most have none, and need not be parsed.
	if strings.Contains(image.DockerImageManifest, basePrefix) {
		if m, err := Of(image); err == nil {
			name, digest = m.Annotations[baseName], m.Annotations[baseDigest]
		}
	}
	if bytes.Contains(image.DockerImageMetadata.Raw, []byte(basePrefix)) || mayBeShort(image) && strings.Contains(image.DockerImageConfig, basePrefix) {
		if metadata, err := Metadata(image); err == nil && metadata.Config != nil {
			name, digest = cmp.Or(name, metadata.Config.Labels[baseName]), cmp.Or(digest, metadata.Config.Labels[baseDigest])
		}
	}
	return name, digest
}

// BaseReference returns the reference in the annotation of a base, as it is pulled; the zero
// Reference if the text is not a reference.
func BaseReference(name string) reference.Reference {
	ref, err := reference.Parse(name)
	if err != nil || name == "" {
		return reference.Reference{}
	}
	return ref.Pulled()
}

// BeginsWith reports whether the layers of an image begin with those of a base, which has some.
func BeginsWith(image, base *imagev1.Image) bool {
	n := len(base.DockerImageLayers)
	return n > 0 && n <= len(image.DockerImageLayers) && slices.EqualFunc(image.DockerImageLayers[:n], base.DockerImageLayers, func(a, b imagev1.ImageLayer) bool {
		return a.Name == b.Name
	})
}
