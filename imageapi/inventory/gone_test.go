package inventory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
)

// goneImages has as many images that are gone and run as it is told.
type goneImages struct {
	mu     sync.Mutex
	n      int
	fail   error
	doubts []string
	asked  int
}

func (g *goneImages) List(_ context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.FieldSelector != "gone=true,used=true" || o.Limit == 0 {
		return nil, errors.New("all images are read")
	}
	g.asked++
	return &imagev1.ImageList{Items: make([]imagev1.Image, g.n)}, g.fail
}

func (g *goneImages) set(n int, fail error, doubts ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n, g.fail, g.doubts = n, fail, doubts
}

func (g *goneImages) times() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// What is gone is counted again after a while, or when it is asked for; while it is not known, it is not zero.
func TestGoneIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, images, gauge, registry := counterOf(clock.RealClock{}), &goneImages{}, NewGoneGauge(), metrics.NewKubeRegistry()
		registry.MustRegister(gauge)
		ctx, stop := context.WithCancel(t.Context())
		images.set(0, nil, "cluster prod has not been read")
		doubts := func() []string { images.mu.Lock(); defer images.mu.Unlock(); return images.doubts }
		done := make(chan struct{})
		go func() { c.RunGone(ctx, images, doubts, gauge); close(done) }()
		defer func() { stop(); <-done }()
		expect := func(what string, n int64, metric string, unknown ...string) {
			t.Helper()
			synctest.Wait()
			got := c.Summary().Gone
			if n < 0 != (got.Images == nil) || n >= 0 && *got.Images != n || !slices.Equal(got.Unknown, unknown) {
				t.Errorf("%s: %v, %q", what, got.Images, got.Unknown)
			}
			want := ""
			if metric != "" {
				want = "# HELP tidewaiter_gone_running_images [ALPHA] Images that pods use and a registry no longer has; absent while that is not known.\n# TYPE tidewaiter_gone_running_images gauge\ntidewaiter_gone_running_images " + metric + "\n"
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_gone_running_images"); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		expect("while a cluster is unknown", 0, "", "cluster prod has not been read")
		images.set(2, nil, "cluster prod is away")
		time.Sleep(minRest + time.Second)
		expect("what is known of", 2, "2", "cluster prod is away")
		images.set(2, errors.New("no"))
		time.Sleep(minRest + time.Second)
		expect("what cannot be read", -1, "", "no")
		images.set(0, nil)
		time.Sleep(minRest + time.Second)
		expect("nothing", 0, "0")
		images.set(1, nil)
		c.RecountGone()
		time.Sleep(minRest + time.Second)
		expect("asked for", 1, "1")
		before := images.times()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := images.times() - before; n < 10 || n > 13 {
			t.Errorf("in an hour it counts %d times", n)
		}
	})
}
