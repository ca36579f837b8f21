package imagestream

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// LayersREST is the subresource layers: the blobs that a registry may serve to users with the right
// to pull from the stream. OpenShift's registry reads it before it serves a blob of another
// repository.
type LayersREST struct {
	virtual.Resource
	shown *Reader
}

// NewLayersREST returns the storage of the subresource layers.
func NewLayersREST(shown *Reader) *LayersREST {
	return &LayersREST{virtual.Resource{Object: &imagev1.ImageStreamLayers{}, Namespaced: true}, shown}
}

var _ rest.Getter = &LayersREST{}

// Get is part of rest.Getter.
func (r *LayersREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.shown.Streams.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	stream, err := r.shown.Everything(ctx, obj.(*imagev1.ImageStream))
	if err != nil {
		return nil, err
	}
	layers := &imagev1.ImageStreamLayers{ObjectMeta: stream.ObjectMeta, Blobs: map[string]imagev1.ImageLayerData{}, Images: map[string]imagev1.ImageBlobReferences{}}
	for m, err := range r.shown.members(ctx, stream) {
		if err != nil {
			return nil, err
		}
		// The registry serves every digest that is listed here, whichever repository it has it
		// from. So nothing is listed that is not known to be in the stream, nor the blobs of
		// another registry's image: its manifest may list blobs of others.
		switch ref, err := reference.Parse(m.Reference); {
		case r.shown.Registry == "" || m.Image != nil && err == nil && ref.Host == r.shown.Registry:
			layers.Images[m.Name] = blobs(m, layers.Blobs)
		case m.Image != nil:
			layers.Images[m.Name] = imagev1.ImageBlobReferences{Manifests: imageregistry.ChildrenOf(m.Image)}
		}
	}
	return layers, nil
}

// blobs adds the blobs of an image to all: its manifest, its config and its layers.
func blobs(m member, all map[string]imagev1.ImageLayerData) (out imagev1.ImageBlobReferences) {
	if m.Image == nil {
		return imagev1.ImageBlobReferences{ImageMissing: true}
	}
	add := func(name, mediaType string, size *int64) {
		if had, ok := all[name]; !ok || had.LayerSize == nil {
			all[name] = imagev1.ImageLayerData{MediaType: mediaType, LayerSize: size}
		}
	}
	add(m.Name, m.Image.DockerImageManifestMediaType, nil)
	for i := range m.Image.DockerImageLayers {
		layer := &m.Image.DockerImageLayers[i]
		out.Layers = append(out.Layers, layer.Name)
		add(layer.Name, layer.MediaType, &layer.LayerSize)
	}
	out.Manifests = imageregistry.ChildrenOf(m.Image)
	if parsed, err := manifest.Of(m.Image); err == nil && parsed.Config != nil {
		config := *parsed.Config // shared
		out.Config = &config.Digest
		add(config.Digest, config.MediaType, &config.Size)
	} else if metadata, err := manifest.Metadata(m.Image); err == nil && len(out.Manifests) == 0 && reference.IsDigest(metadata.ID) {
		// its manifest was left out
		out.Config = &metadata.ID
		add(metadata.ID, "", nil)
	}
	return out
}

// SecretsREST is the subresource secrets. OpenShift's registry reads in it the credentials for
// images that a stream follows elsewhere. This server keeps no Secrets, so it is empty.
type SecretsREST struct {
	virtual.Resource
	shown *Reader
}

// NewSecretsREST returns the storage of the subresource secrets.
func NewSecretsREST(shown *Reader) *SecretsREST {
	return &SecretsREST{virtual.Resource{Object: &imagev1.SecretList{}, Namespaced: true}, shown}
}

var _ rest.Getter = &SecretsREST{}

// Get is part of rest.Getter. As in OpenShift, the stream must exist.
func (r *SecretsREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if _, err := r.shown.Streams.Get(ctx, name, options); err != nil {
		return nil, err
	}
	return &imagev1.SecretList{}, nil
}
