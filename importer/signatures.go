package importer

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// SignatureFinder finds what a registry holds about who made one image.
//
// Find is called for every image an import meets, with that image's own
// digest: for an index, and then for each of its platforms. It is called for
// images that were stored before as well, because signatures are pushed after
// the image they sign, but not again for what was found lately: see
// [Options.SignaturesAge]. It must be safe for concurrent use.
//
// What the finder remembers of the repository must not be older than since. Forget
// is called when a registry has told of signatures: what is remembered of the
// repository may be wrong.
//
// as is the repository as policies know it: digest is in a mirror if it was read
// from one.
//
// transport is the importer's way to the repository of digest: already
// authenticated, rate limited, retried, with bodies capped (manifests and
// referrers at 4 MiB, blobs at 8 MiB). It is valid for that repository and only
// during the call. Package remote takes it with remote.WithTransport and does
// not authenticate again.
//
// signatures are added to the Image: each must have metadata.name
// "<digest>@<unique name>", type and content. A signature whose name the Image
// already has is left as it is. annotations are set on the Image. warnings are
// returned in [Result.Warnings] for people to read.
//
// An error means that the registry could not be asked. The image is stored
// without the signatures, and Import returns the error beside its result so
// that a queue tries again.
type SignatureFinder interface {
	Find(ctx context.Context, digest name.Digest, as reference.Reference, transport http.RoundTripper, since time.Time) (signatures []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error)
	Forget(repository name.Repository)
}

// childSearchAge is how long ago the signatures of a platform may have been looked for when its index is imported: a
// push of an index is told of as a push of each.
const childSearchAge = time.Minute

// maxSearches bounds the searches that are remembered.
const maxSearches = 1 << 14

// searches remembers when the signatures of a digest were looked for last.
type searches struct {
	mu   sync.Mutex
	last *lru.Cache // repository@digest → searched
	told uint64     // how often something was told of signatures
}

// searched is a search whose outcome the Image of this UID has.
type searched struct {
	began time.Time
	image types.UID
	told  uint64 // searches.told when something was told of this digest last; then began is zero until a later search
}

// begin is called before a search, and what it returns given to done.
func (s *searches) begin() (told uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// done notes that all there was to read has been read since began, and stored. A search does not count that runs while
// something is told of the digest: it may have read before that was there.
func (s *searches) done(ref reference.Reference, began time.Time, image *imagev1.Image, told uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var before searched
	if v, ok := s.last.Get(ref.String()); ok {
		before = v.(searched)
	}
	if before.told <= told {
		s.last.Add(ref.String(), searched{began, image.UID, before.told})
	}
}

func (s *searches) forget(ref reference.Reference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told++
	s.last.Add(ref.String(), searched{told: s.told})
}

// covers reports whether the last search for image began after since.
func (s *searches) covers(ref reference.Reference, since time.Time, image *imagev1.Image) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.last.Get(ref.String())
	return ok && !v.(searched).began.Before(since) && v.(searched).image == image.UID
}

// searchedSince is when the present job may use that signatures were looked for.
func (r *run) searchedSince(ctx context.Context) time.Time {
	return jobOf(ctx).began.Add(-r.signaturesAge)
}

// isSearched reports whether the signatures of a stored Image need not be looked for again.
func (r *run) isSearched(ctx context.Context, n node, found *imagev1.Image) bool {
	if found == nil {
		return false
	}
	since := r.searchedSince(ctx)
	if n.child != nil && r.signaturesAge < childSearchAge {
		since = jobOf(ctx).began.Add(-childSearchAge)
	}
	return r.searches.covers(n.reference.Bare().WithDigest(n.digest), since, found)
}

// ForgetSignatures has the signatures of a digest looked for by the next import of it, as if nothing were
// known of its repository: something was told of them.
func (im *Importer) ForgetSignatures(ref reference.Reference) {
	im.searches.forget(ref)
	if im.finder == nil {
		return
	}
	sources, _ := im.pullSources(ref) // where there are none, nothing is remembered
	for _, at := range sources {
		if repository, err := name.NewRepository(at.Reference.Name()); err == nil {
			im.finder.Forget(repository)
		}
	}
}
