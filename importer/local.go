package importer

import (
	"context"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// ImportFrom is Import with from in place of the registry: see package archive. It contacts no
// registry. It asks from for manifests and blobs as it would a registry, and checks the answers in
// the same way. It reads images that are stored, too: files are damaged, and reading them costs no
// request.
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
