package imageapi

import (
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// held is what an Image is without between its request and the strategy.
//
// Managed fields are computed in between. To the API machinery a value that is JSON has to be decoded
// for that, and it decodes dockerImageMetadata, a third of a creation's work on managed fields, twice,
// and it walks over each of dockerImageLayers, to see that they are there: the fields are atomic, no
// field in them is anybody's by itself. So it finds an empty object and a single layer in their places.
type held struct {
	metadata []byte
	layers   []imagev1.ImageLayer
}

// GetObjectKind is part of runtime.Object.
func (*held) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object. Nobody writes to what is held.
func (h *held) DeepCopyObject() runtime.Object { return h }

// hold takes its metadata and its layers from an Image that is to be created. That it is, only the
// missing resourceVersion says; an update without one is refused.
func hold(image *imagev1.Image) {
	metadata := image.DockerImageMetadata.Raw
	if image.ResourceVersion != "" || len(metadata) == 0 || metadata[0] != '{' {
		return
	}
	image.DockerImageMetadata = runtime.RawExtension{Raw: []byte("{}"), Object: &held{metadata, image.DockerImageLayers}}
	if len(image.DockerImageLayers) > 1 {
		image.DockerImageLayers = image.DockerImageLayers[:1]
	}
}

// release gives an Image back what hold has taken.
func release(image *imagev1.Image) {
	if h, ok := image.DockerImageMetadata.Object.(*held); ok {
		image.DockerImageMetadata, image.DockerImageLayers = runtime.RawExtension{Raw: h.metadata}, h.layers
	}
}
