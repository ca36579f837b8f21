package importer

import (
	"context"
	"errors"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// errNoFinder is the error for a mistake in the calling program.
var errNoFinder = errors.New("importer: Options.Signatures is not set")

// Find reads what a reference leads to and looks for its signatures, without storing
// anything. The Image has its name, reference, manifest, media type, signatures and
// annotations. The platforms of an index are not read.
//
// Find returns the errors of Import. If the search for signatures failed, it returns the error and
// no Image.
func (im *Importer) Find(ctx context.Context, ref reference.Reference) (image *imagev1.Image, warnings []string, err error) {
	if im.finder == nil {
		return nil, nil, errNoFinder
	}
	if ref, err = pulled(ref); err != nil {
		return nil, nil, err
	}
	ctx, done := im.InJob(ctx)
	defer done()
	var s *pull.Session
	var m *fetched
	if err := im.Reach(ctx, ref, func(at *pull.Session) (err error) {
		s = at
		m, err = fetchManifest(ctx, s, ref.Identifier(), ref.Digest)
		return err
	}); err != nil {
		return nil, nil, err
	}
	digest := m.name
	image = &imagev1.Image{
		ObjectMeta:                   metav1.ObjectMeta{Name: digest},
		DockerImageReference:         ref.WithDigest(digest).String(),
		DockerImageManifest:          string(m.raw),
		DockerImageManifestMediaType: m.MediaType,
	}
	found, annotations, warnings, err := im.search(ctx, s, ref.Bare(), digest, pull.JobOf(ctx).Began, false)
	if partial, ok := errors.AsType[partialError](err); err != nil && !(ok && partial.Partial()) {
		return nil, warnings, fmt.Errorf("looking for signatures: %w", pull.Describe(ref, pull.Overdue(ctx, err)))
	}
	setSearch(image, ref.Bare(), found, annotations, nil)
	return image, warnings, nil
}
