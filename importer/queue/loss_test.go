package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// lossTest is a registry with five repositories of three tags each, of which sweeps know by name,
// by a pattern or because pods run them.
type lossTest struct {
	*workerTest
	worker  *queue.Worker
	clock   *clocktesting.FakeClock
	metrics metrics.KubeRegistry
	digests map[string][]string // by repository
	running []reference.Reference
	im      *importer.Importer
	options queue.Options
}

// importNow imports a tag of the registry.
func (l *lossTest) importNow(name string) {
	l.t.Helper()
	ref, err := reference.Parse(l.registry.Host + "/" + name)
	if err == nil {
		_, err = l.im.Import(l.t.Context(), ref, l.images)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// EachRunning and PodsRunning are part of queue.Running.
func (l *lossTest) EachRunning(_ context.Context, use func(cluster string, image reference.Reference) error) error {
	for _, ref := range l.running {
		if err := use("", ref); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossTest) PodsRunning(digest string) int {
	return len(slices.DeleteFunc(slices.Clone(l.running), func(r reference.Reference) bool { return r.Digest != digest }))
}

func startLoss(t *testing.T, by string) *lossTest {
	t.Helper()
	w, o := prepareWorker(t)
	l := &lossTest{workerTest: w, clock: clocktesting.NewFakeClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)), digests: map[string][]string{}}
	o.Clock, o.Running, l.im = l.clock, l, o.Config.Importer()
	for i := range 5 {
		l.fill(fmt.Sprint("team/app", i))
	}
	catalogOf(w.registry, func() []string {
		names := []string{}
		for _, repository := range []string{"team/app0", "team/app1", "team/app2", "team/app3", "team/app4", "team/new"} {
			if len(l.digests[repository]) > 0 {
				names = append(names, repository)
			}
		}
		return names
	})
	switch by {
	case "name":
		for i := range 5 {
			o.Sweep.Repositories = append(o.Sweep.Repositories, fmt.Sprintf("%s/team/app%d", w.registry.Host, i))
		}
	case "pattern":
		o.Sweep.Repositories = []string{w.registry.Host + "/team/*"}
	}
	side := l.push("side/app:v1", "side") // which a stream follows
	l.digests["side/app"] = []string{side}
	o.Streams = &fakeStreams{scheduled: []reference.Reference{{Host: w.registry.Host, Repository: "side/app", Tag: "v1"}}}
	l.options = o
	l.restart()
	return l
}

// restart replaces the worker, which forgets what it had found.
func (l *lossTest) restart() {
	l.t.Helper()
	l.metrics = metrics.NewKubeRegistry()
	l.options.Registerer = l.metrics
	var err error
	if l.worker, err = queue.New(l.options); err != nil {
		l.t.Fatal(err)
	}
}

// fill pushes three tags to a repository.
func (l *lossTest) fill(repository string) {
	for i := range 3 {
		l.digests[repository] = append(l.digests[repository], l.push(fmt.Sprintf("%s:v%d", repository, i), fmt.Sprint(repository, i)))
	}
}

// empty deletes all that a repository has.
func (l *lossTest) empty(repository string) {
	for i, digest := range l.digests[repository] {
		if repository == "side/app" {
			i = 1
		}
		l.delete(repository, fmt.Sprint("v", i))
		l.delete(repository, digest)
	}
	delete(l.digests, repository)
}

// marked are how many references are marked as gone.
func (l *lossTest) marked() (n int) {
	for _, digest := range l.images.Names() {
		n += len(l.gone(digest))
	}
	return n
}

func (l *lossTest) expectLosses(when string, want float64) {
	l.t.Helper()
	text := fmt.Sprintf("# HELP tidewaiter_sweep_lost_registries [ALPHA] Registries that have nothing in most repositories in which they had images: they may have lost their storage.\n# TYPE tidewaiter_sweep_lost_registries gauge\ntidewaiter_sweep_lost_registries %v\n", want)
	if err := testutil.GatherAndCompare(l.metrics, strings.NewReader(text), "tidewaiter_sweep_lost_registries"); err != nil {
		l.t.Errorf("%s: %v", when, err)
	}
	if n := len(l.worker.Losses()); n != int(want) {
		l.t.Errorf("%s: %v", when, l.worker.Losses())
	}
}

// A registry that lost its storage is said to have done so, once; nothing there is marked as gone,
// whichever way sweeps know of it. It may come back, or go on with new images.
func TestRegistryThatLostItsStorage(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"name", "pattern"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			l := startLoss(t, by)
			l.worker.SweepOnce(t.Context())
			l.expectLosses("at first", 0)
			seen := l.clock.Now()
			l.running = []reference.Reference{{Host: l.registry.Host, Repository: "team/app0", Digest: l.digests["team/app0"][0]}}
			for i := range 5 {
				l.empty(fmt.Sprint("team/app", i))
			}
			l.empty("side/app")
			l.clock.Step(6 * time.Hour)
			l.notices.take()
			l.worker.SweepOnce(t.Context())
			l.expect("notices", l.notices.take(), []string{"RegistryEmptied "})
			lost := l.clock.Now()
			for range 2 { // nor later
				l.clock.Step(6 * time.Hour)
				l.fill("team/new") // a new push is not the old storage
				l.worker.SweepOnce(t.Context())
			}
			if n := l.marked(); n != 0 {
				t.Errorf("%d references are marked as gone", n)
			}
			l.expectLosses("later", 1)
			for _, n := range l.notices.take() {
				if !strings.HasPrefix(n, "Imported") {
					t.Errorf("another notice: %s", n)
				}
			}
			loss := l.worker.Losses()[0]
			if loss.Registry != l.registry.Host || loss.Repositories != 5 || !loss.Since.Equal(lost) || loss.Seen == nil || !loss.Seen.Equal(seen) || !strings.Contains(loss.String(), "not seen since 2026-05-04T03:02:01Z") {
				t.Errorf("%+v: %s", loss, &loss)
			}
			// A registry that does not answer says nothing about that.
			l.registry.Inject("GET /v2/team/.*/tags/list", 0, registrytest.Status(500, "UNKNOWN"))
			l.worker.SweepOnce(t.Context())
			l.expectLosses("while it does not answer", 1)
			l.registry.Heal()
			if by == "pattern" {
				catalogOf(l.registry, func() []string { return []string{"team/app0", "team/app1", "team/app2", "team/new"} })
			}
			// The storage is back, but for two repositories.
			l.push("side/app:v1", "side")
			for i := range 3 {
				l.fill(fmt.Sprint("team/app", i))
			}
			l.worker.SweepOnce(t.Context())
			l.expectLosses("at the end", 0)
			if n := l.marked(); n != 2*3*2 {
				t.Errorf("%d references are marked as gone, want three tags and three digests of two repositories each", n)
			}
		})
	}
}

// What vanished while no server ran is noticed by the first sweep: the stored tags say what was
// there.
func TestVanishedBeforeARestart(t *testing.T) {
	t.Parallel()
	l := startLoss(t, "pattern")
	l.worker.SweepOnce(t.Context())
	l.empty("team/app4")
	l.restart()
	l.worker.SweepOnce(t.Context())
	if n := l.marked(); n != 6 {
		t.Errorf("%d references are marked as gone, want those of one repository", n)
	}
	l.expectLosses("of one repository", 0)
	for i := range 4 {
		l.empty(fmt.Sprint("team/app", i))
	}
	l.restart()
	l.worker.SweepOnce(t.Context())
	l.expectLosses("of all", 1)
	if loss := l.worker.Losses()[0]; l.marked() != 6 || loss.Repositories != 4 || loss.Seen != nil || strings.Contains(loss.String(), "seen since") {
		t.Errorf("%d references are marked as gone; %s", l.marked(), &loss)
	}
}

// Images that pods run are asked for without a sweep of their repositories: if nearly all are gone,
// the registry may have lost its storage, too.
func TestRunningImagesOfALostRegistry(t *testing.T) {
	t.Parallel()
	l := startLoss(t, "")
	for i := range 5 {
		name := fmt.Sprint("team/app", i)
		l.importNow(name + ":v0")
		l.running = append(l.running, reference.Reference{Host: l.registry.Host, Repository: name, Digest: l.digests[name][0]})
	}
	l.worker.SweepOnce(t.Context())
	l.empty("team/app4")
	l.notices.take()
	l.worker.SweepOnce(t.Context())
	l.expectLosses("when one is gone", 0)
	l.expect("notices of one that is gone", l.notices.take(), []string{"GoneFromRegistry " + l.running[4].Digest})
	marked := l.marked()
	for i := range 4 {
		l.empty(fmt.Sprint("team/app", i))
	}
	l.worker.SweepOnce(t.Context())
	l.expectLosses("when all are gone", 1)
	l.expect("notices", l.notices.take(), []string{"RegistryEmptied "})
	if n := l.marked(); n != marked {
		t.Errorf("%d references are marked as gone, want %d", n, marked)
	}
}

// Of a repository that is emptied, one notice tells; those of what pods run are told beside it.
func TestEmptiedRepository(t *testing.T) {
	t.Parallel()
	l := startLoss(t, "name")
	for i := range 10 {
		l.digests["team/app0"] = append(l.digests["team/app0"], l.push(fmt.Sprintf("team/app0:v%d", 3+i), fmt.Sprint("more", i)))
	}
	l.worker.SweepOnce(t.Context())
	runs := l.digests["team/app0"][2]
	l.running = []reference.Reference{{Host: l.registry.Host, Repository: "team/app0", Digest: runs}}
	l.empty("team/app0")
	l.notices.take()
	l.worker.SweepOnce(t.Context())
	messages := l.notices.messages("GoneFromRegistry")
	last := ""
	if len(messages) > 0 {
		last = messages[len(messages)-1]
	}
	if len(messages) > 4 || !strings.Contains(last, "/team/app0 is empty or deleted: ") || !strings.Contains(messages[0], "1 pod is known to run the image") {
		t.Errorf("%q", messages)
	}
	if n := l.marked(); n != 13*2 {
		t.Errorf("%d references are marked as gone, want 26", n)
	}
	l.expectLosses("of one repository", 0)
}
