package image

import (
	"context"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// This file counts and names the pods and workloads of an image for the table, selectors, deletions
// and package answers. All of them use the same digests and references (by).

// by returns the keys and references under which pods may use an image: its digest, its config's
// digest, the digests of the indexes that list it and, for an index, the digests of the images that
// it lists. image is nil if it is not stored.
func (f *facts) by(digest string, image *imagev1.Image) ([]string, []reference.Reference) {
	keys := f.indexes.keysOf(digest)
	for _, over := range f.indexes.listing(digest) {
		keys = append(keys, over)
		index, platform, _ := strings.Cut(over, "@")
		for _, key := range f.usage.Telling(index) {
			if platform != "" {
				key += "@" + platform
			}
			keys = append(keys, key)
		}
	}
	if image == nil { // its tags are known by their own objects alone
		for _, one := range f.names().leads[digest] {
			if f.tellsNothing(one) {
				keys = append(keys, one.Key())
			}
		}
		return keys, nil
	}
	for _, m := range listed(image) {
		keys = append(keys, f.indexes.keysOf(m)...)
	}
	references, named := References(image), f.names()
	for _, ref := range references {
		if ref.Digest != "" || len(named.byTag) == 0 {
			continue
		}
		tag := ref.Pulled().String()
		for _, one := range named.byTag[tag] {
			if key := one.Key(); key != tag && f.tellsNothing(one) {
				keys = append(keys, key)
			}
		}
	}
	return keys, references
}

// pods counts the pods that use the image now; 0 when the pods are not known.
func (f *facts) pods(digest string, image *imagev1.Image) int {
	if f.usage == nil {
		return 0
	}
	return f.usage.PodsUsing(f.by(digest, image))
}

// users names these pods as cluster/namespace/name, up to limit of them.
func (f *facts) users(digest string, image *imagev1.Image, limit int) []string {
	if f.usage == nil {
		return nil
	}
	digests, references := f.by(digest, image)
	return f.usage.Users(digests, references, limit)
}

// usedBy returns where these pods are.
func (f *facts) usedBy(digest string, image *imagev1.Image) []string {
	if f.usage == nil {
		return nil
	}
	return f.usage.UsedBy(f.by(digest, image))
}

// neededBy names workloads that need the image, up to limit of them.
func (f *facts) neededBy(digest string, image *imagev1.Image, limit int) []string {
	if f.usage == nil {
		return nil
	}
	digests, references := f.by(digest, image)
	return f.usage.NeededBy(digests, references, limit)
}

// inUse returns the digests and the references of images that pods use or workloads need.
func (f *facts) inUse() (digests, references []string) {
	digests, _ = f.usage.InUse()
	for tag, all := range f.names().byTag {
		if slices.ContainsFunc(all, f.tellsNothing) {
			references = append(references, tag)
		}
	}
	return append(digests, f.indexes.images()...), references
}

// unimported counts the images that pods run and that are not imported: in a cluster, in a
// namespace of one (cluster/namespace), or with "" anywhere.
func (f *facts) unimported(in string) (n int) {
	if f.usage == nil {
		return 0
	}
	for _, id := range f.indexes.unimported() {
		users := f.usage.UsedBy(append([]string{id}, f.usage.Telling(id)...), nil)
		if in == "" && len(users) > 0 || slices.Contains(users, in) {
			n++
		}
	}
	return n
}

// UsersOf are the clusters and namespaces, as cluster/namespace, of pods that use an image, sorted,
// and workloads that need it.
func (f *facts) UsersOf(digest string) []string {
	return append(f.usedBy(digest, nil), f.neededBy(digest, nil, MaxNamed)...)
}

// Use finds the users of an image, as the table of images does: also users of the indexes that list
// it, and of the images that it lists.
type Use struct{ facts *facts }

// Use returns the use of the images.
func (r *REST) Use() *Use { return &Use{r.Facts} }

// Pods counts the pods that run an image. complete is false if there may be more. image is nil if
// it is not stored.
func (u *Use) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	if u.facts.usage == nil {
		return 0, false
	}
	u.facts.refreshNames(context.Background()) // only this request waits for it
	return u.facts.pods(digest, image), u.facts.complete() && u.facts.uncertain(digest, image) == ""
}

// Keys returns the keys under which pods use an image, some of them with a platform.
func (u *Use) Keys(digest string, image *imagev1.Image) []string {
	if u.facts.usage == nil {
		return nil
	}
	keys, references := u.facts.by(digest, image)
	for _, ref := range references {
		if ref.Digest == "" {
			keys = append(keys, ref.Pulled().String())
		}
	}
	slices.Sort(keys)
	return u.facts.usage.Used(slices.Compact(keys))
}

// Users names these pods as cluster/namespace/name, up to limit of them.
func (u *Use) Users(digest string, image *imagev1.Image, limit int) []string {
	return u.facts.users(digest, image, limit)
}

// NeededBy names workloads that need an image, as cluster/namespace/resource/name, up to limit of
// them.
func (u *Use) NeededBy(digest string, image *imagev1.Image, limit int) []string {
	return u.facts.neededBy(digest, image, limit)
}

// NeededAs names workloads that name one of some tags or digests, up to limit of them. Of a
// workload that names a digest it is not known in which repository.
func (u *Use) NeededAs(names []reference.Reference, limit int) []string {
	if u.facts.usage == nil {
		return nil
	}
	var keys []string
	for _, name := range names {
		keys = append(keys, podimages.Key(name.Pulled()))
	}
	return u.facts.usage.NeededBy(keys, nil, limit)
}

// Digests are those that pods run or workloads need, whether the images are stored or not.
func (u *Use) Digests() []string {
	if u.facts.usage == nil {
		return nil
	}
	digests, _ := u.facts.usage.InUse()
	return u.facts.indexes.running(digests)
}

// Runs returns the digests that pods run, whether the images are stored or not, and the tags that
// pods name without reporting what they run.
func (u *Use) Runs() (digests, references []string) {
	if u.facts.usage == nil {
		return nil, nil
	}
	for _, digest := range u.Digests() {
		if u.facts.pods(digest, nil) > 0 {
			digests = append(digests, digest)
		}
	}
	_, tags := u.facts.inUse()
	for _, tag := range tags {
		if slices.ContainsFunc(u.facts.names().byTag[tag], func(one usage.Named) bool { return u.facts.usage.PodsUsing([]string{one.Key()}, nil) > 0 }) {
			references = append(references, tag)
		}
	}
	return digests, references
}

// Unimported counts the images that pods run and that are not imported.
func (u *Use) Unimported() int { return u.facts.unimported("") }

// allStaleReasons lists the clusters whose pods are missing or out of date, the indexes that are,
// and why.
func (f *facts) allStaleReasons() []string {
	if f.usage == nil {
		return nil
	}
	doubts := slices.Concat(f.usage.StaleReasons(), f.indexes.staleReasons())
	if unfollowed := f.usage.Unfollowed(); unfollowed != "" {
		doubts = append(doubts, unfollowed)
	}
	return doubts
}

// StaleReasons lists the clusters whose pods are missing or out of date, the indexes that are, and
// why.
func (u *Use) StaleReasons() []string { return u.facts.allStaleReasons() }

// WorkloadStaleReasons lists the workloads that are missing or out of date, and why.
func (u *Use) WorkloadStaleReasons() []string {
	if u.facts.usage == nil {
		return nil
	}
	return u.facts.usage.WorkloadStaleReasons()
}
