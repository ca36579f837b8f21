package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// memoryQueue is a Queue of what a test puts in. Failed jobs are not tried again
// by themselves.
type memoryQueue struct {
	mu      sync.Mutex
	waiting []*push.Job
	leased  map[int64]*push.Job
	ended   chan ending // one for each job that ended, in any way
	wake    chan struct{}
	renewed map[int64]int
	lost    bool // leases cannot be renewed
	hurried []string
	claims  int
}

type ending struct {
	Job     *push.Job
	How     string // done, failed or released
	Failure job.Failure
}

func newQueue(jobs ...*push.Job) *memoryQueue {
	q := &memoryQueue{leased: map[int64]*push.Job{}, renewed: map[int64]int{}, ended: make(chan ending, 2000), wake: make(chan struct{}, 2000)}
	q.add(jobs...)
	return q
}

func (q *memoryQueue) add(jobs ...*push.Job) {
	q.mu.Lock()
	q.waiting = append(q.waiting, jobs...)
	q.mu.Unlock()
	q.wake <- struct{}{}
}

func (q *memoryQueue) Claim(ctx context.Context, n int, _ time.Duration, room job.Room) ([]*push.Job, error) {
	for {
		q.mu.Lock()
		var jobs, left []*push.Job
		var again <-chan time.Time
		taken := map[string]int{}
		for _, j := range q.waiting {
			free, at := room(j.Host())
			if len(jobs) == n || taken[j.Host()] >= free {
				if left = append(left, j); !at.IsZero() {
					again = time.After(time.Until(at))
				}
				continue
			}
			taken[j.Host()]++
			jobs = append(jobs, j)
			q.leased[j.ID] = j
		}
		q.waiting = left
		q.claims++
		q.mu.Unlock()
		if len(jobs) > 0 {
			return jobs, nil
		}
		select {
		case <-q.wake:
		case <-again:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *memoryQueue) Renew(_ context.Context, j *push.Job, _ time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.renewed[j.ID]++
	if q.lost {
		return errors.New("lease lost")
	}
	return nil
}

func (q *memoryQueue) end(j *push.Job, how string, f job.Failure) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.leased[j.ID]; !ok {
		return errors.New("not leased")
	}
	delete(q.leased, j.ID)
	q.ended <- ending{j, how, f}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return nil
}

func (q *memoryQueue) Done(_ context.Context, j *push.Job) error {
	return q.end(j, "done", job.Failure{})
}

func (q *memoryQueue) Fail(_ context.Context, j *push.Job, f job.Failure) error {
	return q.end(j, "failed", f)
}

func (q *memoryQueue) Release(_ context.Context, j *push.Job) error {
	return q.end(j, "released", job.Failure{})
}

func (q *memoryQueue) Hurry(_ context.Context, host string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hurried = append(q.hurried, host)
	return nil
}

func (q *memoryQueue) Depth(context.Context) (map[push.Source]job.Depth, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return map[push.Source]job.Depth{push.OfWebhook("local"): {Waiting: int64(len(q.waiting)), Leased: int64(len(q.leased)), Dead: 7, Oldest: time.Now().Add(-time.Minute)}}, nil
}

// awaitLeased waits until n jobs are leased.
func (q *memoryQueue) awaitLeased(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		q.mu.Lock()
		have := len(q.leased)
		q.mu.Unlock()
		if have >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d jobs are leased, want %d", have, n)
		}
	}
}

// await returns the next job that ends.
func (q *memoryQueue) await(t *testing.T) ending {
	t.Helper()
	select {
	case e := <-q.ended:
		return e
	case <-time.After(2 * time.Minute):
		t.Fatal("no job ends")
	}
	return ending{}
}

// notices records what a Worker tells.
type notices struct {
	mu  sync.Mutex
	all []queue.Notice
}

func (n *notices) Notify(_ context.Context, notice queue.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, notice)
}

func (n *notices) take() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, notice := range n.all {
		out = append(out, notice.Reason+" "+notice.Image)
	}
	n.all = nil
	return out
}

// messages are what was said for a reason.
func (n *notices) messages(reason string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, notice := range n.all {
		if notice.Reason == reason {
			out = append(out, notice.Message)
		}
	}
	return out
}

// workerTest is a worker with a registry.
type workerTest struct {
	t        *testing.T
	registry *registrytest.Registry
	images   *registrytest.Images
	finder   *tagFinder
	notices  *notices
	queue    *memoryQueue
	nextID   int64
}

// startWorker runs a Worker until the test ends.
func startWorker(t *testing.T, change ...func(*queue.Options)) *workerTest {
	t.Helper()
	w, o := prepareWorker(t)
	for _, c := range change {
		c(&o)
	}
	w.run(o)
	return w
}

// config is a configuration that is never replaced.
type config struct {
	importer *importer.Importer
	scripts  []push.Source
}

func always(im *importer.Importer) config { return config{importer: im} }

func (c config) Importer() *importer.Importer { return c.importer }

func (c config) Receivers() []push.Source { return nil }

func (c config) OfScript(source push.Source) bool { return slices.Contains(c.scripts, source) }

// prepareWorker leaves the Worker to run, for tests whose options depend on what
// is in the registry.
func prepareWorker(t *testing.T) (*workerTest, queue.Options) {
	t.Helper()
	w := &workerTest{t: t, registry: registrytest.New(t), images: &registrytest.Images{}, finder: &tagFinder{}, notices: &notices{}, queue: newQueue()}
	return w, queue.Options{
		Config: always(newImporter(t, importer.Options{Signatures: w.finder, Limits: pull.Limits{Attempts: 1}})),
		Images: w.images, Queue: w.queue, Settle: 64 * time.Millisecond, Finder: queue.ListFinder{Images: w.images}, Notifier: w.notices, Logger: slog.New(slog.DiscardHandler),
	}
}

// run runs a Worker until the test ends.
func (w *workerTest) run(o queue.Options) *queue.Worker {
	w.t.Helper()
	worker, err := queue.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var watching sync.WaitGroup
	watching.Go(func() { _ = worker.WatchDepth(ctx) })
	go func() { done <- worker.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		watching.Wait()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	return worker
}

// event is "push repository[:tag][@digest]" or "delete …", of the test's registry.
func (w *workerTest) event(s string) push.Event {
	action, ref, _ := strings.Cut(s, " ")
	ref, digest, _ := strings.Cut(ref, "@")
	repository, tag, _ := strings.Cut(ref, ":")
	return push.Event{Action: push.Action(action), Host: w.registry.Host, Repository: repository, Tag: tag, Digest: digest}
}

// newJob is a job, now and for the first time, of the events.
func newJob(id int64, events ...push.Event) *push.Job {
	j := &push.Job{ID: id, Source: push.OfWebhook("local"), Enqueued: time.Now(), Latest: time.Now(), Attempts: 1, Events: events}
	if len(events) > 0 {
		j.Key = events[0].Key()
	}
	return j
}

func (w *workerTest) start(attempt int, events ...string) {
	w.nextID++
	j := newJob(w.nextID)
	j.Attempts = attempt
	for _, s := range events {
		j.Events = append(j.Events, w.event(s))
	}
	j.Key = j.Events[0].Key()
	w.queue.add(j)
}

// do has a job done and fails the test if it is not.
func (w *workerTest) do(events ...string) {
	w.t.Helper()
	if e := w.try(1, events...); e.How != "done" {
		w.t.Fatalf("%v: %s: %+v", events, e.How, e.Failure)
	}
}

func (w *workerTest) try(attempt int, events ...string) ending {
	w.t.Helper()
	w.start(attempt, events...)
	return w.queue.await(w.t)
}

// delete deletes a tag or digest in the registry.
func (w *workerTest) delete(repository, identifier string) {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodDelete, w.registry.URL+"/v2/"+repository+"/manifests/"+identifier, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.registry.Server().Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		w.t.Fatalf("deleting %s of %s: %s", identifier, repository, resp.Status)
	}
}

func (w *workerTest) image(digest string) *imagev1.Image {
	w.t.Helper()
	image, err := w.images.Get(context.Background(), digest, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return image
}

// references are an Image's, without the host.
func (w *workerTest) references(digest string) (out []string) {
	w.t.Helper()
	for _, ref := range annotation.Known(w.image(digest).Annotations) {
		out = append(out, strings.TrimPrefix(ref.String(), w.registry.Host+"/"))
	}
	return out
}

// gone are the references of an Image that are marked, without the host.
func (w *workerTest) gone(digest string) (out []string) {
	w.t.Helper()
	for ref, at := range annotation.Missing(w.image(digest).Annotations) {
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			w.t.Errorf("the mark's time: %v", err)
		}
		out = append(out, strings.TrimPrefix(ref.String(), w.registry.Host+"/"))
	}
	slices.Sort(out)
	return out
}

func (w *workerTest) expect(what string, got, want []string) {
	w.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (w *workerTest) push(reference, content string) string {
	w.t.Helper()
	return w.registry.Push(reference, newImage(w.t, sample.Spec{Name: content}))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func newImporter(t testing.TB, o importer.Options) *importer.Importer {
	t.Helper()
	o.Keychain = authn.NewMultiKeychain() // of nobody
	im, err := importer.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	return im
}

func newImage(t testing.TB, spec sample.Spec) v1.Image {
	t.Helper()
	image, err := sample.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func newIndex(t testing.TB, spec sample.Spec, attested bool, platforms ...string) v1.ImageIndex {
	t.Helper()
	index, err := sample.MultiPlatform(spec, attested, platforms...)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// tagFinder finds a cosign-like tag through the transport it is given.
type tagFinder struct{ fail error }

func (f *tagFinder) Forget(name.Repository)                      {}
func (f *tagFinder) Listed(name.Repository, []string, time.Time) {}

func (f *tagFinder) Find(ctx context.Context, digest name.Digest, _ reference.Reference, transport http.RoundTripper, _ time.Time, _ bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	if f.fail != nil {
		return nil, nil, nil, f.fail
	}
	tag := digest.Context().Tag(strings.Replace(digest.DigestStr(), ":", "-", 1) + ".sig")
	descriptor, err := remote.Get(tag, remote.WithContext(ctx), remote.WithTransport(transport))
	if err != nil {
		return nil, nil, []string{"no signature of " + digest.DigestStr()}, nil
	}
	signature := imagev1.ImageSignature{
		ObjectMeta: metav1.ObjectMeta{Name: digest.DigestStr() + "@" + descriptor.Digest.Hex},
		Type:       "test", Content: descriptor.Manifest,
	}
	holds := map[string]string{annotation.Manifests: fmt.Sprintf("[%q]", descriptor.Digest)}
	return []imagev1.ImageSignature{signature}, holds, nil, nil
}

func sampleOf(name string) sample.Spec { return sample.Spec{Name: name} }
