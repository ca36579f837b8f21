package importer

import (
	"context"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// ImportFrom is Import with from in place of the registry: see package archive. It sends requests
// for manifests and blobs to from, checks the answers as it checks a registry's, and contacts no
// registry. It also reads images that are stored already, because files may be damaged and reading
// them costs no request.
func (im *Importer) ImportFrom(ctx context.Context, ref reference.Reference, from http.RoundTripper, images Images) (*Result, error) {
	ref, err := pulled(ref)
	if err != nil {
		return nil, err
	}
	ctx, done := im.InJob(ctx)
	defer done()
	repository, err := name.NewRepository(ref.Name(), name.Insecure)
	if err != nil {
		return nil, pull.Describe(ref, err)
	}
	s := im.Client.Local(repository, from)
	root, err := findRoot(ctx, s, ref, true)
	if err != nil {
		return nil, pull.Describe(ref, err)
	}
	run := &run{Importer: im, ref: ref, session: s, images: images, reread: true, nodes: map[string]*visit{}}
	return run.from(ctx, root)
}
