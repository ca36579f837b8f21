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

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// since is when the images were found to be gone.
const since = "2026-01-02T03:04:05Z"

// runningImages has as many images that run as it is told, all of them gone, and one that is not.
type runningImages struct {
	mu     sync.Mutex
	n      int
	fail   error
	doubts []string
	asked  int
}

func (g *runningImages) List(_ context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.FieldSelector != "used=true" || o.Limit == 0 {
		return nil, errors.New("all images are read")
	}
	g.asked++
	digest := "sha256:" + strings.Repeat("a", 64)
	gone := imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, Annotations: map[string]string{}}}
	ref, err := reference.Parse("r.example.com/team/app@" + digest)
	if err != nil {
		return nil, err
	}
	annotation.SetMissing(gone.Annotations, map[reference.Reference]string{ref: since})
	return &imagev1.ImageList{Items: append(slices.Repeat([]imagev1.Image{gone}, g.n), *imageOf())}, g.fail
}

// EachVerdict is part of Pods: there are as many pods of which one does not meet a policy, and one
// that is not covered.
func (g *runningImages) EachVerdict(_ context.Context, use func(string)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range g.n {
		use("False")
	}
	use("NoPolicy")
	return nil
}

// StaleReasons is part of Pods.
func (g *runningImages) StaleReasons() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.doubts
}

func (g *runningImages) set(n int, fail error, doubts ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n, g.fail, g.doubts = n, fail, doubts
}

func (g *runningImages) times() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// What runs is counted again after a while, or when it is asked for; while it is not known, it is
// not zero.
func TestRunningIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images, gauge, registry := &runningImages{}, NewGoneGauge(), metrics.NewKubeRegistry()
		registry.MustRegister(gauge)
		ctx, stop := context.WithCancel(t.Context())
		images.set(0, nil, "cluster prod has not been read")
		verified := NewVerdictsGauge()
		registry.MustRegister(verified)
		done := make(chan struct{})
		c := counterOf(Options{Tags: &tagPages{pages: [][]imagev1.ImageTag{nil}}, Images: images, Pods: images, Gone: gauge, Verified: verified})
		go func() {
			_ = c.Run(ctx)
			close(done)
		}()
		defer func() { stop(); <-done }()
		expect := func(what string, n int64, metric string, unknown ...string) {
			t.Helper()
			synctest.Wait()
			got := c.Summary().Running
			if n < 0 != (got.Gone == nil) || n >= 0 && *got.Gone != n || !slices.Equal(got.Unknown, unknown) {
				t.Errorf("%s: %v, %q", what, got.Gone, got.Unknown)
			}
			if n < 0 != (got.UsedAsOf == nil) || n >= 0 && (got.Used["False"] != n || got.Used["NoPolicy"] != 1 || got.Used["True"] != 0) {
				t.Errorf("%s: as of %v pods use %v", what, got.UsedAsOf, got.Used)
			}
			if pods, err := testutil.GetGaugeMetricValue(verified.WithLabelValues("False")); n > 0 && (err != nil || pods != float64(n)) {
				t.Errorf("%s: the metric says %v, %v", what, pods, err)
			}
			if n > 0 != (got.GoneSince != nil) || n > 0 && got.GoneSince.UTC().Format(time.RFC3339) != since {
				t.Errorf("%s: gone since %v", what, got.GoneSince)
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
		c.recountRunning()
		time.Sleep(minRest + time.Second)
		expect("asked for", 1, "1")
		images.set(1, nil, "cluster prod is away")
		if got := c.Summary().Unknown; !slices.Equal(got, []string{"cluster prod is away"}) {
			t.Errorf("as soon as a cluster is away, %q is unknown", got)
		}
		time.Sleep(minRest + time.Second)
		expect("as soon as it is away", 1, "1", "cluster prod is away")
		images.set(1, nil)
		time.Sleep(minRest + time.Second)
		expect("it is back", 1, "1")
		before := images.times()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := images.times() - before; n < 10 || n > 13 {
			t.Errorf("in an hour it counts %d times", n)
		}
	})
}
