package imageapi

import (
	"slices"
	"testing"
	"testing/synctest"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// used is a Usage by which everything is used.
type used struct{}

func (used) PodsUsing([]string, []reference.Reference) int { return 1 }
func (used) InUse() (digests, references []string)         { return nil, nil }
func (used) Subscribe(func([]string)) (cancel func())      { return func() {} }
func (used) Synced() bool                                  { return true }
func (used) Complete() bool                                { return true }
func (used) Doubts() []string                              { return nil }

func (used) UsedBy([]string, []reference.Reference) []string { return nil }

// An index that is slow to be read holds up nobody who asks, and what it was does not replace what a
// later look has found.
func TestSlowReadOfAnIndexHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := func(image string) *imagev1.Image {
			return &imagev1.Image{DockerImageManifests: []imagev1.ImageManifest{{Digest: image}}}
		}
		slow, reads := make(chan struct{}), 0
		x := followIndexes(used{}, func(string) *imagev1.Image {
			if reads++; reads == 1 {
				<-slow
				return lists("before")
			}
			return lists("now")
		})
		ended := make(chan struct{})
		go func() {
			x.refresh("index")
			close(ended)
		}()
		synctest.Wait()
		x.refresh("index")
		if got := x.of("now"); !slices.Equal(got, []string{"index"}) {
			t.Errorf("while the first look at the index goes on, its image is listed by %v", got)
		}
		close(slow)
		<-ended
		if got := x.images(); !slices.Equal(got, []string{"now"}) || len(x.looks) != 0 {
			t.Errorf("the index lists %v, and %d are being read", got, len(x.looks))
		}
	})
}
