package manifest

import (
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

// Listed are the digests of all manifests that an index lists, attestations included, as far as
// they are known, sorted.
func Listed(image *imagev1.Image) (digests []string) {
	for i := range image.DockerImageManifests {
		digests = append(digests, image.DockerImageManifests[i].Digest)
	}
	if m, err := Of(image); err == nil {
		for _, d := range m.Children {
			digests = append(digests, d.Digest)
		}
	}
	for _, digest := range strings.Split(image.Annotations[annotation.AttestationManifests], ",") {
		if digest != "" {
			digests = append(digests, digest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}
