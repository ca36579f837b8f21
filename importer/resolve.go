package importer

import (
	"context"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Resolve asks the registry which digest a tag or a digest leads to; "" says that
// it has none. Errors are as of Import.
func (im *Importer) Resolve(ctx context.Context, ref reference.Reference) (digest string, err error) {
	s, err := im.session(ctx, ref)
	if err != nil {
		return "", describe(ref, err)
	}
	digest, err = s.head(ctx, ref.Identifier())
	if err == nil && digest == "" {
		// It does not tell in a HEAD.
		var m *fetched
		if m, err = s.manifest(ctx, ref.Identifier(), ref.Digest); err == nil {
			digest = m.Digest
		} else if u := asUnread(err); u != nil {
			digest, err = u.Digest, nil
		}
	}
	if err == nil {
		return digest, nil
	}
	e := describe(ref, err)
	switch e.Reason {
	case NotFound:
		return "", nil
	case Unauthorized:
		im.forget(ref)
	}
	return "", e
}

// Manifest reads what a tag or a digest leads to, be it an image or not. Errors
// are as of Import.
func (im *Importer) Manifest(ctx context.Context, ref reference.Reference) (*manifest.Manifest, error) {
	s, err := im.session(ctx, ref)
	if err != nil {
		return nil, describe(ref, err)
	}
	m, err := s.manifest(ctx, ref.Identifier(), ref.Digest)
	if err != nil {
		return nil, describe(ref, err)
	}
	return m.Manifest, nil
}
