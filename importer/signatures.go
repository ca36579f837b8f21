package importer

import (
	"context"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"
)

// SignatureFinder finds what a registry holds about who made one image.
//
// Find is called once for every image an import meets, with that image's own
// digest: for an index, and then for each of its platforms. It is called for
// images that were stored before as well, because signatures are pushed after
// the image they sign. It must be safe for concurrent use.
//
// transport is the importer's way to the repository of digest: already
// authenticated, rate limited, retried, with bodies capped (manifests and
// referrers at 4 MiB, blobs at 8 MiB). It is valid for that repository and only
// during the call. Package remote takes it with remote.WithTransport and does
// not authenticate again.
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
	Find(ctx context.Context, digest name.Digest, transport http.RoundTripper) (signatures []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error)
}
