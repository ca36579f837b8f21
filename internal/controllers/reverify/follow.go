package reverify

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// maxFollowers bounds the images that wait to follow an index, except for the last index that was
// added: one lists some 20,000 at most. A sweep judges those that wait before they are so many. If
// there are more all the same, all Images are judged again.
const maxFollowers = 10_000

// followers are images to judge again because an index that lists them was judged.
type followers struct {
	mu sync.Mutex
	// by digest: the repositories in which the image should be verified; nil to judge it in any
	// case
	waiting map[string][]string
	// lost is true if images were not added that have to follow an index which was judged.
	lost bool
}

// check has the images judged again that a verified index lists and that are not verified: the
// server may have stopped after it judged the index. If image is not a verified index, check does
// nothing.
func (s *Sweeper) check(index *imagev1.Image) {
	if len(index.DockerImageManifests) == 0 {
		return
	}
	var repositories []string
	for repository, v := range annotation.JudgedAnywhere(index.Annotations) {
		if verdicts.IsVerified(v.Verified) {
			repositories = append(repositories, repository)
		}
	}
	if len(repositories) > 0 {
		s.followers.add(index, repositories)
	}
}

func (f *followers) add(index *imagev1.Image, repositories []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	full := len(f.waiting) >= maxFollowers
	for _, m := range index.DockerImageManifests {
		known, ok := f.waiting[m.Digest]
		switch {
		case !ok && full:
			f.lost = f.lost || repositories == nil // else the next sweep checks them again
		case !ok || repositories == nil:
			f.waiting[m.Digest] = repositories
		case known != nil:
			f.waiting[m.Digest] = slices.Concat(known, repositories)
		}
	}
}

// many reports whether so many images wait that a sweep should judge them before it goes on.
func (f *followers) many() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting) >= maxFollowers/2
}

// wereLost reports whether images were not added since it was asked last.
func (f *followers) wereLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := f.lost
	f.lost = false
	return lost
}

// next returns one image that waits, "" if none does.
func (f *followers) next() (digest string, repositories []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for digest, repositories := range maps.All(f.waiting) {
		delete(f.waiting, digest)
		return digest, repositories
	}
	return "", nil
}

// judgeFollowers judges the images that wait, and those that begin to wait meanwhile, since indexes
// list indexes. failed is how many could not be judged: until a sweep judges them, they have the
// verdict that their index had. If more should wait than can, it asks for a sweep that judges all.
// It returns an error only if ctx is done.
func (s *Sweeper) judgeFollowers(ctx context.Context) (failed int64, err error) {
	for {
		digest, repositories := s.followers.next()
		if digest == "" || ctx.Err() != nil {
			if s.followers.wereLost() {
				slog.Warn("Too many images have to follow their indexes at a time, so all are verified again")
				s.Trigger()
			}
			return failed, ctx.Err()
		}
		image, err := s.images.Get(ctx, digest, metav1.GetOptions{})
		if err == nil {
			before := image
			var changed bool
			image, changed, err = s.update(ctx, image, func(image *imagev1.Image) bool { return repositories == nil || !isVerified(image, repositories) })
			if changed {
				s.followed(before, image)
			}
		}
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			// an index may list what is not stored
			failed++
			slog.Error("Verifying an image by its index failed", "image", digest, "err", err)
		}
	}
}

// followed corrects the count for an image that has followed its index. The sweep under way may
// have counted the image's former verdict.
func (s *Sweeper) followed(before, image *imagev1.Image) {
	former, _, _ := signatures.Summary(before)
	verified, _, _ := signatures.Summary(image)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.progress.Running || s.progress.Verified[former] == 0 {
		return
	}
	s.progress.Verified[former]--
	s.progress.Verified[verified]++
	for _, verdict := range signatures.Everywhere(before) {
		s.progress.Verdicts[verdict]--
	}
	for _, verdict := range signatures.Everywhere(image) {
		s.progress.Verdicts[verdict]++
	}
	s.progress.Changed++
}

// isVerified reports whether an image is verified in each of its repositories.
func isVerified(image *imagev1.Image, repositories []string) bool {
	judged := annotation.JudgedAnywhere(image.Annotations)
	for _, in := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		for _, key := range repositories {
			if v := judged[key]; annotation.IsOf(key, in.String()) && v.Verified != verdicts.VerifiedTrue && v.Verified != verdicts.ByIndex {
				return false
			}
		}
	}
	return true
}
