package importer

import (
	"context"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Resolve asks the registry which digest a tag or a digest leads to; "" says that
// it has none. Errors are as of Import.
func (im *Importer) Resolve(ctx context.Context, ref reference.Reference) (digest string, err error) {
	var n node
	err = im.reach(ctx, ref, func(s *session) (err error) {
		n, err = s.root(ctx, ref, true)
		return err
	})
	if ReasonOf(err) == NotFound {
		return "", nil
	}
	return n.digest, err
}

// Manifest reads what a tag or a digest leads to, be it an image or not. Errors
// are as of Import.
func (im *Importer) Manifest(ctx context.Context, ref reference.Reference) (m *manifest.Manifest, err error) {
	err = im.reach(ctx, ref, func(s *session) error {
		f, err := s.manifest(ctx, ref.Identifier(), ref.Digest)
		if err == nil {
			m = f.Manifest
		}
		return err
	})
	return m, err
}
