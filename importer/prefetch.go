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
	"sync/atomic"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Prefetcher is a Tagged for the import of many references. If enough references of a repository
// are expected, it reads where the repository's tags led with a list, which costs a tenth of
// reading each tag. It reads Images with lists, too, see [Prefetcher.Prefetch]. A list that is out
// of date does no harm: recordTag explains why for tags, and an update of an Image that was written
// since conflicts.
type Prefetcher struct {
	Tagged
	clock clock.PassiveClock

	mu           sync.Mutex
	repositories map[string]*listedTags                          // by name
	tags         map[string]map[reference.Reference]*foreseenTag // by host; not taken yet
	images       map[string]prefetchedImage                      // by digest
	// vacant are repositories that were vacant when they were asked for, and of which no reference is
	// expected yet: at most as many as a registry lists
	vacant map[string]bool

	checks []tags.Check // not sent yet
	// why the server accepts no checks: it is older, or its roles do not allow them; nil if it does
	unconfirmed error

	prefetching sync.Mutex // held by Prefetch
	refused     bool       // the server refuses such lists of Images: it is older, or its roles do not allow them
	// the server records nothing, so that it cannot be asked whether an Image is known
	unrecorded atomic.Bool
}

const (
	// minExpected references must be expected before a repository's tags are listed: two lists cost
	// less than the three requests that each new tag costs without
	minExpected  = 4
	prefetchPage = 500             // ImageTags read at a time, at most
	tagsAge      = time.Minute     // how long a list is used
	checkAge     = 5 * time.Second // how long a check waits for others
	// how long a prefetched Image is used; if it is deleted meanwhile, it still counts as stored
	imageAge      = 2 * time.Second
	maxPrefetched = 4 * PrefetchImages // Images that are held
	minForeseen   = 50                 // prefetched tags of a registry that are not imported yet
	// how long counts what the server has of the image of a foreseen tag
	storedAge = 5 * time.Second
)

// PrefetchImages is how many Images one list reads.
const PrefetchImages = 50

// prefetchedImage is an Image that was read before Get was called for it.
type prefetchedImage struct {
	image *imagev1.Image
	at    time.Time
}

type listedTags struct {
	expected int
	running  int // imports that have taken a tag and have not ended
	// vacant is true if the server has answered that the repository is empty, so that no list is read
	vacant atomic.Bool

	listing sync.Mutex           // held by the reader of the list; the others wait for it
	at      time.Time            // when it was read; zero if it never was
	useless bool                 // the list is forbidden, or had too many tags that were not expected
	targets map[string]tagTarget // by tag
	listed  int                  // tags on it
	taken   int                  // of these
	whole   bool
	// empty is true if the repository had neither a tag nor an Image. This cannot go stale: if
	// another client imports a tag meanwhile, its ImageTag exists, and creating it again is refused.
	empty bool
	// digests are hashes of the digests for which isNew was called, as long as the images of an empty
	// repository turn out to be new. If two digests share a hash, that costs a read.
	digests map[uint64]struct{}
}

// prefetchedTag is a tag as a list had it before the tag was imported.
type prefetchedTag struct {
	// known is true if the other fields are valid.
	known bool
	// digest is what the tag led to, and version the resourceVersion of its ImageTag. Both are
	// empty if it has none.
	digest, version string
	tag             *imagev1.ImageTag // if it was read
	// emptyRepository is true if no Image was recorded under the tag's repository.
	emptyRepository bool
	// stored is what the server has of the image to which the tag led; nil if that is not known.
	stored *record.Result
}

// foreseenTag is a tag that the server was asked for.
type foreseenTag struct {
	done   chan struct{}  // closed when answer is set
	answer *record.Result // nil if there is none
	at     time.Time      // of the question
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

// NewPrefetcher returns a Prefetcher over images.
func NewPrefetcher(images Tagged, clock clock.PassiveClock) *Prefetcher {
	return &Prefetcher{Tagged: images, clock: clock, repositories: map[string]*listedTags{}, images: map[string]prefetchedImage{}, vacant: map[string]bool{}, tags: map[string]map[reference.Reference]*foreseenTag{}}
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
		r.vacant.Store(a.vacant[ref.Name()])
		a.repositories[ref.Name()] = r
		delete(a.vacant, ref.Name())
	}
	r.expected++
}

// isVacant notes that neither a tag nor an Image of a repository is recorded. References of it may
// be expected later. Like an empty list, this cannot go stale.
func (a *Prefetcher) isVacant(repository reference.Reference) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.repositories[repository.Name()]; r != nil {
		r.vacant.Store(true)
	} else {
		a.vacant[repository.Name()] = true
	}
}

// Foresee returns a function that asks the server where the tags of next, and of coming references
// of its registry, lead, and what it has of these images; nil if enough is asked for. It does not
// ask about repositories that are known to be vacant, see [EachUnlisted]. The references must be
// expected and imported soon, with the same context, which [WithBrief] has made. One request
// answers for a hundred tags, where a list answers for one repository. With ten tags a repository,
// a known image costs the client 0.7 and the server 0.35 times the processor time that it costs
// with lists.
func (a *Prefetcher) Foresee(ctx context.Context, next reference.Reference, coming []reference.Reference) (ask func()) {
	if _, ok := a.Tagged.(Recorder); !ok || !isBrief(ctx) || a.unrecorded.Load() {
		return nil
	}
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	ahead := a.tags[next.Host]
	if len(ahead) >= minForeseen {
		maps.DeleteFunc(ahead, func(_ reference.Reference, t *foreseenTag) bool { return now.Sub(t.at) > tagsAge })
	}
	if len(ahead) >= minForeseen {
		return nil
	}
	asked := map[reference.Reference]*foreseenTag{}
	choose := func(ref reference.Reference) {
		r := a.repositories[ref.Name()]
		if ref.Tag != "" && ref.Digest == "" && ref.Host == next.Host && ahead[ref] == nil && r != nil && !r.vacant.Load() && len(asked) < record.MaxItems {
			asked[ref] = &foreseenTag{done: make(chan struct{}), at: now}
		}
	}
	choose(next)
	for _, ref := range coming[:min(len(coming), minForeseen+record.MaxItems)] {
		choose(ref)
	}
	if len(asked) == 0 || len(asked)+len(ahead) < minExpected {
		return nil
	}
	if ahead == nil {
		ahead = map[reference.Reference]*foreseenTag{}
		a.tags[next.Host] = ahead
	}
	maps.Copy(ahead, asked)
	return func() {
		var all sync.WaitGroup
		for ref, t := range asked {
			all.Go(func() {
				defer close(t.done)
				if answer, err := a.Record(ctx, &record.Item{Tag: &record.Tag{Reference: ref.String(), Asked: true}}); err == nil {
					t.answer = answer
				}
			})
		}
		all.Wait()
	}
}

// takeForeseen is takeTag for a tag that [Prefetcher.Foresee] requested. ok is false if it did not,
// or if the answer lacks something.
func (a *Prefetcher) takeForeseen(ctx context.Context, ref reference.Reference) (f prefetchedTag, leave func(), ok bool) {
	a.mu.Lock()
	ahead := a.tags[ref.Host]
	t := ahead[ref]
	if delete(ahead, ref); len(ahead) == 0 {
		delete(a.tags, ref.Host)
	}
	a.mu.Unlock()
	if t == nil {
		return f, nil, false
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return f, nil, false
	}
	age := a.clock.Since(t.at)
	if t.answer == nil || t.answer.Unread || t.answer.Version != "" && t.answer.Led == "" || age > tagsAge {
		return f, nil, false
	}
	r, _, leave := a.take(ref)
	f = prefetchedTag{known: true, digest: t.answer.Led, version: t.answer.Version}
	switch {
	case f.version == "":
		f.emptyRepository = t.answer.Alone
		if r != nil {
			r.listing.Lock()
			defer r.listing.Unlock()
			if t.answer.Alone && !r.empty {
				r.empty, r.digests = true, map[uint64]struct{}{}
			}
			f.emptyRepository = r.empty
		}
	case age <= storedAge:
		f.stored = t.answer
	}
	return f, leave, true
}

// Prefetch reads the Images to which the tags of the first PrefetchImages references led. The
// references must be expected and imported soon. An Image that Prefetch does not read is read when
// its turn comes. Prefetch does nothing while another call runs, nor if the imports will not read
// Images that are known, see [WithBrief].
func (a *Prefetcher) Prefetch(ctx context.Context, references []reference.Reference) {
	if isBrief(ctx) && !a.unrecorded.Load() || !a.prefetching.TryLock() {
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

// unlistable reports whether the server would refuse a list again. Other errors are temporary: the
// server is busy or restarts.
func unlistable(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonMethodNotAllowed:
		return true
	}
	return false
}

// target returns where an expected tag led; "" if that is not known.
func (a *Prefetcher) target(ctx context.Context, ref reference.Reference) (digest string) {
	r, expected := a.repository(ref)
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

// isNew reports whether an Image may be assumed not to be stored, without a request: the repository
// was empty when its tags were listed, none of its images has turned out to be stored since, and
// this is the first call for the digest. If the Image turns out to be stored, the caller calls
// isKnown.
func (a *Prefetcher) isNew(repository reference.Reference, digest string) bool {
	r, _ := a.repository(repository)
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

// isKnown notes that images of a repository are stored already, for instance because they were
// promoted from another repository.
func (a *Prefetcher) isKnown(repository reference.Reference) {
	if r, _ := a.repository(repository); r != nil {
		r.listing.Lock()
		defer r.listing.Unlock()
		r.digests = nil
	}
}

// repository returns the entry of ref's repository, or nil if no reference of it is expected or
// being imported, and the number of references expected.
func (a *Prefetcher) repository(ref reference.Reference) (r *listedTags, expected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r = a.repositories[ref.Name()]; r == nil {
		return nil, 0
	}
	return r, r.expected
}

// take is repository for an import that begins, and leave is called when it ends: until then isNew
// is answered. Else the last jobs of each repository would ask for images that are not there.
func (a *Prefetcher) take(ref reference.Reference) (r *listedTags, expected int, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r = a.repositories[ref.Name()]; r == nil {
		return nil, 0, func() {}
	}
	expected = r.expected
	r.expected = max(0, r.expected-1)
	r.running++
	return r, expected, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.running--; r.running == 0 && r.expected == 0 && a.repositories[ref.Name()] == r {
			delete(a.repositories, ref.Name())
		}
	}
}

// Record implements Recorder.
func (a *Prefetcher) Record(ctx context.Context, item *record.Item) (*record.Result, error) {
	recorder, ok := a.Tagged.(Recorder)
	if !ok {
		a.unrecorded.Store(true)
		return nil, record.ErrUnsupported
	}
	result, err := recorder.Record(ctx, item)
	if item.Image != nil && item.Image.Known && errors.Is(err, record.ErrUnsupported) {
		a.unrecorded.Store(true)
	}
	return result, err
}

// confirm sends a check to the server, together with others.
func (a *Prefetcher) confirm(ctx context.Context, check tags.Check) {
	a.mu.Lock()
	a.checks = append(a.checks, check)
	full := len(a.checks) == tags.MaxChecks || check.At.Sub(a.checks[0].At) > checkAge
	a.mu.Unlock()
	if full {
		_ = a.Flush(ctx) // the last call returns the error again
	}
}

// Flush sends the checks that have not been sent. Call it after the last import. The error is the
// server's, if it accepts no checks at all.
func (a *Prefetcher) Flush(ctx context.Context) error {
	a.mu.Lock()
	checks, refused := a.checks, a.unconfirmed
	a.checks = nil
	a.mu.Unlock()
	confirmer, ok := a.Tagged.(Confirmer)
	if !ok || refused != nil || len(checks) == 0 {
		return refused
	}
	if err := confirmer.ConfirmTags(ctx, checks); err != nil && unlistable(err) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unconfirmed = err
		return err
	}
	return nil
}

var digestSeed = maphash.MakeSeed()

// Get implements Images. It returns a prefetched Image once, and only within imageAge: a second
// import of the Image may come after a write.
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

// listed lists the tags of ref's repository, unless they were listed within tagsAge, and reports
// whether the list can be used. The caller holds r.listing.
func (a *Prefetcher) listed(ctx context.Context, ref reference.Reference, r *listedTags, expected int) bool {
	if r.at.IsZero() && r.vacant.Load() {
		r.at, r.targets, r.digests = a.clock.Now(), map[string]tagTarget{}, map[uint64]struct{}{}
		r.whole, r.empty = true, true
	}
	if !r.useless && (r.at.IsZero() || !r.empty && a.clock.Since(r.at) > tagsAge) {
		r.useless = expected < minExpected || !r.at.IsZero() && 4*r.taken < r.listed || unlistable(a.list(ctx, ref.Bare(), r, 4*expected))
		if r.useless {
			r.targets = nil
		}
	}
	return !r.useless
}

// takeTag returns an expected tag as the list had it. A second call for the tag returns nothing.
// The caller calls leave when the tag is imported.
func (a *Prefetcher) takeTag(ctx context.Context, ref reference.Reference) (f prefetchedTag, leave func()) {
	if f, leave, ok := a.takeForeseen(ctx, ref); ok {
		return f, leave
	}
	r, expected, leave := a.take(ref)
	if r == nil {
		return prefetchedTag{}, leave
	}
	r.listing.Lock()
	defer r.listing.Unlock()
	if !a.listed(ctx, ref, r, expected) {
		return prefetchedTag{}, leave
	}
	l, ok := r.targets[ref.Tag]
	f = l.prefetched()
	if ok {
		r.taken++
	} else if r.whole {
		f = prefetchedTag{known: true, emptyRepository: r.empty}
	}
	r.targets[ref.Tag] = tagTarget{} // a second import of the tag may come after a write
	return f, leave
}

// errEnough ends the reading of a list early.
var errEnough = errors.New("no longer needed")

// list reads at most maxTags tags of a repository.
func (a *Prefetcher) list(ctx context.Context, repository reference.Reference, r *listedTags, maxTags int) error {
	r.at, r.targets, r.listed, r.taken, r.whole, r.empty = a.clock.Now(), map[string]tagTarget{}, 0, 0, false, false
	options := metav1.ListOptions{Limit: int64(min(prefetchPage, maxTags)), FieldSelector: fields.OneTermEqualSelector(selectors.TagRepository, repository.Name()).String()}
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
		if r.whole = list.Continue == ""; !r.whole && r.listed >= maxTags {
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
