package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures/find"
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
	o.Registerer = registry
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
	if want := `level=WARN msg="a sweep stopped before the end of a repository" repository=` + w.registry.Host + "/team/broken err="; !strings.Contains(log.String(), want) {
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

// Where many tags led is read with a list, and what is known costs a request for each tag.
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
	w.registry.Reset()
	worker.SweepOnce(t.Context())
	if images.reads != 0 {
		t.Errorf("%d tags were read one by one", images.reads)
	}
	if heads, lists := w.registry.Count("^HEAD "), w.registry.Count("tags/list"); heads != tags || lists != 1 {
		t.Errorf("%d known tags cost %d HEADs and %d lists", tags, heads, lists)
	}
	w.expect("writes of nothing new", w.images.Writes(), writes)
}

// Lists that expire between their pages are read to their end.
func TestSweepThroughExpiredLists(t *testing.T) {
	w, o := prepareWorker(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, tag := range []string{"1.0", "2.0", "3.0"} {
		digests = append(digests, w.push("team/app:"+tag, tag))
	}
	worker.SweepOnce(t.Context())
	w.images.Expire = true
	for i, digest := range digests {
		w.delete("team/app", fmt.Sprintf("%d.0", i+1))
		w.delete("team/app", digest)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	worker.SweepOnce(ctx)
	for i, digest := range digests {
		w.expect("gone", w.gone(digest), []string{fmt.Sprintf("team/app:%d.0", i+1), "team/app@" + digest})
	}
}

// A registry that hangs holds up no other, neither in a sweep nor in the next one.
func TestSweepIsolatesRegistries(t *testing.T) {
	w, o := prepareWorker(t)
	o.Clock = clocktesting.NewFakeClock(time.Now())
	hung := make(chan struct{}, 100)
	for range 4 {
		hanging := registrytest.New(t)
		hanging.Inject("", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				hung <- struct{}{}
				registrytest.StallHeaders()(next).ServeHTTP(rw, req)
			})
		})
		o.Sweep.Repositories = append(o.Sweep.Repositories, hanging.Host+"/team/app", hanging.Host+"/team/other")
	}
	o.Sweep.Every = time.Hour
	o.Sweep.Repositories = append(o.Sweep.Repositories, w.registry.Host+"/team/app")
	want := []string{w.push("team/app:v1", "a")}
	w.run(o)
	for range 4 {
		<-hung
	}
	eventually(t, "the image behind the hanging registries", func() bool { return slices.Equal(w.images.Names(), want) })
	want = sorted(append(want, w.push("team/app:v2", "b")))
	eventually(t, "the image in the next sweep", func() bool {
		o.Clock.(*clocktesting.FakeClock).Step(time.Hour)
		return slices.Equal(w.images.Names(), want)
	})
}

// Other options count at once: what they name is swept now, and from then on as often as they say.
// Mistakes change nothing.
func TestReplacedSweep(t *testing.T) {
	w, o := prepareWorker(t)
	clock := clocktesting.NewFakeClock(time.Now())
	o.Clock, o.Sweep.Every = clock, time.Hour
	want := []string{w.push("team/app:v1", "a")}
	worker := w.run(o)
	if err := worker.ReplaceSweep(queue.SweepOptions{Every: time.Second}); err == nil {
		t.Error("a sweep each second is accepted")
	}
	if err := worker.ReplaceSweep(queue.SweepOptions{Repositories: []string{w.registry.Host + "/team/app"}, Every: time.Minute}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image of the new sweep", func() bool { return slices.Equal(w.images.Names(), want) })
	want = sorted(append(want, w.push("team/app:v2", "b")))
	eventually(t, "the image of the next sweep", func() bool {
		clock.Step(time.Minute)
		return slices.Equal(w.images.Names(), want)
	})
}

// A registry that answers is asked for several tags at a time.
func TestSweepAsksForSeveralTagsAtATime(t *testing.T) {
	w, o := prepareWorker(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	for i := range 4 {
		w.push(fmt.Sprintf("team/app:%d", i), "a")
	}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	meet := make(chan struct{})
	w.registry.Inject("HEAD .*manifests/[0-3]$", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			select { // two requests meet
			case meet <- struct{}{}:
			case <-meet:
			case <-req.Context().Done():
				t.Error("a tag was asked for alone")
			}
			next.ServeHTTP(rw, req)
		})
	})
	worker.SweepOnce(t.Context())
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
		}
		eventually(t, "image "+name, func() bool {
			if i > 0 {
				clock.Step(time.Hour) // the sweep before may not have ended yet
			}
			return slices.Equal(w.images.Names(), sorted(want))
		})
	}
}

// owners own some registries.
type owners struct {
	mu      sync.Mutex
	owned   map[string]bool
	changed func()
}

func (o *owners) OnChange(f func()) { o.changed = f }

func (o *owners) Owns(host string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owned[host]
}

func (o *owners) set(host string, owned bool) {
	o.mu.Lock()
	o.owned[host] = owned
	o.mu.Unlock()
	o.changed()
}

// Of several Workers each sweeps the registries that it owns, and at once those that it comes to
// own, but not the others again.
func TestSweepsWhatItOwns(t *testing.T) {
	w, o := prepareWorker(t)
	other, own := registrytest.New(t), &owners{owned: map[string]bool{w.registry.Host: true}}
	o.Clock, o.Owners = clocktesting.NewFakeClock(time.Now()), own
	o.Sweep.Repositories = []string{other.Host + "/team/app", w.registry.Host + "/team/app"}
	want := []string{w.push("team/app:a", "a")}
	digest := other.Push("team/app:b", newImage(t, sample.Spec{Name: "b"}))
	w.run(o)
	eventually(t, "the image of its own registry", func() bool { return slices.Equal(w.images.Names(), want) })
	if n := other.Count(""); n != 0 {
		t.Errorf("another's registry was asked %d times", n)
	}
	own.set(other.Host, true)
	want = sorted(append(want, digest))
	eventually(t, "the image of a registry that it has come to own", func() bool { return slices.Equal(w.images.Names(), want) })
	if n := w.registry.Count("tags/list"); n != 1 {
		t.Errorf("its own registry was swept %d times", n)
	}
}

// What was another's meanwhile may have changed.
func TestSweepsAgainWhatItOwnsAgain(t *testing.T) {
	w, o := prepareWorker(t)
	own := &owners{owned: map[string]bool{w.registry.Host: true}}
	o.Owners, o.Sweep.Repositories = own, []string{w.registry.Host + "/team/app"}
	w.push("team/app:a", "a")
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	worker.SweepOnce(t.Context())
	worker.SweepMoved(t.Context())
	own.set(w.registry.Host, false)
	worker.SweepMoved(t.Context())
	worker.SweepOnce(t.Context())
	if n := w.registry.Count("tags/list"); n != 1 {
		t.Errorf("tags were listed %d times, want once", n)
	}
	own.set(w.registry.Host, true)
	worker.SweepMoved(t.Context())
	if n := w.registry.Count("tags/list"); n != 2 {
		t.Errorf("tags were listed %d times, want once more", n)
	}
}

// A sweep ends where the registry is another's.
func TestSweepLeavesWhatItOwnsNoMore(t *testing.T) {
	w, o := prepareWorker(t)
	own := &owners{owned: map[string]bool{w.registry.Host: true}}
	o.Owners, o.HostConcurrency = own, 1
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app", w.registry.Host + "/team/other"}
	for i := range 5 {
		w.push(fmt.Sprint("team/app:", i), fmt.Sprint(i))
	}
	w.registry.Inject("/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			own.set(w.registry.Host, false)
			next.ServeHTTP(rw, req)
		})
	})
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	worker.SweepOnce(t.Context())
	if images, lists := len(w.images.Names()), w.registry.Count("tags/list"); images != 1 || lists != 1 {
		t.Errorf("%d images were imported, and tags were listed %d times", images, lists)
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
		"a great lot": {queue.SweepOptions{Repositories: slices.Repeat([]string{"r.example.com/a"}, 1001)}, "at most 1000"},
	} {
		_, o := prepareWorker(t)
		o.Sweep = bad.options
		if _, err := queue.New(o); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, bad.want)
		}
	}
}

// A sweep goes on past an image whose signatures the registry refuses to show, and the next one
// searches them.
func TestSweepGoesOnPastRefusedSignatures(t *testing.T) {
	w, o := prepareWorker(t)
	finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	o.Config = always(newImporter(t, importer.Options{Signatures: finder, Limits: pull.Limits{Attempts: 1}}))
	// a registry that is left alone is so for ever
	o.HostConcurrency, o.Clock = 1, clocktesting.NewFakeClock(time.Now())
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range 9 {
		all = append(all, w.push(fmt.Sprint("team/app:", i), fmt.Sprint(i)))
	}
	w.registry.Inject(strings.TrimPrefix(all[4], "sha256:")+".sig$", 0, registrytest.Status(429, "TOOMANYREQUESTS"))
	unread := func() (text string) {
		for _, found := range annotation.Found(w.image(all[4]).Annotations) {
			text += found.Unread
		}
		return text
	}
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), sorted(all))
	if !strings.Contains(unread(), "TOOMANYREQUESTS") {
		t.Errorf("its signatures are not unknown: %q", unread())
	}
	w.registry.Heal()
	worker.SweepOnce(t.Context())
	if unread() != "" {
		t.Errorf("the next sweep has not searched: %q", unread())
	}
	// What fails for a moment is searched before the sweep ends.
	w.registry.Inject(strings.TrimPrefix(all[4], "sha256:")+".sig$", 1, registrytest.Status(503, "UNAVAILABLE"))
	worker.SweepOnce(t.Context())
	if unread() != "" {
		t.Errorf("the sweep has not searched again: %q", unread())
	}
}
