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

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// SignatureFinder finds the signatures and attestations of one image in a registry.
//
// Find is called for every image of an import, with the image's own digest: for an index, and then
// for each of its platforms. It is also called for images that are stored already, because
// signatures are pushed after the image that they sign, unless a search was made within
// [Options.SignaturesAge]. It must be safe for concurrent use.
//
// The finder must not use cached answers of the repository that are older than since. Forget is
// called after a registry has reported signatures: cached answers of the repository may be wrong.
// Listed is called with all tags of a repository, and with the time at which the importer began to
// read the list.
//
// as is the repository by the name that policies use. digest names the mirror's repository if the
// image was read from a mirror.
//
// listed is true if the repository's list of tags is sure to contain the image's signature tags, if
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
// An error means that the registry did not answer. The image is stored without the signatures, and
// Import returns the error beside its result, so that a queue tries again. If the error has a
// method Partial that returns true, the findings count, and annotation.Unread says what is missing;
// the error is then in [Result.Again].
type SignatureFinder interface {
	Find(ctx context.Context, digest name.Digest, as reference.Reference, transport http.RoundTripper, since time.Time, listed bool) (signatures []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error)
	Forget(repository name.Repository)
	Listed(repository name.Repository, tags []string, read time.Time)
}

type pushedKey struct{}

// Pushed returns a context for the import of what a registry has reported as pushed. Such a
// registry is not a caching proxy, whose list of tags may be incomplete. digests are those that the
// registry has reported for the tag.
func Pushed(ctx context.Context, digests []string) context.Context {
	return context.WithValue(ctx, pushedKey{}, digests)
}

// isNewPush reports whether a tag should lead to something new: none of the digests that were
// pushed is stored. In that case the manifest is read at once, without a HEAD before.
func isNewPush(ctx context.Context, images Images) bool {
	pushed, _ := ctx.Value(pushedKey{}).([]string)
	return len(pushed) > 0 && !slices.ContainsFunc(pushed, func(digest string) bool {
		_, err := images.Get(ctx, digest, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	})
}

// isListed reports whether the list of tags is sufficient to find the signatures of n: n was pushed
// to the repository, and either without a tag or as a platform of an index, whose signature counts
// for it. For a tagged image, each signature tag is requested.
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
	told uint64     // how often signatures were reported
}

// searched is a search whose result is in the Image with this UID.
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
	in, ok := s.since(ref, since)
	return ok && in == image.UID
}

// since returns in which Image the last search for a digest is, if it began after a time.
func (s *searches) since(ref reference.Reference, at time.Time) (image types.UID, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.last.Get(ref.String())
	if !ok || v.(searched).began.Before(at) {
		return "", false
	}
	return v.(searched).image, true
}

// searchedSince is the time since which a search counts for the present job.
func (r *run) searchedSince(ctx context.Context) time.Time {
	return pull.JobOf(ctx).Began.Add(-r.signaturesAge)
}

// isSearched reports whether the last search for the signatures of a stored Image is recent enough.
func (r *run) isSearched(ctx context.Context, n node, found *imagev1.Image) bool {
	return found != nil && r.searches.covers(n.reference.Bare().WithDigest(n.digest), r.searchesCount(ctx, n), found)
}

// searchesCount is the time since which searches for a node count.
func (r *run) searchesCount(ctx context.Context, n node) time.Time {
	if n.child != nil && r.signaturesAge < childSearchAge {
		return pull.JobOf(ctx).Began.Add(-childSearchAge)
	}
	return r.searchedSince(ctx)
}

// search is what was found beside an image.
type search struct {
	began       time.Time
	told        uint64 // see searches.begin
	signatures  []imagev1.ImageSignature
	annotations map[string]string
	warnings    []string
	err         error
}

// isWhole reports whether a search has read everything. The nil search has not.
func (s *search) isWhole() bool {
	return s != nil && s.err == nil && s.annotations[annotation.Unread] == "" && s.annotations[annotation.Cut] == ""
}

// look looks for what is beside an image.
func (r *run) look(ctx context.Context, n node) *search {
	s := &search{told: r.searches.begin(), began: r.Clock.Now()}
	s.signatures, s.annotations, s.warnings, s.err = r.Importer.search(ctx, n.session, n.reference.Bare(), n.digest, r.searchedSince(ctx), r.isListed(ctx, n))
	return s
}

// ForgetSignatures makes the next import of a digest search its signatures again, without cached
// answers of the repository. Call it after a registry has reported signatures.
func (im *Importer) ForgetSignatures(ref reference.Reference) {
	im.searches.forget(ref)
	if im.finder == nil {
		return
	}
	sources, _ := im.PullSources(ref) // without sources nothing is remembered
	if other, ok := im.signaturesOf(ref); ok {
		more, _ := im.PullSources(other)
		sources = append(slices.Clip(sources), more...)
	}
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

// partialError is an error of a [SignatureFinder] beside findings that count.
type partialError interface {
	error
	Partial() bool
}

// searchAgain returns the error for [Result.Again]. Since the registry showed the image, its
// refusal to show the referrers with the same credential is the registry's failure.
func searchAgain(ref reference.Reference, err error) error {
	e := pull.Describe(ref, err)
	if e.Reason == pull.Unauthorized {
		e.Reason = pull.Unavailable
	}
	return &searchError{e}
}

type searchError struct{ err error }

func (e *searchError) Error() string { return "looking for signatures: " + e.err.Error() }

func (e *searchError) Unwrap() error { return e.err }
