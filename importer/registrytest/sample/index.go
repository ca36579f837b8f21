package sample

import (
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// MultiPlatform builds an index with an image of spec for each platform. If
// attested, each has an attestation beside it, as BuildKit writes them.
func MultiPlatform(spec Spec, attested bool, platforms ...string) (v1.ImageIndex, error) {
	spec = spec.withDefaults()
	var children []mutate.IndexAddendum
	for _, platform := range platforms {
		spec.Platform = platform
		image, err := New(spec)
		if err != nil {
			return nil, err
		}
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, err
		}
		children = append(children, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: p}})
	}
	if attested {
		for _, child := range children {
			attestation, err := attestationOf(child.Add.(v1.Image))
			if err != nil {
				return nil, err
			}
			children = append(children, attestation)
		}
	}
	return Index(spec.Format, children...), nil
}

// Index builds an index of anything.
func Index(format Format, children ...mutate.IndexAddendum) v1.ImageIndex {
	mediaType := types.OCIImageIndex
	if format == Docker {
		mediaType = types.DockerManifestList
	}
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, mediaType), children...)
}

// attestationOf builds BuildKit's provenance of an image: a manifest that has
// the form of an image, with an in-toto statement for a layer, told apart by
// its place in the index
// (https://github.com/moby/buildkit/blob/master/docs/attestations/attestation-storage.md).
func attestationOf(image v1.Image) (mutate.IndexAddendum, error) {
	digest, err := image.Digest()
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	statement, err := json.Marshal(map[string]any{
		"_type":         "https://in-toto.io/Statement/v0.1",
		"predicateType": "https://slsa.dev/provenance/v0.2",
		"subject":       []any{map[string]any{"name": "pkg:docker/sample", "digest": map[string]string{digest.Algorithm: digest.Hex}}},
		"predicate":     map[string]any{"builder": map[string]string{"id": "https://example.com/builder"}},
	})
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	attestation := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	attestation, err = mutate.Append(attestation, mutate.Addendum{
		Layer:       static.NewLayer(statement, "application/vnd.in-toto+json"),
		Annotations: map[string]string{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2"},
	})
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	return mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{
		Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": digest.String(),
		},
	}}, nil
}

// Artifact packs content as registries store artifacts: an OCI manifest whose config has the type
// of the content.
func Artifact(mediaType string, content []byte) (v1.Image, error) {
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.MediaType(mediaType))
	return mutate.AppendLayers(artifact, static.NewLayer(content, types.MediaType(mediaType)))
}
