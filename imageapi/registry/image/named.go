package image

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxNamedTags bounds how many tags are read that pods name without telling what they run.
const maxNamedTags = 10_000

// namedTags are the tags that pods and workloads name without saying, by its digest, what they use:
// a pod that has not started, one whose runtime tells nothing that is a digest, and one that tells
// an ID which no stored image has. Such a pod counts for what the tag leads to now. But it may run
// what the tag has led to at any time since the pod was created, so it is unknown whether that is
// used.
type namedTags struct {
	version  uint64
	revision uint64 // of the stored tags that led is made of
	// byTag are those who name a tag, by the tag or, if that is a mirror's name, what it stands for.
	byTag map[string][]usage.Named
	// led are those who name a tag that has led to an image since, by the image's digest.
	led map[string][]usage.Named
	// doubt says why led may lack some; "" if it does not.
	doubt string
}

// tagNames keeps the newest namedTags.
type tagNames struct {
	mu  sync.Mutex
	now namedTags

	// tag reads the ImageTag of a reference with a tag, nil if there is none; revision is the
	// revision of all of them.
	tag      func(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error)
	revision func(ctx context.Context) (uint64, error)
}

// names returns who names tags.
func (f *facts) names() namedTags {
	f.named.mu.Lock()
	defer f.named.mu.Unlock()
	return f.namesLocked()
}

func (f *facts) namesLocked() namedTags {
	all, version := f.usage.Named(f.named.now.version)
	if version == f.named.now.version {
		return f.named.now
	}
	n := namedTags{version: version, byTag: map[string][]usage.Named{}}
	for _, one := range all {
		ref, err := reference.Parse(one.Tag)
		if err != nil {
			continue // there is only an ID
		}
		meant := []reference.Reference{ref}
		if f.mirrors != nil {
			meant = append(meant, f.mirrors.Sources(ref)...)
		}
		for _, ref := range meant {
			n.byTag[ref.String()] = append(n.byTag[ref.String()], one)
		}
	}
	if len(n.byTag) > 0 {
		n.doubt = notRead // until refreshNames has read the tags
	}
	f.named.now = n
	return n
}

// notRead is why it is not known what tags have led to.
const notRead = "the histories of tags that pods name are still being read"

// refreshNames finds out what the tags have led to that pods name. It is called before use is
// answered, with the context of the reader.
func (f *facts) refreshNames(ctx context.Context) {
	f.named.mu.Lock()
	defer f.named.mu.Unlock()
	f.refreshNamesLocked(ctx)
}

func (f *facts) refreshNamesLocked(ctx context.Context) namedTags {
	n := f.namesLocked()
	if len(n.byTag) == 0 || f.named.tag == nil {
		return n
	}
	revision, err := f.named.revision(ctx)
	if err == nil && n.doubt == "" && revision == n.revision {
		return n
	}
	n.led, n.revision, n.doubt = map[string][]usage.Named{}, revision, ""
	if err == nil {
		err = f.readNames(ctx, &n)
	}
	if err != nil {
		n.doubt = printable.Line(fmt.Sprintf("it is unknown what the tags have led to that pods name: %v", err), maxStaleReason)
	}
	f.named.now = n
	return n
}

// readNames fills in led.
func (f *facts) readNames(ctx context.Context, n *namedTags) error {
	if len(n.byTag) > maxNamedTags {
		return fmt.Errorf("there are more than %d", maxNamedTags)
	}
	for name, users := range n.byTag {
		ref, err := reference.Parse(name)
		if err != nil {
			return err
		}
		tag, err := f.named.tag(ctx, ref)
		if err != nil {
			return err
		}
		for _, one := range users {
			if one.Since == 0 {
				continue // workloads need what it leads to now
			}
			digests, whole := tags.Since(tag, time.Unix(one.Since, 0))
			if !whole {
				return fmt.Errorf("%s has moved more than %d times since", name, tags.MaxItems)
			}
			now, _ := tags.Now(tag)
			for _, digest := range digests {
				if digest != now { // it counts for that
					n.led[digest] = append(n.led[digest], one)
				}
				if err := f.leadsBelow(ctx, n, digest, one); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// leadsBelow records that a tag has led to an index while it was named, and so to what that lists.
func (f *facts) leadsBelow(ctx context.Context, n *namedTags, digest string, one usage.Named) error {
	image, err := f.indexes.get(ctx, digest)
	if err != nil || image == nil {
		return err
	}
	for _, m := range listed(image) {
		n.led[m] = append(n.led[m], one)
	}
	return nil
}

// uncertain says why pods may use an image that are not known to use it; "" if they do not. If pods
// have changed since the names were refreshed, it reads the tags again: else deletions would fail
// whenever a pod starts.
func (f *facts) uncertain(digest string) string {
	f.named.mu.Lock()
	n := f.namesLocked()
	if n.doubt == notRead {
		n = f.refreshNamesLocked(context.Background())
	}
	f.named.mu.Unlock()
	if n.doubt != "" {
		return n.doubt
	}
	var named []string
	for _, one := range n.led[digest] {
		if one.ID == "" || !f.indexes.settled(one.ID) {
			if len(named) == MaxNamed {
				named = append(named, "and more")
				break
			}
			named = append(named, one.Tag)
		}
	}
	if len(named) == 0 {
		return ""
	}
	return "pods name " + strings.Join(named, ", ") + " and do not tell what they run, and the tag has led to it since they were created"
}
