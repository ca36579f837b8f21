package image

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Everything that counts or names the pods and workloads of an image is in this file, and goes by
// the same digests and references (by): the table, selectors, deletions and package answers.

// by returns the digests and references by which pods may use an image: its own digest, those of
// the indexes that list it, and, of an index, those of the images that it lists. image is nil if it
// is not stored.
func (f *facts) by(digest string, image *imagev1.Image) ([]string, []reference.Reference) {
	digests := append(f.indexes.listing(digest), digest)
	if image == nil {
		return digests, nil
	}
	return append(digests, listed(image)...), References(image)
}

// pods counts the pods that use the image now; 0 when the pods are not known.
func (f *facts) pods(digest string, image *imagev1.Image) int {
	if f.usage == nil {
		return 0
	}
	return f.usage.PodsUsing(f.by(digest, image))
}

// users names these pods as cluster/namespace/name, at most most of them.
func (f *facts) users(digest string, image *imagev1.Image, most int) []string {
	if f.usage == nil {
		return nil
	}
	digests, references := f.by(digest, image)
	return f.usage.Users(digests, references, most)
}

// usedBy returns where these pods are.
func (f *facts) usedBy(digest string, image *imagev1.Image) []string {
	if f.usage == nil {
		return nil
	}
	return f.usage.UsedBy(f.by(digest, image))
}

// neededBy names workloads that need the image, at most most of them.
func (f *facts) neededBy(digest string, image *imagev1.Image, most int) []string {
	if f.usage == nil {
		return nil
	}
	digests, references := f.by(digest, image)
	return f.usage.NeededBy(digests, references, most)
}

// inUse returns the digests and the references of images that pods use or workloads need.
func (f *facts) inUse() (digests, references []string) {
	digests, references = f.usage.InUse()
	return append(digests, f.indexes.images()...), references
}

// UsersOf are the clusters and namespaces, as cluster/namespace, of pods that use an image, sorted,
// and workloads that need it.
func (f *facts) UsersOf(digest string) []string {
	return append(f.usedBy(digest, nil), f.neededBy(digest, nil, MaxNamed)...)
}

// Use answers who uses an image, as the table of images does: also by the indexes that list it, and
// by the images that it lists.
type Use struct{ facts *facts }

// UseOf returns the use of the images of the storage that imageapi.Storage has returned.
func UseOf(images map[string]rest.Storage) *Use { return &Use{images["images"].(*REST).Facts} }

// Pods counts the pods that run an image. complete is false if there may be more. image is nil if
// it is not stored.
func (u *Use) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	return u.facts.pods(digest, image), u.facts.usage != nil && u.facts.complete()
}

// Users names these pods as cluster/namespace/name, at most most of them.
func (u *Use) Users(digest string, image *imagev1.Image, most int) []string {
	return u.facts.users(digest, image, most)
}

// NeededBy names workloads that need an image, as cluster/namespace/resource/name, at most most of
// them.
func (u *Use) NeededBy(digest string, image *imagev1.Image, most int) []string {
	return u.facts.neededBy(digest, image, most)
}

// Digests are those that pods run or workloads need, whether the images are stored or not.
func (u *Use) Digests() []string {
	if u.facts.usage == nil {
		return nil
	}
	digests, _ := u.facts.usage.InUse()
	return digests
}

// allStaleReasons say which clusters' pods, and which indexes, are not known as of now.
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

// StaleReasons say which clusters' pods, and which indexes, are not known as of now.
func (u *Use) StaleReasons() []string { return u.facts.allStaleReasons() }

// WorkloadStaleReasons say which workloads are not known as of now.
func (u *Use) WorkloadStaleReasons() []string {
	if u.facts.usage == nil {
		return nil
	}
	return u.facts.usage.WorkloadStaleReasons()
}
