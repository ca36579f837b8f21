package importer

import (
	"context"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// Ahead is Tagged for the import of many references. If enough references of a repository are expected, it reads where
// the repository's tags led with a list, which costs a tenth of reading each. What it has listed changes no outcome:
// see follow.
type Ahead struct {
	Tagged
	clock clock.PassiveClock

	mu           sync.Mutex
	repositories map[string]*listedTags // by name
}

const (
	minAhead  = 50          // references that are expected of a repository whose tags are listed
	aheadPage = 500         // ImageTags read at a time
	aheadAge  = time.Minute // how long a list is used
)

// listedTags are the tags of one repository.
type listedTags struct {
	expected int

	listing sync.Mutex // held by the reader of the list; the others wait for it
	at      time.Time  // when it was read; zero if it never was
	useless bool       // it cannot be read, or had too many tags that were not expected
	leads   map[string]foreseen
	listed  int // tags on it
	taken   int // of these
	whole   bool
	// vacant says that the repository had neither a tag nor an Image. This does not grow old: who imports a tag meanwhile
	// makes its ImageTag, so that a write of it is refused, and the list would have but the tags that this run has made.
	vacant bool
}

// foreseen is what is known of a tag before it is read.
type foreseen struct {
	// known says that the other fields are known.
	known bool
	// digest is what the tag led to, and version the resourceVersion of its ImageTag. Both are empty if it has none.
	digest, version string
	// vacant says that no Image was recorded under the tag's repository.
	vacant bool
}

// NewAhead returns images whose tags are read ahead.
func NewAhead(images Tagged, clock clock.PassiveClock) *Ahead {
	return &Ahead{Tagged: images, clock: clock, repositories: map[string]*listedTags{}}
}

// Expect announces that a reference will be imported. It makes an entry for each repository.
func (a *Ahead) Expect(ref reference.Reference) {
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

// take returns what is known of an expected tag, once.
func (a *Ahead) take(ctx context.Context, ref reference.Reference) foreseen {
	a.mu.Lock()
	r := a.repositories[ref.Name()]
	expected := 0
	if r != nil {
		expected = r.expected
		if r.expected--; r.expected == 0 {
			delete(a.repositories, ref.Name())
		}
	}
	a.mu.Unlock()
	if r == nil {
		return foreseen{}
	}
	r.listing.Lock()
	defer r.listing.Unlock()
	if r.useless {
		return foreseen{}
	}
	if r.at.IsZero() || !r.vacant && a.clock.Since(r.at) > aheadAge {
		r.useless = expected < minAhead || !r.at.IsZero() && 4*r.taken < r.listed || a.list(ctx, ref.Bare(), r, 4*expected) != nil
		if r.useless {
			r.leads = nil
			return foreseen{}
		}
	}
	f, ok := r.leads[ref.Tag]
	if ok {
		r.taken++
	} else if r.whole {
		f = foreseen{known: true, vacant: r.vacant}
	}
	r.leads[ref.Tag] = foreseen{} // a second import of the tag may come after a write
	return f
}

// list reads the tags of a repository, at most most of them.
func (a *Ahead) list(ctx context.Context, repository reference.Reference, r *listedTags, most int) error {
	r.at, r.leads, r.listed, r.taken, r.whole, r.vacant = a.clock.Now(), map[string]foreseen{}, 0, 0, false, false
	options := metav1.ListOptions{Limit: aheadPage, FieldSelector: fields.OneTermEqualSelector(selectors.TagRepository, repository.Name()).String()}
	for r.listed < most && !r.whole {
		list, err := a.ListTags(ctx, options)
		if err != nil {
			return err
		}
		for i := range list.Items {
			tag := &list.Items[i]
			f := foreseen{version: strings.Clone(tag.ResourceVersion)}
			// A tag that could not be imported, or led nowhere, is read when its turn comes.
			if f.digest, f.known = tags.Now(tag); f.digest == "" || len(tag.Status.Conditions) > 0 {
				f = foreseen{}
			}
			f.digest = strings.Clone(f.digest) // keeps the digest and not the page that it is part of
			_, name, _ := strings.Cut(tag.Name, ":")
			r.leads[strings.Clone(name)] = f
		}
		r.listed += len(list.Items)
		options.Continue = list.Continue
		r.whole = list.Continue == ""
	}
	if !r.whole || r.listed > 0 {
		return nil
	}
	images, err := a.List(ctx, metav1.ListOptions{Limit: 1, FieldSelector: fields.OneTermEqualSelector(selectors.RecordedReferences, repository.Name()).String()})
	r.vacant = err == nil && len(images.Items) == 0 && images.Continue == ""
	return err
}
