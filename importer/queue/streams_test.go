package queue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// fakeStreams are told of imports.
type fakeStreams struct {
	mu        sync.Mutex
	scheduled []reference.Reference
	told      []string
	fail      error
}

func (s *fakeStreams) Imported(_ context.Context, ref reference.Reference, failed error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, ref.Identifier()+" "+string(pull.ReasonOf(failed)))
	return s.fail
}

func (s *fakeStreams) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.told
	s.told = nil
	return told
}

func (s *fakeStreams) Scheduled(_ context.Context, use func(reference.Reference) error) error {
	s.mu.Lock()
	all := slices.Clone(s.scheduled)
	s.mu.Unlock()
	for _, ref := range all {
		if err := use(ref); err != nil {
			return err
		}
	}
	return nil
}

// What a stream's tag follows is imported, and the streams are told so, or why not.
func TestStreamsAreToldOfImports(t *testing.T) {
	streams := &fakeStreams{}
	w := startWorker(t, func(o *queue.Options) { o.Streams = streams })
	digest := w.push("team/app:v1", "a")
	follow := func(tag string, attempt int) ending {
		w.nextID++
		j := newJob(w.nextID, w.event("follow team/app:"+tag))
		j.Source, j.Attempts = push.OfStreams, attempt
		w.queue.add(j)
		return w.queue.await(t)
	}
	if e := follow("v1", 1); e.How != "done" {
		t.Errorf("the import ended as %+v", e)
	}
	w.expect("images", w.images.Names(), []string{digest})
	w.expect("messages", w.notices.messages(queue.NoticeImported), []string{"Image streams follow " + w.registry.Host + "/team/app:v1"})
	w.expect("told", streams.take(), []string{"v1 "})
	for attempt, permanent := range map[int]bool{1: false, 50: true} {
		if e := follow("none", attempt); e.How != "failed" || e.Failure.Permanent != permanent {
			t.Errorf("attempt %d to import nothing ended as %+v", attempt, e)
		}
		w.expect("told", streams.take(), []string{"none NotFound"})
	}
	streams.fail = errors.New("the disk is full")
	if e := follow("v1", 1); e.How != "failed" || e.Failure.Permanent || !strings.Contains(e.Failure.Error, "the disk is full") {
		t.Errorf("when streams cannot be told, it ended as %+v", e)
	}
}

// Tags that are scheduled are imported by each sweep, each reference once, but for those of
// repositories that are swept. A registry that does not answer is asked once.
func TestScheduledTagsAreSwept(t *testing.T) {
	streams := &fakeStreams{}
	w, o := prepareWorker(t)
	a, other := w.push("team/app:v1", "a"), w.push("team/swept:v1", "b")
	ref := func(repository, tag string) reference.Reference {
		return reference.Reference{Host: w.registry.Host, Repository: repository, Tag: tag}
	}
	away := reference.Reference{Host: "127.0.0.1:1", Repository: "app", Tag: "v1"}
	streams.scheduled = []reference.Reference{away, away.WithTag("v2"), ref("team/app", "gone"), ref("team/app", "v1"), ref("team/swept", "v1"), ref("team/app", "v1")}
	o.Streams, o.Sweep.Repositories = streams, []string{w.registry.Host + "/team/swept"}
	registry := metrics.NewKubeRegistry()
	o.Registerer = registry
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), sorted([]string{a, other}))
	w.expect("told", streams.take(), []string{"v1 "})
	moved := w.push("team/app:v1", "c")
	worker.SweepOnce(t.Context())
	w.expect("images after a move", w.images.Names(), sorted([]string{a, other, moved}))
	w.expect("told", streams.take(), []string{"v1 "})
	want := `
# HELP tidewaiter_sweep_tags_total [ALPHA] Tags looked at by sweeps, by result (known, imported, failed).
# TYPE tidewaiter_sweep_tags_total counter
tidewaiter_sweep_tags_total{result="failed"} 2
tidewaiter_sweep_tags_total{result="imported"} 3
tidewaiter_sweep_tags_total{result="known"} 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_sweep_tags_total"); err != nil {
		t.Error(err)
	}
}
