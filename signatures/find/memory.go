package find

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// Bounds of the cache about registries, which saves requests for many images of one registry.
const (
	// abilityAge is how long a missing feature of a registry is remembered.
	abilityAge = time.Hour
	// After maxFailures failures in a row, a referrers API is not called for minPause. The pause
	// doubles with each further failure, up to failureAge.
	maxFailures, minPause, failureAge = 3, 5 * time.Second, 5 * time.Minute
	// passingAge is how long a referrers API may fail before the failure counts as permanent, so that
	// searches are not repeated for it.
	passingAge = 15 * time.Minute
	// maxAbilities and maxTagLists bound the cached parts of registries, and the cached lists of
	// repositories.
	maxAbilities, maxTagLists = 1024, 32
	// tagPage is how many tags are requested at a time, maxTagListPages how many pages are read, and
	// maxSignatureTags how many signature tags of one repository are cached.
	tagPage, maxTagListPages, maxSignatureTags = 1000, 100, 100_000
	// In addition, maxSmallLists lists from calls of Listed are cached, each with at most maxSmallList
	// signature tags, because an import lists many repositories before it reads their images.
	maxSmallLists, maxSmallList = 4096, 100
	// enoughAgreement is how often a tag that a list lacks must turn out to be missing before the
	// lists of this part of a registry are trusted although a policy demands signatures.
	enoughAgreement = 16
	// worthPages applies to a repository with more than one page of tags: for so many digests, tags
	// are requested one by one before all tags are listed.
	worthPages = 16
)

// memory is a Finder's cache between searches.
type memory struct {
	clock     clock.PassiveClock
	mu        sync.Mutex
	abilities *lru.Cache // partOf → *abilities
	tags      *lru.Cache // repository → *tagList
	small     *lru.Cache // repository → *tagList from Listed, which does not change
}

func newMemory(c clock.PassiveClock) *memory {
	return &memory{clock: c, abilities: lru.New(maxAbilities), tags: lru.New(maxTagLists), small: lru.New(maxSmallLists)}
}

// partOf names the part of a registry that behaves alike: its repositories with the same first
// element. A proxy may have several kinds of registries behind one host, distinguished by that
// element.
func partOf(repository name.Repository) string {
	first, _, _ := strings.Cut(repository.RepositoryStr(), "/")
	return repository.RegistryStr() + "/" + first
}

// abilities are the features that a part of a registry has shown.
type abilities struct {
	mu sync.Mutex
	// withoutReferrers is the time until which the part counts as having no referrers API.
	withoutReferrers time.Time
	// failures is how often in a row the referrers API failed; the fields after it are since when, and
	// the last error. It is not called again before until. Failures of searches that ran in parallel
	// to the last one are not counted.
	failures     int
	failure      error
	since, until time.Time
	// extension is true after OpenShift's signature extension was announced.
	extension bool
	// hasAnswered is true after the referrers API, or a server in its place, has answered. Until then
	// one search, which holds first, calls it at a time, and the others wait: otherwise all of them
	// would find out separately that there is no API.
	hasAnswered bool
	first       chan struct{}
	// agreed is how often a tag that a list lacked turned out to be missing. hides is true after one
	// of them existed: the part's lists are incomplete, as a proxy's are.
	agreed int
	hides  bool
}

func (m *memory) abilitiesOf(repository name.Repository) *abilities {
	m.mu.Lock()
	defer m.mu.Unlock()
	return getOrAdd(m.abilities, partOf(repository), func() *abilities { return &abilities{first: make(chan struct{}, 1)} })
}

// tagsOf returns the list of a repository's tags, which is read when it is needed. It returns a
// list from Listed only if that was not read before since.
func (m *memory) tagsOf(repository name.Repository, since time.Time) *tagList {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.small.Get(repository.Name()); ok {
		if l := v.(*tagList); !l.read.Before(since) {
			return l
		}
		m.small.Remove(repository.Name())
	}
	return getOrAdd(m.tags, repository.Name(), newTagList)
}

// forget drops what is cached about a repository. A list of tags that is being read will not be
// cached, either.
func (m *memory) forget(repository name.Repository) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abilities.Remove(partOf(repository))
	m.tags.Remove(repository.Name())
	m.small.Remove(repository.Name())
}

// listed caches a complete list of tags from a call of Listed.
func (m *memory) listed(repository name.Repository, tags []string, read time.Time) {
	l := newTagList()
	l.tagPages = tagPages{read: read, whole: true, given: true, tags: map[string]bool{}, listed: len(tags)}
	for _, tag := range tags {
		if strings.HasPrefix(tag, "sha256-") {
			l.tags[strings.Clone(tag)] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch n := len(l.tags); {
	case len(tags) == 0 || n > maxSignatureTags: // it is no list, or too long to be cached
	case n > maxSmallList:
		m.small.Remove(repository.Name())
		m.tags.Add(repository.Name(), l)
	default:
		m.small.Add(repository.Name(), l)
	}
}

func getOrAdd[T any](cache *lru.Cache, key string, make func() *T) *T {
	if v, ok := cache.Get(key); ok {
		return v.(*T)
	}
	v := make()
	cache.Add(key, v)
	return v
}

func (a *abilities) lacksReferrers(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Before(a.withoutReferrers)
}

// failing returns the last failure of a referrers API that must not be called now, and whether it
// may be temporary; nil if the API may be called.
func (a *abilities) failing(now time.Time) (failure error, passing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.until) {
		return a.failure, a.mayPass(now)
	}
	return nil, false
}

// fails records a failure of the referrers API, and reports whether it may be temporary.
func (a *abilities) fails(failure error, now time.Time) (passing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hasAnswered, a.failure = true, failure; a.failures == 0 {
		a.since = now
	}
	if !now.Before(a.until) {
		if a.failures++; a.failures > maxFailures {
			a.until = now.Add(min(minPause<<min(a.failures-maxFailures-1, 16), failureAge))
		}
	}
	return a.mayPass(now)
}

// mayPass reports whether the last failure may be temporary: a server is overloaded or away, or a
// credential has just expired. A refusal with another status lasts longer.
func (a *abilities) mayPass(now time.Time) bool {
	answer, answered := errors.AsType[*transport.Error](a.failure)
	return now.Sub(a.since) < passingAge && (!answered || answer.StatusCode >= http.StatusInternalServerError ||
		answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusUnauthorized)
}

// await waits while another search calls the referrers API for the first time. Then the caller
// calls the API, and done when it has the answer; further calls of done do nothing.
func (a *abilities) await(ctx context.Context) (done func(), err error) {
	isAsked := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.hasAnswered
	}
	if isAsked() {
		return func() {}, nil
	}
	select {
	case a.first <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	done = sync.OnceFunc(func() { <-a.first })
	if isAsked() {
		done()
	}
	return done, nil
}

// answered records what an answer of the referrers API shows about the registry. Only an answer
// that cannot be a web page in the API's place shows that there is no API. A later answer of the
// API revokes that.
func (a *abilities) answered(status int, header http.Header, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hasAnswered, a.failures, a.until = true, 0, time.Time{}
	switch status {
	case http.StatusOK:
		a.withoutReferrers = time.Time{}
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
			a.withoutReferrers = now.Add(abilityAge)
		}
	}
}

func (a *abilities) announced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.extension
}

func (a *abilities) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.extension = true
}

// compared records whether a registry has a tag that a list lacks.
func (a *abilities) compared(has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if has {
		a.hides = true
	} else {
		a.agreed++
	}
}

// showsTags reports whether lists of tags have proved to be complete.
func (a *abilities) showsTags() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.hides && a.agreed >= enoughAgreement
}

// tagList holds the signature tags of a repository. One search reads the list, others wait.
type tagList struct {
	turn chan struct{} // holds one element while tagPages is in use
	tagPages
	agreed atomic.Bool // a tag that it lacks was requested, and does not exist
}

func newTagList() *tagList { return &tagList{turn: make(chan struct{}, 1)} }

// lacks reports whether a list from Listed lacks a tag.
func (l *tagList) lacks(ctx context.Context, s *search, tag string) bool {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-l.turn }()
	return l.given && !l.read.Before(s.since) && !l.tags[tag]
}

// tagPages are the pages of a list of tags that were read.
type tagPages struct {
	read time.Time  // when reading began; zero if it has not
	next *oci.Pages // nil, or without a path, when there is no other page
	// the last tag of the previous page
	last  string
	pages int
	// whole is true after all tags have been listed. Until then tags are requested one by one.
	whole bool
	// given is true for a complete list from Listed.
	given    bool
	tags     map[string]bool
	listed   int // tags of all kinds
	searched int // digests that were searched without the complete list
	// none is true if the registry has listed no tag, or does not know the repository, in a search for
	// an image that was pushed without a tag: the repository is new. Other searches list again.
	none bool
}

// has reports whether the repository has a signature tag. known is false if the tag must be
// requested to find out. A list that was read before since does not count. If reading the list
// takes more than half of the remaining time, the next search continues it.
func (l *tagList) has(search context.Context, s *search, tag string) (has, known bool, err error) {
	ctx, cancel := halfOf(search)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return false, false, context.Cause(search)
	}
	defer func() { <-l.turn }()
	if l.read.IsZero() || l.read.Before(s.since) || l.none && !s.pushed {
		l.tagPages = tagPages{read: s.memory.clock.Now(), next: s.client.List(s.client.Path(fmt.Sprintf("tags/list?n=%d", tagPage)), tagPage), tags: map[string]bool{}}
		err = l.page(ctx, s.client)
		l.none = s.pushed && l.listed == 0 && (errors.Is(err, errNotListed) || isUnknown(err))
	}
	if l.none {
		return false, true, nil
	}
	if l.goesOn() && err == nil {
		if l.searched < worthPages {
			l.searched += s.firstTime()
		} else {
			for l.goesOn() && err == nil {
				err = l.page(ctx, s.client)
			}
		}
	}
	if err != nil && ctx.Err() != nil {
		l.pages-- // the next search requests the page again
		return false, false, context.Cause(search)
	}
	if err != nil {
		// If the registry fails, the requests for the tags will return the error.
		l.next, l.tags = nil, nil
		return false, false, nil
	}
	return l.tags[tag], l.whole, nil
}

// halfOf returns a context with half of the remaining time.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// errNotListed is the error for a list that does not show all tags.
var errNotListed = errors.New("the tags are not all listed")

func (l *tagPages) goesOn() bool { return l.next != nil && l.next.Path() != "" }

// page reads the next page.
func (l *tagPages) page(ctx context.Context, c *client) error {
	here, guess := l.next.Path(), l.next.IsGuess()
	if l.pages++; l.pages > maxTagListPages {
		return errNotListed
	}
	body, _, header, err := c.get(ctx, here, "application/json", MaxManifest)
	if err != nil {
		return err
	}
	var list struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	for _, tag := range list.Tags {
		if guess && tag <= l.last {
			return errNotListed // the registry rejects the request
		}
		if strings.HasPrefix(tag, "sha256-") {
			l.tags[strings.Clone(tag)] = true
		}
	}
	n := len(list.Tags)
	if l.listed += n; n > 0 {
		l.last = strings.Clone(list.Tags[n-1])
	}
	_, elsewhere := l.next.Read(header, list.Tags)
	// An empty list cannot be right, because the repository has something.
	if elsewhere || l.next.Cut() != "" || len(l.tags) > maxSignatureTags || l.listed == 0 && !l.goesOn() {
		return errNotListed
	}
	l.whole = !l.goesOn()
	if l.pages == 1 && l.next.IsGuess() {
		return l.page(ctx, c)
	}
	return nil
}

// isUnknown reports whether the registry answered that the repository does not exist, and not that
// it cannot list tags.
func isUnknown(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound && slices.ContainsFunc(answer.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.NameUnknownErrorCode })
}
