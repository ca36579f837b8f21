package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// What nobody told of is found: new tags, tags that moved or came back, and what
// is gone.
func TestSweep(t *testing.T) {
	w, o := prepareWorker(t)
	// The one in the middle does not answer, the one after it does not exist.
	for _, name := range []string{"app", "broken", "none", "last"} {
		o.Sweep.Repositories = append(o.Sweep.Repositories, w.registry.Host+"/team/"+name)
	}
	w.registry.Inject("GET /v2/team/broken/tags/list", 0, registrytest.Status(503, "UNAVAILABLE"))
	registry := metrics.NewKubeRegistry()
	o.RegisterMetrics = registry.MustRegister
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	a, last := w.push("team/app:1.0", "a"), w.push("team/last:1.0", "last")
	w.push("team/stranger:1.0", "stranger") // is not to be swept

	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	defer slog.SetDefault(before)
	worker.SweepOnce(t.Context())
	if want := `level=WARN msg="a sweep left a repository before its end" repository=` + w.registry.Host + "/team/broken err="; !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, &log)
	}
	w.expect("images", w.images.Names(), sorted([]string{a, last}))
	w.expect("notices", w.notices.take(), []string{"Imported " + a, "Imported " + last})

	writes := w.images.Writes()
	worker.SweepOnce(t.Context())
	w.expect("notices of nothing new", w.notices.take(), nil)
	w.expect("writes of nothing new", w.images.Writes(), writes)

	b := w.push("team/app:2.0", "b")
	w.delete("team/app", "1.0")
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), sorted([]string{a, b, last}))
	w.expect("gone", w.gone(a), []string{"team/app:1.0"})
	w.expect("notices", w.notices.take(), []string{"Imported " + b, "GoneFromRegistry " + a})

	w.push("team/app:1.0", "a")
	w.delete("team/last", "1.0")
	w.delete("team/last", last)
	worker.SweepOnce(t.Context())
	w.expect("gone after it came back", w.gone(a), nil)
	w.expect("gone", w.gone(last), []string{"team/last:1.0", "team/last@" + last})

	want := `
# HELP tidewaiter_sweep_tags_total [ALPHA] Tags looked at by sweeps, by result (known, imported, failed).
# TYPE tidewaiter_sweep_tags_total counter
tidewaiter_sweep_tags_total{result="imported"} 4
tidewaiter_sweep_tags_total{result="known"} 4
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_sweep_tags_total"); err != nil {
		t.Error(err)
	}
}

// readTags counts ImageTags that are read one by one.
type readTags struct {
	importer.Tagged
	reads int
}

func (r *readTags) GetTag(ctx context.Context, name string, o metav1.GetOptions) (*imagev1.ImageTag, error) {
	r.reads++
	return r.Tagged.GetTag(ctx, name, o)
}

// Where many tags led is read with a list; the second time each is read once, by who asks whether it is gone.
func TestSweepReadsTagsAhead(t *testing.T) {
	w, o := prepareWorker(t)
	images := &readTags{Tagged: w.images}
	o.Images, o.Sweep.Repositories = images, []string{w.registry.Host + "/team/app"}
	const tags = 60
	for i := range tags {
		w.push(fmt.Sprintf("team/app:%d", i), "a")
	}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	worker.SweepOnce(t.Context())
	images.reads = 0
	writes := w.images.Writes()
	worker.SweepOnce(t.Context())
	if images.reads != tags {
		t.Errorf("%d tags were read one by one, want %d", images.reads, tags)
	}
	w.expect("writes of nothing new", w.images.Writes(), writes)
}

// Run sweeps when it begins, and then after each interval.
func TestSweepsAgain(t *testing.T) {
	w, o := prepareWorker(t)
	clock := clocktesting.NewFakeClock(time.Now())
	o.Clock = clock
	o.Sweep = queue.SweepOptions{Every: time.Hour, Repositories: []string{w.registry.Host + "/team/app"}}
	var want []string
	for i, name := range []string{"a", "b", "c"} {
		want = append(want, w.push("team/app:"+name, name))
		if i == 0 {
			w.run(o)
		} else {
			clock.Step(time.Hour)
		}
		eventually(t, "image "+name, func() bool { return slices.Equal(w.images.Names(), sorted(want)) })
	}
}

// A tag that cannot be imported does not keep the others from it, and is warned about.
func TestSweepGoesOn(t *testing.T) {
	w, o := prepareWorker(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	w.push("team/app:1-bad", "bad")
	w.registry.Inject("manifests/1-bad$", 0, registrytest.Status(403, "DENIED"))
	good := w.push("team/app:2-good", "a")
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	defer slog.SetDefault(before)
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), []string{good})
	if want := `level=WARN msg="a sweep could not import a tag" repository=` + w.registry.Host + "/team/app tag=1-bad err="; !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, &log)
	}
}

func TestSweepOptions(t *testing.T) {
	for name, bad := range map[string]struct {
		options queue.SweepOptions
		want    string
	}{
		"too often":   {queue.SweepOptions{Every: time.Second, Repositories: []string{"r.example.com/a"}}, "less than 1m0s"},
		"a tag":       {queue.SweepOptions{Repositories: []string{"r.example.com/a:1.0"}}, "without tag"},
		"no name":     {queue.SweepOptions{Repositories: []string{"https://r.example.com"}}, "URL scheme"},
		"a great lot": {queue.SweepOptions{Repositories: slices.Repeat([]string{"r.example.com/a"}, 1001)}, "more than 1000"},
	} {
		_, o := prepareWorker(t)
		o.Sweep = bad.options
		if _, err := queue.New(o); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, bad.want)
		}
	}
}
