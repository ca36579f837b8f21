package importer

import (
	"context"
	"errors"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
)

// askKnown finds out from the server whether anything is new of an image to which a tag led before,
// and returns the answer if nothing is. Otherwise it returns nil, and n has what was found beside
// the image, if that was looked for.
func (r *run) askKnown(ctx context.Context, n *node) (*record.Result, error) {
	recorder, ok := r.images.(Recorder)
	if !ok || !n.before || !isBrief(ctx) || r.reread || r.verify || n.known != nil || n.unread != nil {
		return nil, nil
	}
	fresh := r.newImage(*n, &fetched{Manifest: &manifest.Manifest{}})
	searched, isSearched := r.searches.since(n.reference.Bare().WithDigest(n.digest), r.searchesCount(ctx, *n))
	if r.finder != nil && !isSearched {
		if n.search = r.look(ctx, *n); n.search.err != nil {
			return nil, nil
		}
		setSearch(fresh, n.reference.Bare(), n.search.signatures, n.search.annotations, nil)
	}
	if n.foreseen.Knows(fresh, n.reference.Bare(), n.search != nil) && (r.finder == nil || !isSearched || n.foreseen.Metadata.UID == searched) {
		return n.foreseen, nil
	}
	result, err := recorder.Record(ctx, record.OfKnown(fresh, n.reference.Bare(), n.search != nil))
	switch {
	case errors.Is(err, record.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking up image %s: %w", n.digest, err)
	case result.Unread || result.Metadata == nil, r.finder != nil && isSearched && result.Metadata.UID != searched:
		return nil, nil
	}
	return result, nil
}

// importKnown is importFound for an image that is unchanged according to the server.
func (r *run) importKnown(ctx context.Context, n node) (*outcome, error) {
	if n.child == nil {
		r.manifestRead = true
	}
	if n.answer.Manifest != "" {
		m, err := manifest.Parse([]byte(n.answer.Manifest), n.answer.MediaType)
		if err != nil {
			return nil, fmt.Errorf("the stored manifest: %w", err)
		}
		return r.importIndex(ctx, n, &imagev1.Image{ObjectMeta: *n.answer.Metadata}, &fetched{m, []byte(n.answer.Manifest), n.digest})
	}
	p := manifest.ParsePlatform(n.answer.Metadata.Annotations[annotation.Platform])
	p.OSVersion = n.answer.Metadata.Annotations[annotation.OSVersion]
	if n.child != nil && !r.wants(listed(n.child, p), false) {
		return nil, errNotWanted
	}
	out := &outcome{digest: n.digest}
	return out, r.store(ctx, n, nil, pull.Clean(p.Exact()), out)
}
