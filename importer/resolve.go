package importer

import (
	"context"
	"slices"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Resolve asks the registry which digest a tag or a digest leads to; "" means that the registry has
// none. It returns the errors of Import.
func (im *Importer) Resolve(ctx context.Context, ref reference.Reference) (digest string, err error) {
	var n node
	err = im.Reach(ctx, ref, func(s *pull.Session) (err error) {
		n, err = findRoot(ctx, s, ref, true)
		return err
	})
	if pull.ReasonOf(err) == pull.NotFound {
		return "", nil
	}
	return n.digest, err
}

// Manifest reads what a tag or a digest leads to, an image or not. It returns the errors of Import.
func (im *Importer) Manifest(ctx context.Context, ref reference.Reference) (m *manifest.Manifest, err error) {
	err = im.Reach(ctx, ref, func(s *pull.Session) error {
		f, err := fetchManifest(ctx, s, ref.Identifier(), ref.Digest)
		if err == nil {
			m = f.Manifest
		}
		return err
	})
	return m, err
}

// Index reads what a tag or a digest leads to if it is an index, and returns nil if it is not. The
// Content-Type of a HEAD shows that, so no image is pulled. It returns the errors of Import.
func (im *Importer) Index(ctx context.Context, ref reference.Reference) (m *manifest.Manifest, err error) {
	err = im.Reach(ctx, ref, func(s *pull.Session) error {
		_, mediaType, denied, err := fetchHead(ctx, s, ref.Identifier())
		if err != nil || slices.Contains(manifest.AcceptedMediaTypes(), mediaType) && mediaType != manifest.MediaTypeOCIIndex && mediaType != manifest.MediaTypeDockerList {
			return err
		}
		f, err := fetchManifest(ctx, s, ref.Identifier(), ref.Digest)
		if err == nil && f.Kind == manifest.KindIndex {
			m = f.Manifest
		}
		if err == nil && denied {
			noteDenied(ctx, s, ref.Identifier())
		}
		return err
	})
	return m, err
}
