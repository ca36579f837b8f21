package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxNamedTags bounds how many tags are read that pods name without telling what they run.
const maxNamedTags = 10_000

// namedTags are the tags of pods and workloads whose digest is not known: the pod has not started,
// its runtime reports no digest, or no stored image has the reported ID. Such a pod counts for the
// image that the tag leads to now. But it may run any image that the tag has led to since the pod
// was created, so it is unknown whether these images are used.
type namedTags struct {
	version  uint64
	revision uint64 // of the stored tags that led is made of
	// byTag are the pods and workloads by the tag that they name or, if the tag is a mirror's name,
	// by the tag that it stands for.
	byTag map[string][]usage.Named
	// led are the pods and workloads by the digests of the images that their tag has led to since.
	led map[string][]usage.Named
	// leads are the pods and workloads by the digest of the image that their tag leads to now.
	leads map[string][]usage.Named
	// doubt is why led may be incomplete, or "".
	doubt string
}

// tagNames keeps the newest namedTags and reportingTags.
type tagNames struct {
	mu        sync.Mutex
	now       namedTags
	reporting reportingTags

	// tag reads the ImageTag of a reference with a tag, nil if there is none; revision is the
	// revision of all of them.
	tag      func(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error)
	revision func(ctx context.Context) (uint64, error)
}

// names returns the pods and workloads that name tags.
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
	n.led, n.leads, n.revision, n.doubt = map[string][]usage.Named{}, map[string][]usage.Named{}, revision, ""
	if err == nil {
		err = f.readNames(ctx, &n)
	}
	if err != nil {
		n.doubt = printable.Line(fmt.Sprintf("it is unknown what the tags have led to that pods name: %v", err), maxStaleReason)
	}
	f.named.now = n
	return n
}

// readNames fills in led and leads.
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
		now, _ := tags.Now(tag)
		if now != "" {
			n.leads[now] = append(n.leads[now], users...)
		}
		for _, one := range users {
			if one.Since == 0 {
				continue // workloads need what it leads to now
			}
			digests, whole := tags.Since(tag, time.Unix(one.Since, 0))
			if !whole {
				return fmt.Errorf("%s has moved more than %d times since", name, tags.MaxItems)
			}
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

// uncertain returns why pods may use an image without being known to use it, or "". image is nil if
// it is not stored. If pods have changed since the names were refreshed, it reads the tags again;
// otherwise deletions would fail whenever a pod starts.
func (f *facts) uncertain(digest string, image *imagev1.Image) string {
	f.named.mu.Lock()
	defer f.named.mu.Unlock()
	n := f.namesLocked()
	if n.doubt == notRead {
		n = f.refreshNamesLocked(context.Background())
	}
	if n.doubt != "" {
		return n.doubt
	}
	var named []string
	for _, one := range n.led[digest] {
		if f.tellsNothing(one) {
			named = append(named, one.Tag)
		}
	}
	if len(named) > 0 {
		return podsNaming(named) + " and do not tell what they run, and the tag has led to it since they were created"
	}
	if image == nil {
		return ""
	}
	named, err := f.reported(context.Background(), image)
	switch {
	case err != nil:
		return printable.Line(fmt.Sprintf("it is unknown what the tags have led to that pods name: %v", err), maxStaleReason)
	case len(named) > 0:
		return podsNaming(named) + " and tell a digest that no image here has, and the tag has led to it since they were created"
	}
	return ""
}

// tellsNothing reports whether the digest is not known that these pods or workloads use.
func (f *facts) tellsNothing(one usage.Named) bool {
	return one.ID == "" || !f.indexes.settled(one.ID)
}

// maybeUsed are the digests of all images for which uncertain has a reason. doubt is why there may
// be more, or "".
func (f *facts) maybeUsed(ctx context.Context) (digests []string, doubt string) {
	f.named.mu.Lock()
	defer f.named.mu.Unlock()
	n := f.refreshNamesLocked(ctx)
	if n.doubt != "" {
		return nil, n.doubt
	}
	for digest, users := range n.led {
		if slices.ContainsFunc(users, f.tellsNothing) {
			digests = append(digests, digest)
		}
	}
	for _, in := range f.reportingNow(ctx) {
		for _, one := range in {
			led, err := f.ledToOthers(ctx, one)
			if err != nil {
				return nil, printable.Line(fmt.Sprintf("it is unknown what the tags have led to that pods name: %v", err), maxStaleReason)
			}
			digests = append(digests, led...)
		}
	}
	return digests, ""
}

// podsNaming begins a sentence about pods that name some tags.
func podsNaming(tags []string) string {
	slices.Sort(tags)
	if tags = slices.Compact(tags); len(tags) > MaxNamed {
		tags = append(tags[:MaxNamed], "and more")
	}
	return "pods name " + strings.Join(tags, ", ")
}

// reportingTags are the tags that some pods name. The runtime of these pods reports the tag's
// repository with a digest that no stored manifest or config has: the image is not imported, or the
// runtime made its manifest from a file. So it is unknown whether such a pod runs an image to which
// the tag has led since the pod was created.
type reportingTags struct {
	unknown, pods uint64                          // the versions of what it is made of
	in            map[string]map[string]reporting // by the name of a repository, and a tag there
	led           map[reference.Reference]history // what these have led to, as far as it was read
	revision      uint64                          // of led
}

// reporting is a tag that pods name by a name, the oldest of them since a time, and the digests
// that they tell.
type reporting struct {
	tag     reference.Reference
	name    string
	since   int64
	digests []string
}

// history is what a tag has led to since pods name it, and ever, as far as that is known, with what
// the indexes among these list.
type history struct {
	digests, ever []string
	whole         bool
}

// refreshReporting finds the pods anew if they, or what is known of their digests, have changed.
// The caller holds mu.
func (f *facts) refreshReporting() {
	r, pods := &f.named.reporting, f.named.now.version
	has := r.unknown
	if r.pods != pods {
		has = 0
	}
	digests, version := f.indexes.unknown(has)
	if version == has {
		return
	}
	*r = reportingTags{unknown: version, pods: pods, in: map[string]map[string]reporting{}, led: map[reference.Reference]history{}}
	for _, one := range f.usage.Reporting(digests) {
		ref, err := reference.Parse(one.Tag)
		if err != nil {
			continue
		}
		meant := []reference.Reference{ref}
		if f.mirrors != nil {
			meant = append(meant, f.mirrors.Sources(ref)...)
		}
		for _, tag := range meant {
			in := r.in[tag.Name()]
			if in == nil {
				in = map[string]reporting{}
				r.in[tag.Name()] = in
			}
			pods, had := in[tag.Tag]
			if !had || one.Since < pods.since {
				pods.tag, pods.name, pods.since = tag, one.Tag, one.Since
			}
			pods.digests = append(pods.digests, one.ID)
			in[tag.Tag] = pods
		}
	}
}

// reported returns the tags of [reportingTags] that have led to an image, or to an index that lists
// it. The caller holds mu.
func (f *facts) reported(ctx context.Context, image *imagev1.Image) (named []string, err error) {
	reporting := f.reportingNow(ctx)
	if len(reporting) == 0 {
		return nil, nil // the usual case
	}
	repositories := append(annotation.In(image.Annotations, image.DockerImageReference, image.Name), annotation.GoneFrom(image.Annotations, image.Name)...)
	for _, repository := range repositories {
		for _, one := range reporting[repository.Name()] {
			led, err := f.ledToOthers(ctx, one)
			if err != nil {
				return nil, err
			}
			if slices.Contains(led, image.Name) {
				named = append(named, one.name)
			}
		}
	}
	return named, nil
}

// reportingNow returns the tags of [reportingTags]. The caller holds mu.
func (f *facts) reportingNow(ctx context.Context) map[string]map[string]reporting {
	if f.refreshReporting(); len(f.named.reporting.in) == 0 || f.named.tag == nil {
		return nil
	}
	r := &f.named.reporting
	if revision, err := f.named.revision(ctx); err != nil || revision != r.revision {
		r.led, r.revision = map[reference.Reference]history{}, revision
	}
	return r.in
}

// ledToOthers returns the digests that a tag has led to since the first pod that names it and whose
// digest is not known. The caller holds mu.
func (f *facts) ledToOthers(ctx context.Context, one reporting) ([]string, error) {
	led, err := f.ledSince(ctx, one)
	if err != nil {
		return nil, err
	}
	// What the tag has ever led to is a manifest, so such a pod runs that, stored or not.
	if !slices.ContainsFunc(one.digests, func(digest string) bool { return !slices.Contains(led.ever, digest) }) {
		return nil, nil
	}
	return led.digests, nil
}

// ledSince returns what a tag has led to. The caller holds mu.
func (f *facts) ledSince(ctx context.Context, one reporting) (history, error) {
	r := &f.named.reporting
	led, ok := r.led[one.tag]
	if !ok {
		tag, err := f.named.tag(ctx, one.tag)
		if err != nil {
			return led, err
		}
		led.digests, led.whole = tags.Since(tag, time.Unix(one.since, 0))
		led.ever, _ = tags.Since(tag, time.Time{})
		for _, all := range []*[]string{&led.digests, &led.ever} {
			for _, digest := range *all {
				image, err := f.indexes.get(ctx, digest)
				if err != nil {
					return led, err
				}
				if image != nil {
					*all = append(*all, listed(image)...)
				}
			}
		}
		r.led[one.tag] = led
	}
	if !led.whole {
		return led, fmt.Errorf("%s has moved more than %d times since", one.tag, tags.MaxItems)
	}
	return led, nil
}
