package image

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// used is a Usage by which everything is used.
type used struct{}

func (used) NeededBy([]string, []reference.Reference, int) []string { return nil }

func (used) WorkloadStaleReasons() []string { return nil }

func (used) PodsUsing([]string, []reference.Reference) int { return 1 }
func (used) InUse() (digests, references []string)         { return nil, nil }
func (used) Subscribe(func([]string)) (cancel func())      { return func() {} }
func (used) Synced() bool                                  { return true }
func (used) Unfollowed() string                            { return "" }
func (used) Complete() bool                                { return true }
func (used) StaleReasons() []string                        { return nil }

func (used) UsedBy([]string, []reference.Reference) []string { return nil }

func (used) Users([]string, []reference.Reference, int) []string { return nil }

func (used) Used(keys []string) []string { return keys }

func (used) Telling(string) []string { return nil }

func (used) Named(uint64) ([]usage.Named, uint64) { return nil, 0 }

func (used) Reporting([]string) []usage.Named { return nil }

func nothingAbove(context.Context, string) ([]string, error) { return nil, nil }

// An index that is slow to be read holds up nobody who asks, and what it was does not replace what
// a later look has found.
func TestSlowReadOfAnIndexHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := func(image string) *imagev1.Image {
			return &imagev1.Image{DockerImageManifests: []imagev1.ImageManifest{{Digest: image}}}
		}
		slow, reads := make(chan struct{}), 0
		x := followIndexes(used{}, func(context.Context, string) (*imagev1.Image, error) {
			if reads++; reads == 1 {
				<-slow
				return lists("before"), nil
			}
			return lists("now"), nil
		}, nothingAbove, nothingAbove)
		ended := make(chan struct{})
		go func() {
			x.refresh(t.Context(), "index")
			close(ended)
		}()
		synctest.Wait()
		x.refresh(t.Context(), "index")
		if got := x.listing("now"); !slices.Equal(got, []string{"index"}) {
			t.Errorf("while the first look at the index goes on, its image is listed by %v", got)
		}
		close(slow)
		<-ended
		if got := x.images(); !slices.Equal(got, []string{"now"}) || len(x.refreshing) != 0 {
			t.Errorf("the index lists %v, and %d are being read", got, len(x.refreshing))
		}
	})
}

// An image of an index counts for the nodes whose runtimes may take it, by each name of a platform.
func TestImagesOfAnIndexCountByPlatform(t *testing.T) {
	t.Parallel()
	index := &imagev1.Image{DockerImageManifests: []imagev1.ImageManifest{
		{Digest: "arm64", OS: "linux", Architecture: "aarch64"},
		{Digest: "386", OS: "linux", Architecture: "386"},
		{Digest: "unknown"},
	}}
	x := followIndexes(used{}, func(context.Context, string) (*imagev1.Image, error) { return index, nil }, nothingAbove, nothingAbove)
	x.refresh(t.Context(), "index")
	for image, want := range map[string][]string{
		"arm64":   {"index@linux/arm64"},
		"386":     {"index@linux/386", "index@linux/amd64"},
		"unknown": {"index"},
	} {
		if got := x.listing(image); !slices.Equal(got, want) {
			t.Errorf("%s counts as %v, want %v", image, got, want)
		}
	}
	index = &imagev1.Image{}
	if x.refresh(t.Context(), "index"); len(x.images()) != 0 || len(x.in) != 0 {
		t.Errorf("the index lists nothing any more, and %v counts", x.in)
	}
}

// What an index lists that cannot be read any more is still known, and nobody is told that images
// are not used. Who asks next has it read again.
func TestUnreadableIndexIsNotAbsent(t *testing.T) {
	var failure error
	f := &facts{usage: used{}}
	f.indexes = followIndexes(used{}, func(ctx context.Context, digest string) (*imagev1.Image, error) {
		if digest != "index" {
			return nil, nil
		}
		if err := errors.Join(failure, ctx.Err()); err != nil {
			return nil, err
		}
		return &imagev1.Image{DockerImageManifests: []imagev1.ImageManifest{{Digest: "listed"}}}, nil
	}, nothingAbove, nothingAbove)
	index := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "index"}, DockerImageManifests: []imagev1.ImageManifest{{Digest: "listed"}}}
	want := func(when string, complete bool) {
		t.Helper()
		if got := f.indexes.listing("listed"); !slices.Equal(got, []string{"index"}) {
			t.Errorf("%s: its image is listed by %v", when, got)
		}
		if doubts := f.indexes.staleReasons(); f.complete() != complete || len(doubts) == 0 != complete {
			t.Errorf("%s: use is known: %v, in doubt: %q", when, f.complete(), doubts)
		}
	}
	f.indexes.created(t.Context(), index)
	want("read", true)
	failure = errors.New("damaged")
	f.indexes.refresh(t.Context(), "index")
	want("not readable", false)
	f.warnOfStale(t.Context())
	want("asked for", false)
	failure = nil
	ended, end := context.WithCancel(t.Context())
	end()
	f.warnOfStale(ended)
	want("asked for by who has gone", false)
	f.warnOfStale(t.Context())
	want("readable", true)
	f.indexes.deleted(index)
	if got := f.indexes.images(); len(got) != 0 || !f.complete() {
		t.Errorf("of a deleted index remain %v; use is known: %v", got, f.complete())
	}
	f.warnOfStale(t.Context())
	want("created anew before its deletion was told", true)
}
