package reverify

import (
	"context"
	"fmt"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// noImages has the first page of a list of Images, and none of them.
type noImages struct {
	Images
	asked func()
}

func (i noImages) Get(_ context.Context, name string, _ metav1.GetOptions) (*imagev1.Image, error) {
	i.asked()
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

func (i noImages) List(_ context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	list := &imagev1.ImageList{}
	if o.Continue == "" {
		list.Continue = "more"
	}
	return list, nil
}

// If more images have to follow their indexes than can wait, all are judged again. A sweep judges
// those that wait before they are so many.
func TestMoreFollowersThanCanWait(t *testing.T) {
	t.Parallel()
	asked := 0
	s := New(Options{Images: noImages{asked: func() { asked++ }}, Clock: clocktesting.NewFakeClock(metav1.Now().Time)})
	index := func(first, n int) *imagev1.Image {
		index := &imagev1.Image{}
		for i := range n {
			index.DockerImageManifests = append(index.DockerImageManifests, imagev1.ImageManifest{Digest: fmt.Sprintf("sha256:%064x", first+i)})
		}
		return index
	}
	s.Follow(index(0, maxFollowers))
	s.Follow(index(0, maxFollowers)) // they wait already
	if failed, err := s.judgeFollowers(t.Context()); failed > 0 || err != nil || asked != maxFollowers || s.everything {
		t.Fatalf("%d of %d were judged, %d failed, %v; all are judged again: %v", asked, maxFollowers, failed, err, s.everything)
	}
	s.Follow(index(0, maxFollowers))
	s.followers.add(index(maxFollowers, 1), []string{"registry.example.com/team/app"}) // the next sweep checks it again
	if s.followers.lost {
		t.Error("what a sweep checks was lost")
	}
	s.Follow(index(maxFollowers, 1))
	page := asked
	if err := s.pages(t.Context(), false, 0); err != nil || asked != page+maxFollowers {
		t.Errorf("a sweep judges %d of them after a page, %v", asked-page, err)
	}
	if !s.everything || !s.asked.Load() {
		t.Error("an image that did not follow its index keeps its verdict until policies change")
	}
}
