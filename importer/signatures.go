package importer

import (
	"context"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
)

// SignatureFinder finds what a registry holds about who made one image.
//
// Find is called once for every image an import meets, with that image's own
// digest: for an index, and then for each of its platforms. It is called for
// images that were stored before as well, because signatures are pushed after
// the image they sign. It must be safe for concurrent use.
//
// options make package remote talk through the importer's transport for the
// repository of digest: already authenticated, rate limited, retried, with
// bodies capped (manifests and referrers at 4 MiB, blobs at 8 MiB) and with ctx
// applied. They are valid for that repository and only during the call.
//
// signatures are added to the Image: each must have metadata.name
// "<digest>@<unique name>", type and content. A signature whose name the Image
// already has is left as it is. annotations are set on the Image. warnings are
// returned in [Result.Warnings] for people to read.
//
// An error means that the registry could not be asked. The image is stored
// without the signatures, and Import returns the error beside its result so
// that a queue tries again.
type SignatureFinder interface {
	Find(ctx context.Context, digest name.Digest, options []remote.Option) (signatures []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error)
}
