package importer

import (
	"context"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/oci"
)

// ImportFrom is Import with from in place of the registry: see package archive. It contacts no registry. It asks from
// for manifests and blobs as it would a registry, and checks the answers in the same way. It reads images that are stored,
// too: files are damaged, and reading them costs no request.
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
	run := &run{Importer: im, ref: ref, session: s, images: images, reread: true, nodes: map[string]*visit{}}
	return run.from(ctx, root)
}
