package queue_test

import (
	"context"
	"fmt"
	"net/http"
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
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

func TestWorkerSurvivesAPanic(t *testing.T) {
	w := startWorker(t, func(o *queue.Options) { o.Images = panickingImages{&registrytest.Images{}} })
	w.push("team/app:1.0", "a")
	if e := w.try(1, "push team/app:1.0"); e.How != "failed" || !e.Failure.Permanent || !strings.Contains(e.Failure.Error, "panicked") {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
}

type panickingImages struct{ *registrytest.Images }

// blockingImages stops every job in Get until released.
type blockingImages struct {
	*registrytest.Images
	entered chan struct{}
	release chan struct{}
}

func (b blockingImages) Get(ctx context.Context, name string, o metav1.GetOptions) (*imagev1.Image, error) {
	b.entered <- struct{}{}
	select {
	case <-b.release:
		return b.Images.Get(ctx, name, o)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newBlockingImages() blockingImages {
	return blockingImages{&registrytest.Images{}, make(chan struct{}, 100), make(chan struct{})}
}

func TestWorkerConcurrency(t *testing.T) {
	w := startWorker(t, func(o *queue.Options) { o.HostConcurrency = 3 })
	for i := range 9 {
		w.push(fmt.Sprint("team/app:", i), fmt.Sprint(i))
	}
	w.do("push team/app:8") // the registry answers, so it is given more than one job
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	w.registry.Inject("/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			arrived <- struct{}{}
			<-release
			next.ServeHTTP(rw, req)
		})
	})
	for i := range 8 {
		w.start(1, fmt.Sprint("push team/app:", i))
	}
	for range 3 {
		<-arrived
	}
	w.queue.mu.Lock()
	leased := len(w.queue.leased)
	w.queue.mu.Unlock()
	if leased != 3 {
		t.Errorf("%d jobs are leased, want 3", leased)
	}
	close(release)
	for range 8 {
		if e := w.queue.await(t); e.How != "done" {
			t.Errorf("%s: %+v", e.How, e.Failure)
		}
	}
}

// TestWorkerStops gives back what does not end in the time of grace.
func TestWorkerStops(t *testing.T) {
	images := newBlockingImages()
	registry := registrytest.New(t)
	registry.Push("team/app:1.0", newImage(t, sample.Spec{}))
	jobs := newQueue(newJob(1, push.Event{Action: "push", Host: registry.Host, Repository: "team/app", Tag: "1.0"}))
	clock := clocktesting.NewFakeClock(time.Now())
	worker, err := queue.New(queue.Options{
		Config: always(newImporter(t, importer.Options{})), Images: images, Queue: jobs, Clock: clock, Lease: time.Hour, Grace: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	<-images.entered
	before := clock.Waiters() // tickers
	cancel()
	for deadline := time.Now().Add(2 * time.Minute); clock.Waiters() < before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	select {
	case e := <-jobs.ended:
		t.Fatalf("ended before its grace: %+v", e)
	case err := <-done:
		t.Fatalf("Run ended with a job running: %v", err)
	default:
	}
	for {
		clock.Step(time.Minute)
		select {
		case e := <-jobs.ended:
			if e.How != "released" {
				t.Errorf("%s: %+v, want it released", e.How, e.Failure)
			}
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			return
		case <-time.After(10 * time.Millisecond): // the clock is read once Run waits for it
		}
	}
}

// TestWorkerKeepsItsLease renews while a job runs, and stops the job when it
// cannot: somebody else will have it.
func TestWorkerKeepsItsLease(t *testing.T) {
	images, registry := newBlockingImages(), metrics.NewKubeRegistry()
	w := startWorker(t, func(o *queue.Options) {
		o.Images, o.Lease, o.Registerer = images, 30*time.Millisecond, registry
	})
	w.push("team/app:1.0", "a")
	w.start(1, "push team/app:1.0")
	<-images.entered
	eventually(t, "three renewals", func() bool {
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		return w.queue.renewed[1] >= 3
	})
	w.queue.mu.Lock()
	w.queue.lost = true
	w.queue.mu.Unlock()
	want := `
# HELP tidewaiter_queue_attempts_total [ALPHA] Attempts at a job by receiver and result (done, gone, failed, dead, released, lost).
# TYPE tidewaiter_queue_attempts_total counter
tidewaiter_queue_attempts_total{receiver="local",result="lost"} 1
`
	eventually(t, "the job to be left", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_attempts_total") == nil
	})
	if len(w.queue.ended) != 0 {
		t.Errorf("a job of somebody else was ended: %+v", <-w.queue.ended)
	}
}

func TestWorkerMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	w := startWorker(t, func(o *queue.Options) { o.Registerer = registry })
	// The depth is looked at when the worker starts, and then now and then.
	depth := `
# HELP tidewaiter_queue_jobs [ALPHA] Jobs in the queues by receiver and state (waiting, leased, dead).
# TYPE tidewaiter_queue_jobs gauge
tidewaiter_queue_jobs{receiver="local",state="dead"} 7
tidewaiter_queue_jobs{receiver="local",state="leased"} 0
tidewaiter_queue_jobs{receiver="local",state="waiting"} 0
`
	eventually(t, "the depth of the queue", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(depth), "tidewaiter_queue_jobs") == nil
	})
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0@" + digest)
	want := `
# HELP tidewaiter_queue_attempts_total [ALPHA] Attempts at a job by receiver and result (done, gone, failed, dead, released, lost).
# TYPE tidewaiter_queue_attempts_total counter
tidewaiter_queue_attempts_total{receiver="local",result="done"} 1
`
	eventually(t, "the metrics of the job", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_attempts_total") == nil
	})
	h, err := testutil.GetHistogramVecFromGatherer(registry, "tidewaiter_queue_push_to_image_seconds", map[string]string{"receiver": "local"})
	if err != nil || h.GetAggregatedSampleCount() != 1 {
		t.Errorf("push to image: %v, %v", h, err)
	}
}
