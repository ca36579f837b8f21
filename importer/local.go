package importer

import (
	"context"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/oci"
)

// ImportFrom is Import of what from, and not the registry, says that reference leads to: see package archive. No registry
// is contacted; from is asked for manifests and blobs as one would be, and what it answers is checked in the same way.
func (im *Importer) ImportFrom(ctx context.Context, ref reference.Reference, from http.RoundTripper, images Images) (*Result, error) {
	ref, err := pulled(ref)
	if err != nil {
		return nil, err
	}
	ctx, done := im.job(ctx)
	defer done()
	repository, err := name.NewRepository(ref.Name(), name.Insecure)
	if err != nil {
		return nil, describe(ref, err)
	}
	s := &session{
		repository: repository, transport: from, limits: im.limits,
		registry: oci.New("http", repository.RegistryStr(), repository.RepositoryStr(), from),
	}
	root, err := s.root(ctx, ref, true)
	if err != nil {
		return nil, describe(ref, err)
	}
	run := &run{Importer: im, ref: ref, session: s, images: images, nodes: map[string]*visit{}}
	return run.from(ctx, root)
}
