package image

import (
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Use answers who uses an image, as the table of images does: also by the indexes that list it, and by the images that it
// lists.
type Use struct{ facts *facts }

// UseOf returns the use of the images of the storage that imageapi.Storage has returned.
func UseOf(images map[string]rest.Storage) *Use { return &Use{images["images"].(*REST).Facts} }

// by returns the digests and references by which pods may use an image; image is nil if it is not stored.
func (u *Use) by(digest string, image *imagev1.Image) ([]string, []reference.Reference) {
	if image == nil {
		return append(u.facts.indexes.of(digest), digest), nil
	}
	return u.facts.digests(image), References(image)
}

// Pods counts the pods that run an image. complete is false if there may be more. image is nil if it is not stored.
func (u *Use) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	if u.facts.usage == nil {
		return 0, false
	}
	digests, references := u.by(digest, image)
	return u.facts.usage.PodsUsing(digests, references), u.facts.complete()
}

// Users names these pods as cluster/namespace/name, at most most of them.
func (u *Use) Users(digest string, image *imagev1.Image, most int) []string {
	if u.facts.usage == nil {
		return nil
	}
	digests, references := u.by(digest, image)
	return u.facts.usage.Users(digests, references, most)
}

// NeededBy names workloads that need an image, as cluster/namespace/resource/name, at most most of them.
func (u *Use) NeededBy(digest string, image *imagev1.Image, most int) []string {
	if u.facts.usage == nil {
		return nil
	}
	digests, references := u.by(digest, image)
	return u.facts.usage.NeededBy(digests, references, most)
}

// Doubts say which clusters' pods, and which indexes, are not known as of now.
func (u *Use) Doubts() []string {
	if u.facts.usage == nil {
		return nil
	}
	return append(u.facts.usage.Doubts(), u.facts.indexes.doubts()...)
}

// NeedDoubts say which workloads are not known as of now.
func (u *Use) NeedDoubts() []string {
	if u.facts.usage == nil {
		return nil
	}
	return u.facts.usage.NeedDoubts()
}
