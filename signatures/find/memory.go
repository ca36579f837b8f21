package find

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Bounds of what is remembered of registries, so that many images of one registry cost few
// requests.
const (
	// abilityAge is how long a registry is believed to lack something.
	abilityAge = time.Hour
	// maxAbilities and maxTagLists bound the memory: of parts of registries, and of repositories.
	maxAbilities, maxTagLists = 1024, 32
	// tagPage is how many tags are asked for at a time, maxTagListPages how many pages are read,
	// and maxSignatureTags how many signature tags of one repository are remembered.
	tagPage, maxTagListPages, maxSignatureTags = 1000, 100, 100_000
	// worthPages applies to a repository with more tags than one page has: each tag of so many
	// digests is asked for by itself before all tags are listed.
	worthPages = 16
)

// memory holds the knowledge of a Finder between searches.
type memory struct {
	clock     clock.PassiveClock
	mu        sync.Mutex
	abilities *lru.Cache // partOf → *abilities
	tags      *lru.Cache // repository → *tagList
}

func newMemory(c clock.PassiveClock) *memory {
	return &memory{clock: c, abilities: lru.New(maxAbilities), tags: lru.New(maxTagLists)}
}

// partOf names what answers alike: a registry's repositories with the same first element. A proxy
// may have registries of several kinds behind one host, and tells them apart by that element.
func partOf(repository name.Repository) string {
	first, _, _ := strings.Cut(repository.RepositoryStr(), "/")
	return repository.RegistryStr() + "/" + first
}

// abilities are the features that a part of a registry has shown.
type abilities struct {
	mu sync.Mutex
	// withoutReferrers is the time until which the part is believed to have no referrers API.
	withoutReferrers time.Time
	// extension is set once OpenShift's signature extension was announced.
	extension bool
	// asked is set once the referrers API, or whatever is in its place, has answered. Until then
	// one search asks at a time, which holds first, and the others wait: many at once would each be
	// answered that there is no API.
	asked bool
	first chan struct{}
}

func (m *memory) abilitiesOf(repository name.Repository) *abilities {
	m.mu.Lock()
	defer m.mu.Unlock()
	return getOrAdd(m.abilities, partOf(repository), func() *abilities { return &abilities{first: make(chan struct{}, 1)} })
}

func (m *memory) tagsOf(repository name.Repository) *tagList {
	m.mu.Lock()
	defer m.mu.Unlock()
	return getOrAdd(m.tags, repository.Name(), func() *tagList { return &tagList{turn: make(chan struct{}, 1)} })
}

// forget forgets what is remembered of a repository. A list of tags that is being read will not be
// remembered either.
func (m *memory) forget(repository name.Repository) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abilities.Remove(partOf(repository))
	m.tags.Remove(repository.Name())
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

// await waits while another search asks the referrers API for the first time. The caller asks then,
// and calls done when it has the answer; more calls do nothing.
func (a *abilities) await(ctx context.Context) (done func(), err error) {
	isAsked := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.asked
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

// answered notes what an answer of the referrers API says of the registry. Only an answer that
// cannot be a mere web page in the API's place says that there is no API. An answer of the API
// takes that back.
func (a *abilities) answered(status int, header http.Header, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = true
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

// tagList holds the signature tags of a repository. One search reads the list, others wait.
type tagList struct {
	turn chan struct{} // holds one element while tagPages is in use
	tagPages
}

// tagPages are the pages of a list of tags that have been read.
type tagPages struct {
	read  time.Time // when reading began; zero if it has not
	next  string    // path of the next page; "" when there is none
	pages int
	// whole is set when all tags have been listed. Until then tags are asked for one by one.
	whole  bool
	tags   map[string]bool
	listed int // tags of all kinds
	asked  int // digests that were looked for without the whole list
	// the tag whose successors were asked for, as the registry did not say where the list goes on
	last string
	// none says that the registry has listed no tag, or no repository, to a search of an image that
	// was pushed without a tag: a repository that is new. Other searches look again.
	none bool
}

// has reports whether the repository has a signature tag. known is false when only asking for the
// tag can tell. A list that was read before since does not count. A list that takes longer than
// half the time that is left is read on by the next search.
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
		l.tagPages = tagPages{read: s.memory.clock.Now(), next: s.client.Path(fmt.Sprintf("tags/list?n=%d", tagPage)), tags: map[string]bool{}}
		err = l.page(ctx, s.client)
		l.none = s.pushed && l.listed == 0 && (errors.Is(err, errNotListed) || isUnknown(err))
	}
	if l.none {
		return false, true, nil
	}
	if l.next != "" && err == nil {
		if l.asked < worthPages {
			l.asked += s.firstTime()
		} else {
			for l.next != "" && err == nil {
				err = l.page(ctx, s.client)
			}
		}
	}
	if err != nil && ctx.Err() != nil {
		l.pages-- // the next search asks for the page again
		return false, false, context.Cause(search)
	}
	if err != nil {
		// If anything is wrong with the registry, asking for the tags themselves will show it.
		l.next, l.tags = "", nil
		return false, false, nil
	}
	return l.tags[tag], l.whole, nil
}

// halfOf leaves half of the time that is left to what comes afterwards.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// errNotListed ends the reading of a list that does not show which tags exist.
var errNotListed = errors.New("the tags are not all listed")

// page reads the next page.
func (l *tagPages) page(ctx context.Context, c *client) error {
	here := l.next
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
		if l.last != "" && tag <= l.last {
			return errNotListed // it does not know what it was asked
		}
		if strings.HasPrefix(tag, "sha256-") {
			l.tags[strings.Clone(tag)] = true
		}
	}
	l.listed += len(list.Tags)
	next, elsewhere := c.Next(header, here)
	if elsewhere || next == here || len(l.tags) > maxSignatureTags {
		return errNotListed
	}
	if l.next = next; next != "" {
		return nil
	}
	if l.listed == 0 { // although the repository has something
		return errNotListed
	}
	n := len(list.Tags)
	if l.whole = n == 0 || n%50 != 0 || l.pages > 1 && l.last == ""; l.whole {
		return nil
	}
	// A page of a round number of tags may be cut, by a registry that does not say where the list
	// goes on.
	l.last = strings.Clone(list.Tags[n-1])
	l.next = c.Path(fmt.Sprintf("tags/list?n=%d&last=%s", tagPage, url.QueryEscape(l.last)))
	if l.pages == 1 {
		return l.page(ctx, c)
	}
	return nil
}

// isUnknown reports whether a registry says that there is no such repository, and not that it lists
// no tags.
func isUnknown(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound && slices.ContainsFunc(answer.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.NameUnknownErrorCode })
}
