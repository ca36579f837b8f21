package imageapi

import (
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// heldMetadata is the dockerImageMetadata of an Image between its request and the strategy.
//
// Managed fields are computed in between. To the API machinery a value that is JSON has to be decoded
// for that, and it decodes dockerImageMetadata, a third of a creation's work on managed fields, twice,
// to see that it is there: the field is atomic, no field in it is anybody's by itself. So it finds an
// empty object in its place.
type heldMetadata struct{ raw []byte }

// GetObjectKind is part of runtime.Object.
func (*heldMetadata) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object. Nobody writes to what is held.
func (m *heldMetadata) DeepCopyObject() runtime.Object { return m }

// holdMetadata puts an empty object in the place of the metadata of an Image that is to be created.
// That it is, only the missing resourceVersion says; an update without one is refused.
func holdMetadata(image *imagev1.Image) {
	raw := image.DockerImageMetadata.Raw
	if image.ResourceVersion != "" || len(raw) == 0 || raw[0] != '{' {
		return
	}
	image.DockerImageMetadata = runtime.RawExtension{Raw: []byte("{}"), Object: &heldMetadata{raw}}
}

// releaseMetadata gives an Image its metadata back.
func releaseMetadata(image *imagev1.Image) {
	if held, ok := image.DockerImageMetadata.Object.(*heldMetadata); ok {
		image.DockerImageMetadata = runtime.RawExtension{Raw: held.raw}
	}
}
