package importer

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// SignatureFinder finds the signatures and attestations of one image in a registry.
//
// Find is called for every image of an import, with the image's own digest: for an index, and then
// for each of its platforms. It is called for images that were stored before as well, because
// signatures are pushed after the image that they sign, unless they were searched lately: see
// [Options.SignaturesAge]. It must be safe for concurrent use.
//
// The finder must not use memories of the repository that are older than since. Forget is called
// after a registry has reported signatures: memories of the repository may be wrong.
//
// as is the repository as policies know it: digest is in a mirror if the image was read there.
//
// listed says that the repository's list of tags can be trusted to have the image's signatures, if
// there are any: see [Pushed].
//
// transport is the importer's transport to the repository of digest: authenticated, rate limited,
// retried, with bodies capped (manifests and referrers at 4 MiB, blobs at 8 MiB). It is valid for
// that repository and only during the call. Package remote takes it with remote.WithTransport and
// does not authenticate again.
//
// signatures are added to the Image: each must have metadata.name "<digest>@<unique name>", type
// and content. A signature whose name the Image already has is left as it is. annotations are set
// on the Image. warnings are returned in [Result.Warnings] for people to read.
//
// An error means that the registry could not be asked. The image is stored
// without the signatures, and Import returns the error beside its result so
// that a queue tries again.
type SignatureFinder interface {
	Find(ctx context.Context, digest name.Digest, as reference.Reference, transport http.RoundTripper, since time.Time, listed bool) (signatures []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error)
	Forget(repository name.Repository)
}

type pushedKey struct{}

// Pushed returns a context for the import of what a registry has told that it was pushed to it. So
// it is not a registry that a proxy fills, which would list the tags that it has and not all that
// exist. digests are what the tag is said to lead to.
func Pushed(ctx context.Context, digests []string) context.Context {
	return context.WithValue(ctx, pushedKey{}, digests)
}

// isNewPush reports whether a tag should lead to something new: none of the digests that were
// pushed is stored. Then the manifest is read at once, without a HEAD before.
func isNewPush(ctx context.Context, images Images) bool {
	pushed, _ := ctx.Value(pushedKey{}).([]string)
	return len(pushed) > 0 && !slices.ContainsFunc(pushed, func(digest string) bool {
		if algorithm(digest) != "sha256" { // by which the registry names it, and we would not
			return true
		}
		_, err := images.Get(ctx, digest, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	})
}

// isListed reports whether the list of tags says which signatures n has: n was pushed to the
// repository, and either without a tag or as a platform of an index, whose signature counts for it.
// For what is tagged the tags themselves are asked for.
func (r *run) isListed(ctx context.Context, n node) bool {
	return ctx.Value(pushedKey{}) != nil && (n.child != nil || r.ref.Tag == "") && !n.session.IsMirrorOf(r.ref)
}

// childSearchAge is how old a search for the signatures of a platform may be when its index is
// imported: a push of an index is reported as a push of each platform, too.
const childSearchAge = time.Minute

// maxSearches bounds the searches that are remembered.
const maxSearches = 1 << 14

// searches remembers when the signatures of a digest were looked for last.
type searches struct {
	mu   sync.Mutex
	last *lru.Cache // repository@digest → searched
	told uint64     // how often something was told of signatures
}

// searched is a search whose result the Image of this UID has.
type searched struct {
	began time.Time
	image types.UID
	// searches.told when this digest was last reported; then began is zero until a later search
	told uint64
}

// begin is called before a search; its result is passed to done.
func (s *searches) begin() (told uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// done notes a search that began at began, read everything and stored it. A search does not count
// if the digest was reported while it ran: it may have read before the signature was there.
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

// searchedSince is the time since which a search counts for the present job.
func (r *run) searchedSince(ctx context.Context) time.Time {
	return pull.JobOf(ctx).Began.Add(-r.signaturesAge)
}

// isSearched reports whether the signatures of a stored Image need not be looked for again.
func (r *run) isSearched(ctx context.Context, n node, found *imagev1.Image) bool {
	if found == nil {
		return false
	}
	since := r.searchedSince(ctx)
	if n.child != nil && r.signaturesAge < childSearchAge {
		since = pull.JobOf(ctx).Began.Add(-childSearchAge)
	}
	return r.searches.covers(n.reference.Bare().WithDigest(n.digest), since, found)
}

// ForgetSignatures has the next import of a digest search its signatures again, without memories of
// the repository: something was reported.
func (im *Importer) ForgetSignatures(ref reference.Reference) {
	im.searches.forget(ref)
	if im.finder == nil {
		return
	}
	sources, _ := im.PullSources(ref) // without sources nothing is remembered
	for _, at := range sources {
		if repository, err := name.NewRepository(at.Reference.Name()); err == nil {
			im.finder.Forget(repository)
		}
	}
}

// Unsearched reports whether the only thing that failed is the search for signatures. The images
// are stored then, and show that their signatures could not be read.
func Unsearched(err error) bool {
	switch e := err.(type) {
	case *searchError:
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(part error) bool { return !Unsearched(part) })
	case interface{ Unwrap() error }:
		return Unsearched(e.Unwrap())
	}
	return false
}

type searchError struct{ err error }

func (e *searchError) Error() string { return "looking for signatures: " + e.err.Error() }

func (e *searchError) Unwrap() error { return e.err }
