package importer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// Prefetcher is Tagged for the import of many references. If enough references of a repository are
// expected, it reads where the repository's tags led with a list, which costs a tenth of reading
// each. Images are read with lists, too, see [Prefetcher.Prefetch]. Its lists change no outcome:
// see recordTag for tags. An Image that somebody has written since is not overwritten, because its
// version has changed.
type Prefetcher struct {
	Tagged
	clock clock.PassiveClock

	mu           sync.Mutex
	repositories map[string]*listedTags     // by name
	images       map[string]prefetchedImage // by digest

	checks []tags.Check // that are to be told
	// the server takes none: it is an older one, or its roles do not allow it
	unconfirmed bool

	prefetching sync.Mutex // held by Prefetch
	refused     bool       // Images cannot be read so: an older server refuses it, or its roles do
}

const (
	// references that are expected of a repository whose tags are listed
	minExpected  = 50
	prefetchPage = 500             // ImageTags read at a time
	tagsAge      = time.Minute     // how long a list is used
	checkAge     = 5 * time.Second // how long a check waits for others
	// how long an Image is used; one that is deleted meanwhile is taken for stored
	imageAge      = 2 * time.Second
	maxPrefetched = 4 * PrefetchImages // Images that are held
)

// PrefetchImages is how many Images one list reads.
const PrefetchImages = 50

// prefetchedImage is an Image that was read before it was asked for.
type prefetchedImage struct {
	image *imagev1.Image
	at    time.Time
}

type listedTags struct {
	expected int

	listing sync.Mutex           // held by the reader of the list; the others wait for it
	at      time.Time            // when it was read; zero if it never was
	useless bool                 // it may not be read, or had too many tags that were not expected
	targets map[string]tagTarget // by tag
	listed  int                  // tags on it
	taken   int                  // of these
	whole   bool
	// empty says that the repository had neither a tag nor an Image. This cannot go stale: an
	// import of a tag meanwhile makes its ImageTag, so that a write of it is refused, and the list
	// would have but the tags that this run has made.
	empty bool
	// digests are those that isNew was asked about, as hashes, while the images of an empty
	// repository prove to be new. A hash that two share costs a read.
	digests map[uint64]struct{}
}

// prefetchedTag is a tag that was listed before it is needed.
type prefetchedTag struct {
	// known says that the other fields are known.
	known bool
	// digest is what the tag led to, and version the resourceVersion of its ImageTag. Both are
	// empty if it has none.
	digest, version string
	// emptyRepository says that no Image was recorded under the tag's repository.
	emptyRepository bool
}

// tagTarget is where a tag led, in a fifth of the memory that its texts would take: a run holds one
// for each tag of its repositories. The zero value is not known.
type tagTarget struct {
	digest  [sha256.Size]byte
	version uint64
}

// newTagTarget returns the target of a tag that led to a digest of sha256; the zero value for
// others.
func newTagTarget(digest, version string) (l tagTarget) {
	digits, ok := strings.CutPrefix(digest, "sha256:")
	n, err := strconv.ParseUint(version, 10, 64)
	if !ok || err != nil || strconv.FormatUint(n, 10) != version || len(digits) != 2*len(l.digest) {
		return tagTarget{}
	}
	if _, err := hex.Decode(l.digest[:], []byte(digits)); err != nil {
		return tagTarget{}
	}
	l.version = n
	return l
}

// prefetched returns what is known of the tag.
func (l tagTarget) prefetched() prefetchedTag {
	if l.version == 0 {
		return prefetchedTag{}
	}
	return prefetchedTag{known: true, digest: "sha256:" + hex.EncodeToString(l.digest[:]), version: strconv.FormatUint(l.version, 10)}
}

// NewPrefetcher returns images whose tags are read ahead.
func NewPrefetcher(images Tagged, clock clock.PassiveClock) *Prefetcher {
	return &Prefetcher{Tagged: images, clock: clock, repositories: map[string]*listedTags{}, images: map[string]prefetchedImage{}}
}

// Expect announces that a reference will be imported. It makes an entry for each repository.
func (a *Prefetcher) Expect(ref reference.Reference) {
	if ref.Tag == "" || ref.Digest != "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.repositories[ref.Name()]
	if r == nil {
		r = &listedTags{}
		a.repositories[ref.Name()] = r
	}
	r.expected++
}

// Prefetch reads the Images that tags led to, those of the first PrefetchImages references, which
// are expected and will be imported soon. An Image that it does not read is read when its turn
// comes. Prefetch does nothing while another call runs.
func (a *Prefetcher) Prefetch(ctx context.Context, references []reference.Reference) {
	if !a.prefetching.TryLock() {
		return
	}
	defer a.prefetching.Unlock()
	digests := map[string]bool{}
	for _, ref := range references[:min(len(references), PrefetchImages)] {
		if digest := a.target(ctx, ref); digest != "" {
			digests[digest] = true
		}
	}
	if len(digests) < 2 || a.refused {
		return
	}
	now := a.clock.Now()
	list, err := a.List(ctx, metav1.ListOptions{FieldSelector: selectors.Digests(slices.Sorted(maps.Keys(digests)))})
	if err != nil {
		a.refused = unlistable(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.images, func(_ string, f prefetchedImage) bool { return now.Sub(f.at) > imageAge })
	if len(a.images)+len(list.Items) > maxPrefetched {
		clear(a.images)
	}
	for i := range list.Items {
		a.images[list.Items[i].Name] = prefetchedImage{&list.Items[i], now}
	}
}

// unlistable reports whether a list would be refused again. Other errors pass: a server that is
// busy or restarts.
func unlistable(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonMethodNotAllowed:
		return true
	}
	return false
}

// target returns where an expected tag led; "" if that is not known.
func (a *Prefetcher) target(ctx context.Context, ref reference.Reference) (digest string) {
	r, expected := a.repository(ref, 0)
	if r == nil {
		return ""
	}
	r.listing.Lock()
	defer r.listing.Unlock()
	if !a.listed(ctx, ref, r, expected) {
		return ""
	}
	return r.targets[ref.Tag].prefetched().digest
}

// isNew reports whether an Image is not stored as far as can be told without asking: nothing was
// known of the repository when its tags were listed, no Image of it was stored already since, and
// this is the first question about the digest. If the Image turns out to be stored, the caller
// calls isKnown.
func (a *Prefetcher) isNew(repository reference.Reference, digest string) bool {
	r, _ := a.repository(repository, 0)
	if r == nil {
		return false
	}
	r.listing.Lock()
	defer r.listing.Unlock()
	if r.digests == nil {
		return false
	}
	hash := maphash.String(digestSeed, digest)
	_, asked := r.digests[hash]
	r.digests[hash] = struct{}{}
	return !asked
}

// isKnown notes that images of a repository are stored already, as those of a repository are that
// are promoted to another.
func (a *Prefetcher) isKnown(repository reference.Reference) {
	if r, _ := a.repository(repository, 0); r != nil {
		r.listing.Lock()
		defer r.listing.Unlock()
		r.digests = nil
	}
}

// repository returns the entry of a repository of which references are expected, and how many; nil
// if none is. Then it lowers the expected count by taken.
func (a *Prefetcher) repository(ref reference.Reference, taken int) (r *listedTags, expected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r = a.repositories[ref.Name()]; r == nil {
		return nil, 0
	}
	expected = r.expected
	if r.expected -= taken; r.expected == 0 {
		delete(a.repositories, ref.Name())
	}
	return r, expected
}

// confirm tells of a check, together with others.
func (a *Prefetcher) confirm(ctx context.Context, check tags.Check) {
	a.mu.Lock()
	a.checks = append(a.checks, check)
	full := len(a.checks) == tags.MaxChecks || check.At.Sub(a.checks[0].At) > checkAge
	a.mu.Unlock()
	if full {
		a.Flush(ctx)
	}
}

// Flush tells of the checks that have not been told. Call it when no import is left.
func (a *Prefetcher) Flush(ctx context.Context) {
	a.mu.Lock()
	checks := a.checks
	a.checks = nil
	confirmer, ok := a.Tagged.(Confirmer)
	ok = ok && !a.unconfirmed
	a.mu.Unlock()
	if !ok || len(checks) == 0 {
		return
	}
	if err := confirmer.ConfirmTags(ctx, checks); err != nil && unlistable(err) {
		a.mu.Lock()
		a.unconfirmed = true
		a.mu.Unlock()
	}
}

var digestSeed = maphash.MakeSeed()

// Get implements Images. A prefetched Image is returned once, and while it is young: a second
// import of the Image comes after a write.
func (a *Prefetcher) Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error) {
	a.mu.Lock()
	f, ok := a.images[name]
	delete(a.images, name)
	a.mu.Unlock()
	if ok && a.clock.Since(f.at) <= imageAge && options == (metav1.GetOptions{}) {
		return f.image, nil
	}
	return a.Tagged.Get(ctx, name, options)
}

// listed reads where the tags of ref's repository led, unless that was read lately, and reports
// whether it is known. The caller holds r.listing.
func (a *Prefetcher) listed(ctx context.Context, ref reference.Reference, r *listedTags, expected int) bool {
	if !r.useless && (r.at.IsZero() || !r.empty && a.clock.Since(r.at) > tagsAge) {
		r.useless = expected < minExpected || !r.at.IsZero() && 4*r.taken < r.listed || unlistable(a.list(ctx, ref.Bare(), r, 4*expected))
		if r.useless {
			r.targets = nil
		}
	}
	return !r.useless
}

// takeTag returns what is known of an expected tag, once.
func (a *Prefetcher) takeTag(ctx context.Context, ref reference.Reference) prefetchedTag {
	r, expected := a.repository(ref, 1)
	if r == nil {
		return prefetchedTag{}
	}
	r.listing.Lock()
	defer r.listing.Unlock()
	if !a.listed(ctx, ref, r, expected) {
		return prefetchedTag{}
	}
	l, ok := r.targets[ref.Tag]
	f := l.prefetched()
	if ok {
		r.taken++
	} else if r.whole {
		f = prefetchedTag{known: true, emptyRepository: r.empty}
	}
	r.targets[ref.Tag] = tagTarget{} // a second import of the tag may come after a write
	return f
}

// errEnough ends a list that is not needed whole.
var errEnough = errors.New("no longer needed")

// list reads the tags of a repository, at most most of them.
func (a *Prefetcher) list(ctx context.Context, repository reference.Reference, r *listedTags, most int) error {
	r.at, r.targets, r.listed, r.taken, r.whole, r.empty = a.clock.Now(), map[string]tagTarget{}, 0, 0, false, false
	options := metav1.ListOptions{Limit: prefetchPage, FieldSelector: fields.OneTermEqualSelector(selectors.TagRepository, repository.Name()).String()}
	err := pages.Each(ctx, options, a.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			tag := &list.Items[i]
			// A tag that could not be imported, or led nowhere, is read when its turn comes.
			l := tagTarget{}
			if digest, known := tags.Now(tag); known && len(tag.Status.Conditions) == 0 {
				l = newTagTarget(digest, tag.ResourceVersion)
			}
			_, name, _ := strings.Cut(tag.Name, ":")
			r.targets[strings.Clone(name)] = l // keeps the name and not the page that it is part of
		}
		r.listed += len(list.Items)
		if r.whole = list.Continue == ""; !r.whole && r.listed >= most {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil || r.listed > 0:
		return err
	}
	images, err := a.List(ctx, metav1.ListOptions{Limit: 1, FieldSelector: fields.OneTermEqualSelector(selectors.RecordedReferences, repository.Name()).String()})
	if r.empty = err == nil && len(images.Items) == 0 && images.Continue == ""; r.empty {
		r.digests = map[uint64]struct{}{}
	}
	return err
}
